"""Hooks around the states of an install: real scripts on a device whose power can be cut.

Whatever hooks say and whenever the power is cut, the device serves the new verified package or the
previous one, and says which.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.app.hooking import look_at_hooks
from agent.errors import AgentError, FetchError, StoppedError
from agent.install.states import State
from agent.install.workflow import MAX_ATTEMPTS
from tests.simulators.device import DEVICE, FORWARD, Hook, PowerCut, SimulatedDevice, nothing
from tests.simulators.hooks import HookDirectory
from tests.simulators.packages import SignedPackage, two_variants
from wire.installs import InstallReport
from wire.package.manifest import MANIFEST_FILE

MOMENTS = list(itertools.product(FORWARD, ["Enter", "Leave"]))
BEFORE_CONFIRMING = [(state, moment) for state, moment in MOMENTS if state is not FORWARD[-1]]
OLD = two_variants("1.0.0", best="old best", small="old small")
NEW = two_variants("2.0.0", best="new best", small="new small")
NEWER = two_variants("3.0.0", best="newer best", small="newer small")
DELAY_S = 300.0
LATER = "echo a recording is on; exit 21"
NO = "echo not now >&2; exit 1"


@pytest.fixture
def hooks(tmp_path: Path) -> HookDirectory:
    return HookDirectory(tmp_path / "hooks")


@pytest.fixture
def device(tmp_path: Path, hooks: HookDirectory) -> SimulatedDevice:
    """Return a device on which the old package serves, and which has no hook yet."""
    root = tmp_path / "state"
    root.mkdir()
    device = SimulatedDevice(root, hooks=hooks.settings(delay_s=DELAY_S))
    device.boot()
    device.install(1, OLD)
    return device


def name_of(state: State, moment: str) -> str:
    return f"{state.value.capitalize()}_{moment}_10_camera"


def outcome(device: SimulatedDevice, expected: SignedPackage) -> InstallReport:
    """Hold the device to what it promises; return what it reported."""
    assert device.serving.active is not None
    assert device.serving.active.digest == device.slot.current() == expected.digest
    assert device.store.state.state is State.IDLE
    assert device.hooked.waits_for() == ""
    reported = device.heard.outcomes[-1]
    assert (reported.revision, reported.active) == (2, expected.digest)
    assert reported.outcome == ("succeeded" if expected is NEW else "failed")
    return reported


def takes_the_next(device: SimulatedDevice) -> None:
    device.hook = nothing
    device.install(3, NEWER)
    assert device.heard.outcomes[-1].outcome == "succeeded"
    assert device.adaptation.active() == (NEWER.digest, "best")


def told(device: SimulatedDevice, kind: str = "hook") -> list[str]:
    return [reason for k, reason, _data in device.heard.events if k == kind]


def install(device: SimulatedDevice) -> None:
    """Install the new package, through every power cut."""
    try:
        device.install(2, NEW)
    except PowerCut:
        device.reboot()


def at(where: str, act: Callable[[], object]) -> Hook:
    def hook(at_where: str, _state: State) -> None:
        if at_where == where:
            act()

    return hook


def cut() -> None:
    raise PowerCut


def test_all_hooks_of_a_good_install_run_once_and_in_order(
    device: SimulatedDevice, hooks: HookDirectory
) -> None:
    names = [
        f"{state.value.capitalize()}_{moment}_{number}"
        for state, moment in MOMENTS
        for number in ("00", "07_first", "07_then", "50")
    ]
    hooks.add(*reversed(names[:60]))
    hooks.add("Switching_Error_00", "Reverting_Enter_00", "Reverting_Leave_00")
    device.install(2, NEW)
    outcome(device, NEW)
    assert hooks.ran == names[:60]


def test_what_a_hook_is_told(device: SimulatedDevice, hooks: HookDirectory) -> None:
    hooks.add("Switching_Enter_00", "Confirming_Leave_00", "Confirming_Error_00", answer=NO)
    hooks.answer("Switching_Enter_00", "")
    device.install(2, NEW)
    given = hooks.variables("Switching_Enter_00")
    assert {n: v for n, v in given.items() if n.startswith("EDGEFLEET_")} == {
        "EDGEFLEET_DEVICE": DEVICE, "EDGEFLEET_STATE": "switching", "EDGEFLEET_MOMENT": "enter",
        "EDGEFLEET_REVISION": "2", "EDGEFLEET_RELEASE": "digits", "EDGEFLEET_VERSION": "2.0.0",
        "EDGEFLEET_DIGEST": NEW.digest, "EDGEFLEET_REPAIR": "no",
        "EDGEFLEET_PACKAGE": str(device.root / "packages" / NEW.digest),
        "EDGEFLEET_ERROR_CODE": "", "EDGEFLEET_ERROR": "",
    }  # fmt: skip
    failed = hooks.variables("Confirming_Error_00")
    assert failed["EDGEFLEET_ERROR_CODE"] == "agent.hook"
    assert failed["EDGEFLEET_ERROR"].startswith("hook Confirming_Leave_00 says no: exit status 1")
    others = set(given) - {n for n in given if n.startswith("EDGEFLEET_")}
    assert others <= {"PATH", "HOME", "LANG", "TZ", "PWD", "SHLVL", "_", "OLDPWD"}, "few, no secret"


@pytest.mark.parametrize(("state", "moment"), MOMENTS)
def test_a_no_fails_the_install_at_that_state(
    device: SimulatedDevice, hooks: HookDirectory, state: State, moment: str
) -> None:
    name, failed = name_of(state, moment), f"{state.value.capitalize()}_Error_00"
    hooks.add(failed, "Reverting_Enter_00", "Reverting_Leave_00", "Staging_Error_00")
    hooks.add(name, answer=NO)
    device.install(2, NEW)
    reported = outcome(device, OLD)
    assert (reported.phase, reported.error_code) == (state.value, "agent.hook")
    assert reported.detail.startswith(f"hook {name} says no: exit status 1: not now; `fleet-agent")
    assert told(device) == [f"{name}: exit status 1: not now; the install fails"]
    assert hooks.ran == [name, failed, "Reverting_Enter_00", "Reverting_Leave_00"]
    hooks.answer(name, "")
    takes_the_next(device)


def test_each_of_several_vetoes_in_a_row_is_told_to_the_hooks_of_the_return(
    device: SimulatedDevice, hooks: HookDirectory
) -> None:
    names = ["Preflight_Enter_10", "Preflight_Error_00", "Reverting_Enter_00", "Reverting_Leave_00"]
    hooks.add(*names)
    hooks.answer(names[0], NO)
    for revision, package in ((2, NEW), (3, NEWER), (4, NEW)):
        hooks.forget()
        device.install(revision, package)
        assert hooks.ran == names


@pytest.mark.parametrize(("state", "moment"), MOMENTS)
def test_later_delays_the_install_while_the_old_package_serves(
    device: SimulatedDevice, hooks: HookDirectory, state: State, moment: str
) -> None:
    name, begun, asked = name_of(state, moment), Counter[State](), Counter[str]()

    def hook(where: str, here: State) -> None:
        begun[here] += where == "effect"
        if where == "waits":
            asked[device.hooked.waits_for()] += 1
            assert device.serving.active is not None, "it serves meanwhile"
            if asked.total() == 3:
                hooks.answer(name, "")

    hooks.add(name, answer=LATER)
    device.hook = hook
    device.heard.reports.clear()
    device.install(2, NEW)
    outcome(device, NEW)
    assert asked == {f"hook {name} says later: exit status 21: a recording is on": 3}
    assert {begun[each] for each in FORWARD} == {1}, "no effect is done again"
    waiting = [r for r in device.heard.reports if r.detail]
    assert {(r.outcome, r.phase, r.detail) for r in waiting} == {
        ("running", state.value, f"hook {name} says later: exit status 21: a recording is on")
    }
    assert len(waiting) == 3
    assert told(device) == [f"{name}: exit status 21: a recording is on; the install waits"]
    assert device.store.state.delayed_s == pytest.approx(3 * 60.0)


@pytest.mark.parametrize(("state", "moment"), MOMENTS)
def test_later_for_ever_ends_the_install_after_a_time(
    device: SimulatedDevice, hooks: HookDirectory, state: State, moment: str
) -> None:
    name = name_of(state, moment)
    hooks.add(name, answer=LATER)
    began_s = device.clock.monotonic_s()
    device.install(2, NEW)
    reported = outcome(device, OLD)
    assert (reported.phase, reported.error_code) == (state.value, "agent.hook.delay")
    assert "hooks have delayed the install for 5m: exit status 21: a rec" in reported.detail
    assert DELAY_S <= device.clock.monotonic_s() - began_s < DELAY_S + 60
    hooks.answer(name, "")
    takes_the_next(device)


@pytest.mark.parametrize(("state", "moment"), MOMENTS)
def test_a_power_cut_after_a_hook_runs_it_again(
    device: SimulatedDevice, hooks: HookDirectory, state: State, moment: str
) -> None:
    name, left = name_of(state, moment), [True]

    def hook(where: str, _here: State) -> None:
        if where == "logged" and left:
            left.clear()
            cut()

    hooks.add(name)
    device.hook = hook
    install(device)
    outcome(device, NEW)
    assert (device.boots, hooks.ran) == (2, [name, name])


@pytest.mark.parametrize(("state", "moment"), MOMENTS)
def test_a_hook_that_takes_the_power_each_time_ends_the_install(
    device: SimulatedDevice, hooks: HookDirectory, state: State, moment: str
) -> None:
    name = name_of(state, moment)
    hooks.add(name)
    device.hook = at("logged", cut)
    install(device)
    reported = outcome(device, OLD)
    assert (reported.phase, reported.error_code) == (state.value, "agent.attempts")
    assert hooks.ran == [name] * MAX_ATTEMPTS
    takes_the_next(device)


@pytest.mark.parametrize(("state", "moment"), MOMENTS)
def test_power_cuts_after_it_waited_win_no_time(
    device: SimulatedDevice, hooks: HookDirectory, state: State, moment: str
) -> None:
    name, counted = name_of(state, moment), [0.0]

    def hook(where: str, _here: State) -> None:
        if where == "saved" and device.store.state.delayed_s > counted[0]:
            counted[0] = device.store.state.delayed_s
            cut()

    hooks.add(name, answer=LATER)
    device.hook = hook
    install(device)
    reported = outcome(device, OLD)
    assert (reported.phase, reported.error_code) == (state.value, "agent.hook.delay")
    assert device.boots == DELAY_S / 60 + 1
    hooks.answer(name, "")
    takes_the_next(device)


@pytest.mark.parametrize(("state", "moment"), MOMENTS)
def test_power_cuts_while_it_waits_are_no_crash_loop_and_use_up_no_time(
    device: SimulatedDevice, hooks: HookDirectory, state: State, moment: str
) -> None:
    name, cuts = name_of(state, moment), itertools.count(1)

    def hook(where: str, _here: State) -> None:
        if where == "waits" and next(cuts) <= 3 * MAX_ATTEMPTS:
            cut()

    hooks.add(name, answer=LATER)
    device.hook = hook
    began_s = device.clock.monotonic_s()
    install(device)
    assert device.clock.monotonic_s() - began_s >= DELAY_S
    reported = outcome(device, OLD)
    assert (reported.phase, reported.error_code) == (state.value, "agent.hook.delay")
    assert len(hooks.ran) == 3 * MAX_ATTEMPTS + DELAY_S / 60 + 1


def test_an_effect_that_takes_the_power_ends_the_install_though_a_hook_says_later_each_time(
    device: SimulatedDevice, hooks: HookDirectory, tmp_path: Path
) -> None:
    asked, begun = tmp_path / "asked", Counter[State]()

    def hook(where: str, here: State) -> None:
        begun[here] += where == "effect"
        if where == "effect" and here is State.PROBING:
            cut()

    once = f"if [ -e {asked} ]; then rm {asked}; exit 0; fi; touch {asked}; exit 21"
    hooks.add("Probing_Enter_00", answer=once)
    device.hook = hook
    install(device)
    reported = outcome(device, OLD)
    assert (reported.phase, reported.error_code) == ("probing", "agent.attempts")
    assert begun[State.PROBING] == MAX_ATTEMPTS
    takes_the_next(device)


def test_a_wait_that_is_ended_counts_for_as_long_as_it_was(
    device: SimulatedDevice, hooks: HookDirectory
) -> None:
    slices = itertools.count(1)
    sleep = device.clock.sleep

    def slept(duration_s: float) -> None:
        sleep(duration_s)
        if device.hooked.waits_for() and next(slices) == 50:  # of 0.2 s
            device.interrupts.stop()

    device.clock.sleep = slept  # type: ignore[method-assign]
    hooks.add("Switching_Enter_00", answer=LATER)
    with pytest.raises(StoppedError):
        device.install(2, NEW)
    assert 5 < device.store.state.delayed_s < 15


def test_power_cut_at_every_single_port_call(tmp_path: Path) -> None:
    for number in itertools.count():
        place = tmp_path / str(number)
        (place / "state").mkdir(parents=True)
        hooks = HookDirectory(place)
        device = SimulatedDevice(place / "state", hooks=hooks.settings())
        device.boot()
        device.install(1, OLD)
        hooks.add("Switching_Enter_00", "Confirming_Error_00", "Reverting_Leave_00")
        hooks.add("Confirming_Leave_00", answer=NO)
        left = [number]

        def hook(_where: str, _at: State, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == -1:
                raise PowerCut

        device.hook = hook
        install(device)
        if device.boots == 1:
            break
        device.install(2, NEW)  # the controller says it again on connect
        assert outcome(device, OLD).error_code == "agent.hook"
        assert list(dict.fromkeys(hooks.ran)) == [
            "Switching_Enter_00", "Confirming_Leave_00", "Confirming_Error_00",
            "Reverting_Leave_00",
        ]  # fmt: skip
        assert max(Counter(hooks.ran).values()) <= 2
    assert number > 30


@pytest.mark.parametrize(("state", "moment"), BEFORE_CONFIRMING)
def test_a_newer_desired_state_takes_the_place_of_an_install_that_waits(
    device: SimulatedDevice, hooks: HookDirectory, state: State, moment: str
) -> None:
    name = name_of(state, moment)
    hooks.add("Reverting_Leave_00")
    hooks.add(name, answer=LATER)
    device.hook = at("waits", device.interrupts.supersede)
    device.heard.reports.clear()
    device.install(2, NEW)
    assert device.heard.outcomes == [], "the controller asked for something else"
    assert device.adaptation.active() == (OLD.digest, "best")
    assert hooks.ran == [name, "Reverting_Leave_00"]
    device.interrupts.clear_superseded()
    hooks.answer(name, "")
    takes_the_next(device)


@pytest.mark.parametrize("moment", ["Enter", "Leave"])
def test_what_has_switched_is_confirmed_before_anything_newer(
    device: SimulatedDevice, hooks: HookDirectory, moment: str
) -> None:
    name = name_of(State.CONFIRMING, moment)

    def act() -> None:
        device.interrupts.supersede()
        hooks.answer(name, "")

    hooks.add(name, answer=LATER)
    device.hook = at("waits", act)
    device.install(2, NEW)
    outcome(device, NEW)


@pytest.mark.parametrize(("state", "moment"), MOMENTS)
def test_a_stop_ends_the_wait_and_the_next_start_asks_again(
    device: SimulatedDevice, hooks: HookDirectory, state: State, moment: str
) -> None:
    name = name_of(state, moment)
    hooks.add(name, answer=LATER)
    device.hook = at("waits", device.interrupts.stop)
    with pytest.raises(StoppedError):
        device.install(2, NEW)
    device.hook = nothing
    device.lose_power()
    device.boot()
    hooks.answer(name, "")
    device.machine.run()
    outcome(device, NEW)
    assert hooks.ran == [name, name]


@pytest.mark.parametrize(("state", "moment"), MOMENTS)
@pytest.mark.parametrize("answer", [NO, LATER], ids=["no", "later"])
def test_the_operator_overrides_the_hooks_of_one_install(
    device: SimulatedDevice, hooks: HookDirectory, state: State, moment: str, answer: str
) -> None:
    name = name_of(state, moment)
    hooks.add(name, answer=answer)
    device.override.allow(3600)
    device.install(2, NEW)
    outcome(device, NEW)
    assert hooks.ran == [name], "it still runs"
    assert told(device)[0].endswith("; the operator overrides it")
    device.install(3, NEWER)
    assert device.heard.outcomes[-1].error_code in {"agent.hook", "agent.hook.delay"}


def test_an_override_ends_a_wait_at_once(device: SimulatedDevice, hooks: HookDirectory) -> None:
    hooks.add("Switching_Enter_00", answer=LATER)
    device.hook = at("waits", lambda: device.override.allow(60))
    began_s = device.clock.monotonic_s()
    device.install(2, NEW)
    outcome(device, NEW)
    assert device.clock.monotonic_s() - began_s < 60, "it does not wait for the next time"
    assert told(device, "override")


def test_a_hook_that_is_taken_away_holds_nothing_any_more(
    device: SimulatedDevice, hooks: HookDirectory
) -> None:
    left = ["Switching_Enter_00", "Switching_Enter_01"]

    def take_away() -> None:
        (hooks.path / left.pop(0)).unlink()

    hooks.add(*left, answer=LATER)
    device.hook = at("waits", take_away)
    device.install(2, NEW)
    outcome(device, NEW)
    assert hooks.ran == ["Switching_Enter_00", "Switching_Enter_01"]
    assert [text.partition(":")[0] for text in told(device)] == hooks.ran


def test_a_hook_may_be_edited_while_an_install_waits_for_it(
    device: SimulatedDevice, hooks: HookDirectory
) -> None:
    swap, name = hooks.path / ".Switching_Enter_00.swp", "Switching_Enter_00"
    waits: list[str] = []

    def edit() -> None:
        waits.append(device.hooked.waits_for())
        if len(waits) == 1:
            swap.touch()
        elif len(waits) == 3:
            swap.unlink()
            hooks.answer(name, "")

    hooks.add(name, answer=LATER)
    device.hook = at("waits", edit)
    device.install(2, NEW)
    outcome(device, NEW)
    assert hooks.ran == [name, name], "none runs meanwhile"
    assert waits[0].startswith(f"hook {name} says later")
    assert waits[1] == waits[2]
    assert waits[1].startswith(f"the install waits: no hook runs because of {swap}: its name is")
    assert told(device)[1:] == [waits[1]]
    assert device.store.state.delayed_s == pytest.approx(3 * 60.0)


def test_an_override_does_not_cover_an_edit_and_waits_for_its_end(
    device: SimulatedDevice, hooks: HookDirectory
) -> None:
    swap, waits = hooks.path / ".Switching_Enter_00.swp", itertools.count(1)

    def edit() -> None:
        number = next(waits)
        if number == 1:
            swap.touch()
        elif number == 2:
            device.override.allow(3600)
        else:
            swap.unlink()

    hooks.add("Switching_Enter_00", answer=LATER)
    device.hook = at("waits", edit)
    device.install(2, NEW)
    outcome(device, NEW)
    assert next(waits) == 4


def test_a_hook_that_becomes_unsafe_while_it_is_waited_for_runs_no_more(
    device: SimulatedDevice, hooks: HookDirectory
) -> None:
    hooks.add("Switching_Enter_00", answer=LATER)
    device.hook = at("waits", lambda: (hooks.path / "Switching_Enter_00").chmod(0o777))
    began_s = device.clock.monotonic_s()
    device.install(2, NEW)
    assert outcome(device, OLD).error_code == "agent.hook.files"
    assert hooks.ran == ["Switching_Enter_00"]
    assert device.clock.monotonic_s() - began_s >= DELAY_S


@pytest.mark.parametrize("answer", [NO, LATER, "kill -KILL $$"])
def test_nothing_holds_up_the_return_to_the_previous_package(
    device: SimulatedDevice, hooks: HookDirectory, answer: str
) -> None:
    names = ["Probing_Error_00", "Reverting_Enter_00", "Reverting_Leave_00"]
    hooks.add(*names, "Reverting_Error_00", answer=answer)
    device.bad_golden.add("new best")
    device.install(2, NEW)
    assert outcome(device, OLD).error_code == "agent.golden"
    assert hooks.ran == names
    assert [text.rpartition("; ")[2] for text in told(device)] == ["its answer changes nothing"] * 3


def test_hooks_tell_of_a_return_that_fails(device: SimulatedDevice, hooks: HookDirectory) -> None:
    def hook(where: str, here: State) -> None:
        if where == "effect" and here is State.REVERTING:
            raise AgentError("no")

    hooks.add("Reverting_Error_00", "Reverting_Leave_00")
    device.bad_golden.add("new best")
    device.hook = hook
    device.install(2, NEW)
    assert outcome(device, OLD).error_code == "agent.golden"
    assert hooks.ran == ["Reverting_Error_00"]


def test_a_file_that_is_no_hook_stops_the_install_before_anything_is_fetched(
    device: SimulatedDevice, hooks: HookDirectory
) -> None:
    hooks.add("Preflight_Enter_00", "Reverting_Enter_00")
    (hooks.path / "Swiching_Enter_00").touch(0o755)
    device.install(2, NEW)
    reported = outcome(device, OLD)
    assert (reported.phase, reported.error_code) == ("preflight", "agent.hook.files")
    assert f"because of {hooks.path}/Swiching_Enter_00: its name is" in reported.detail
    assert hooks.ran == []
    assert not device.slots.has(NEW.digest)
    (hooks.path / "Swiching_Enter_00").unlink()
    takes_the_next(device)


def test_a_name_that_is_no_unicode_fails_the_install_and_is_told(
    device: SimulatedDevice, hooks: HookDirectory
) -> None:
    strange = Path(os.fsdecode(os.fsencode(hooks.path) + b"/caf\xe9"))
    strange.touch(0o755)
    look_at_hooks(device.hooks.directory, device.heard)
    device.install(2, NEW)
    reported = outcome(device, OLD)
    assert (reported.phase, reported.error_code) == ("preflight", "agent.hook.files")
    for text in (reported.detail, *told(device)):
        assert rf"because of {hooks.path}/caf\xe9: its name is" in text
        assert text.encode(), "every message can hold it"
    strange.unlink()
    takes_the_next(device)


def test_an_operator_cannot_override_what_must_not_be_run(
    device: SimulatedDevice, hooks: HookDirectory
) -> None:
    hooks.add("Switching_Enter_00")
    (hooks.path / "Switching_Enter_00").chmod(0o777)
    device.override.allow(60)
    device.install(2, NEW)
    assert outcome(device, OLD).error_code == "agent.hook.files"
    assert hooks.ran == []


def test_a_lost_directory_is_a_fault_and_not_no_hooks(
    device: SimulatedDevice, hooks: HookDirectory
) -> None:
    hooks.path.rmdir()
    look_at_hooks(device.hooks.directory, device.heard)
    assert "no such file or directory" in told(device)[0]
    device.install(2, NEW)
    assert outcome(device, OLD).error_code == "agent.hook.files"


def test_enter_hooks_run_once_while_the_effect_is_tried_again(
    device: SimulatedDevice, hooks: HookDirectory
) -> None:
    faults = [1, 1, 1]

    def hook(where: str, here: State) -> None:
        if where == "effect" and here is State.FETCHING and faults:
            faults.pop()
            raise FetchError("not now")

    hooks.add("Fetching_Enter_00", "Fetching_Leave_00")
    device.hook = hook
    device.install(2, NEW)
    outcome(device, NEW)
    assert not faults
    assert hooks.ran == ["Fetching_Enter_00", "Fetching_Leave_00"]


def test_a_repair_asks_too_and_the_hook_knows(
    device: SimulatedDevice, hooks: HookDirectory
) -> None:
    hooks.add("Preflight_Enter_00")
    (device.slots.directory(OLD.digest) / MANIFEST_FILE).unlink()
    device.reboot()
    assert device.machine.repair()
    device.machine.run()
    assert hooks.variables("Preflight_Enter_00")["EDGEFLEET_REPAIR"] == "yes"


def test_an_override_ends_with_its_install_and_covers_no_repair(
    device: SimulatedDevice, hooks: HookDirectory
) -> None:
    hooks.add("Switching_Enter_00", answer=NO)
    device.override.allow(8 * 3600)
    device.install(2, NEW)
    outcome(device, NEW)
    assert device.override.rest_s is None
    assert not device.override.covers(("digits", 2)), "a repair has the same revision"
