"""Installs that wait for their hours or for the battery, on a device whose power can be cut."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta, timezone
from pathlib import Path

import pytest

from agent.errors import StoppedError
from agent.install.conditions import ConditionSettings, low_battery
from agent.install.states import State
from agent.install.workflow import MAX_ATTEMPTS
from tests.simulators.device import Hook, PowerCut, SimulatedDevice, nothing
from tests.simulators.hooks import HookDirectory
from tests.simulators.packages import SignedPackage, two_variants
from wire.health import HealthSnapshot
from wire.installs import InstallReport

OLD = two_variants("1.0.0", best="old best", small="old small")
NEW = two_variants("2.0.0", best="new best", small="new small")
NEWER = two_variants("3.0.0", best="newer best", small="newer small")
HOUR_S = 3600.0
BERLIN = timezone(timedelta(hours=2))
NIGHT = ConditionSettings(window="18:00-04:00")
WAITS = "no install begins outside 18:00-04:00; it goes on at 2025-06-15 18:00 +0200"
BEFORE_NIGHT_S = 3200.0
"""The simulated clock begins on 2025-06-15 at 17:06:40 in Berlin."""


class Rig:
    """A device in Berlin, in the afternoon, on which the old package serves."""

    def __init__(self, root: Path, **settings: object) -> None:
        root.mkdir()
        self.hooks = HookDirectory(root.parent / "of-hooks")
        self.device = SimulatedDevice(root, hooks=self.hooks.settings(delay_s=300.0), zone=BERLIN)
        self.device.boot()
        self.device.install(1, OLD)
        self.device.conditions = ConditionSettings(**settings)  # type: ignore[arg-type]
        self.restart()
        self.device.heard.reports.clear()
        self.began_s = self.device.clock.monotonic_s()

    def restart(self) -> None:
        self.device.lose_power()
        self.device.boot()

    @property
    def waited_s(self) -> float:
        return self.device.clock.monotonic_s() - self.began_s

    def waits(self) -> list[InstallReport]:
        return [r for r in self.device.heard.reports if r.outcome == "running" and r.detail]

    def serves(self, expected: SignedPackage, *, outcome: str = "succeeded") -> None:
        device = self.device
        assert device.serving.active is not None
        assert device.serving.active.digest == device.slot.current() == expected.digest
        assert device.heard.outcomes[-1].outcome == outcome
        assert (device.store.state.state, device.hooked.waits_for()) == (State.IDLE, "")


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "state", window=NIGHT.window)


def when_it_waits(act: Callable[[], object]) -> Hook:
    def hook(where: str, _state: State) -> None:
        if where == "waits":
            act()

    return hook


def test_an_install_waits_for_its_hours_and_says_until_when(rig: Rig) -> None:
    asked: list[int] = []
    rig.device.hook = when_it_waits(lambda: asked.append(len(rig.device.server.sent)))
    rig.device.server.sent.clear()
    rig.device.install(2, NEW)
    rig.serves(NEW)
    assert rig.waited_s == pytest.approx(BEFORE_NIGHT_S, abs=60)
    assert {(r.phase, r.detail) for r in rig.waits()} == {("preflight", WAITS)}
    assert len(rig.waits()) == 4, "every quarter of an hour: a report may be lost"
    assert set(asked) == {0}, "not one byte comes before"
    assert rig.device.store.state.delayed_s == 0.0, "it counts for no hook"
    told = [(k, reason) for k, reason, _ in rig.device.heard.events if k == "defer"]
    assert told == [("defer", WAITS)]


def test_within_its_hours_it_begins_at_once_and_goes_on_after_them(rig: Rig) -> None:
    rig.device.clock.advance(10.8 * HOUR_S)  # 03:54
    rig.device.confirm_s = HOUR_S
    rig.restart()
    rig.began_s = rig.device.clock.monotonic_s()
    rig.device.install(2, NEW)
    rig.serves(NEW)
    assert rig.waits() == []
    assert HOUR_S <= rig.waited_s < 2 * HOUR_S


def test_hooks_are_asked_when_it_begins_and_again_if_they_delay_it_beyond_the_window(
    rig: Rig,
) -> None:
    rig.device.clock.advance(10.87 * HOUR_S)  # 03:58
    rig.hooks.add("Preflight_Enter_10", answer="exit 21")
    asked: list[str] = []

    def note() -> None:
        if why := rig.device.hooked.waits_for():
            asked.append(why)
        if len(asked) == 4:
            rig.hooks.answer("Preflight_Enter_10", "")

    rig.device.hook = when_it_waits(note)
    rig.device.install(2, NEW)
    rig.serves(NEW)
    assert len(rig.hooks.ran) == 6, "five times at four o'clock, and once more at night"
    assert [("hook" in why) for why in asked[:5]] == [True] * 4 + [False]
    assert asked[-1].endswith("it goes on at 2025-06-16 18:00 +0200")
    assert rig.device.store.state.delayed_s == pytest.approx(4 * 60.0)


def test_the_operator_overrides_the_wait_of_one_install(rig: Rig) -> None:
    rig.device.hook = when_it_waits(lambda: rig.device.override.allow(HOUR_S))
    rig.device.install(2, NEW)
    rig.serves(NEW)
    assert rig.waited_s < 60
    assert rig.device.override.rest_s is None, "it holds for no other"


def test_a_newer_desired_state_ends_the_wait(rig: Rig) -> None:
    rig.device.hook = when_it_waits(rig.device.interrupts.supersede)
    rig.device.install(2, NEW)
    assert rig.device.heard.outcomes == []
    assert rig.device.adaptation.active() == (OLD.digest, "best")
    rig.device.interrupts.clear_superseded()
    rig.device.hook = nothing
    rig.device.install(3, NEWER)
    rig.serves(NEWER)


def test_restarts_and_power_cuts_while_it_waits_are_no_crash_loop(rig: Rig) -> None:
    cuts = iter(range(2 * MAX_ATTEMPTS))

    def cut() -> None:
        if next(cuts, None) is not None:
            raise PowerCut

    rig.device.hook = when_it_waits(cut)
    with pytest.raises(PowerCut):
        rig.device.install(2, NEW)
    rig.device.reboot()
    rig.serves(NEW)
    assert rig.waited_s == pytest.approx(BEFORE_NIGHT_S, abs=60)


def test_a_stop_ends_the_wait_and_the_next_start_goes_on_with_it(rig: Rig) -> None:
    rig.device.hook = when_it_waits(rig.device.interrupts.stop)
    with pytest.raises(StoppedError):
        rig.device.install(2, NEW)
    rig.device.hook = nothing
    rig.restart()
    rig.device.machine.run()
    rig.serves(NEW)


def test_a_clock_that_is_set_is_believed(rig: Rig) -> None:
    rig.device.hook = when_it_waits(lambda: rig.device.clock.correct(2 * HOUR_S))
    rig.device.install(2, NEW)
    rig.serves(NEW)
    assert rig.waited_s < 120


def test_the_repair_of_a_lost_release_never_waits(rig: Rig) -> None:
    model = rig.device.slots.directory(OLD.digest) / "variants/best/model.json"
    model.write_bytes(b"lost")
    rig.restart()
    assert rig.device.machine.repair()
    rig.device.machine.run()
    rig.serves(OLD)
    assert rig.waits() == []


def test_the_way_back_to_the_release_before_never_waits(rig: Rig) -> None:
    rig.device.override.allow(HOUR_S)
    rig.device.install(2, NEW)
    rig.serves(NEW)
    rig.device.install(3, OLD)
    rig.serves(OLD)
    assert rig.waits() == []


def test_a_bad_release_is_reverted_outside_the_window(rig: Rig) -> None:
    rig.device.override.allow(HOUR_S)
    rig.device.bad_golden.add("new best")
    rig.device.install(2, NEW)
    rig.serves(OLD, outcome="failed")
    assert rig.waits() == []


def test_an_install_waits_for_the_battery(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "state", min_battery_percent=30)
    charge = [0.14]

    def load() -> None:
        rig.device.adaptation.note(
            HealthSnapshot(
                at_s=0,
                memory_available_bytes=2**30,
                battery_ratio=charge[0],
                battery_discharging=True,
            )
        )
        charge[0] += 0.08

    load()
    rig.device.hook = when_it_waits(load)
    rig.device.install(2, NEW)
    rig.serves(NEW)
    assert [r.detail for r in rig.waits()] == [
        f"the battery has {percent} %, and no install begins below 30 %; it goes on when the "
        "battery is charged or on mains"
        for percent in (14, 22)
    ]


@pytest.mark.parametrize(
    ("ratio", "discharging", "waits"),
    [
        (0.29, True, True),
        (0.30, True, False),
        (0.29, None, True),
        (0.29, False, False),
        (None, None, False),
        (None, True, False),
        (0.0, False, False),
    ],
)
def test_a_battery_counts_while_it_is_in_use(
    ratio: float | None, discharging: bool | None, waits: bool
) -> None:
    health = HealthSnapshot(at_s=0, battery_ratio=ratio, battery_discharging=discharging)
    assert (low_battery(30, health) is not None) is waits
    assert low_battery(0, health) is None
