"""The crash table: every state, every kind of end, and what the device does after it.

After any fault the device serves the new verified package or the previous one, says which, has
never served anything else, and has begun no step more often than the limit. A second model beside
the one that is installed serves on, with all that it had.
"""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest

from agent.errors import AgentError, FetchError, StorageFullError
from agent.install.states import State
from agent.install.store import COPY_FILE, FLOOR_FILE, STATE_FILE
from agent.install.workflow import MAX_ATTEMPTS
from tests.simulators.device import FORWARD, Hook, PowerCut, SimulatedDevice, nothing
from tests.simulators.packages import SignedPackage, package, two_variants, variant

EVERY = [*FORWARD, State.REVERTING]
OLD = two_variants("1.0.0", best="old best", small="old small")
NEW = two_variants("2.0.0", best="new best", small="new small")
OTHER = package("1.0.0", [(variant("only", memory_bytes=512), b"speech")], name="speech")
GOOD = {b"old best", b"old small", b"new best", b"new small", b"speech"}


@pytest.fixture(params=["alone", "beside another model"])
def device(request: pytest.FixtureRequest, tmp_path: Path) -> SimulatedDevice:
    """Return a device on which the old package serves, alone or beside another model."""
    is_alone = request.param == "alone"
    device = SimulatedDevice(tmp_path, names=("digits",) if is_alone else ("digits", "speech"))
    device.boot()
    if not is_alone:
        device.install(1, OTHER)
    device.install(1, OLD)
    assert device.adaptation.active() == (OLD.digest, "best")
    return device


def begin(device: SimulatedDevice, state: State) -> None:
    """Offer the new package; for `reverting` one that fails its golden test."""
    if state is State.REVERTING:
        device.bad_golden.add("new best")
    try:
        device.install(2, NEW)
    except PowerCut:
        device.reboot()


def check(device: SimulatedDevice, expected: SignedPackage, *, is_recorded: bool = True) -> None:
    """Hold the device to what it promises."""
    active = device.serving.active
    assert active is not None
    assert active.digest == expected.digest
    assert device.slot.current() == expected.digest
    assert set(device.served) <= GOOD
    assert device.store.state.state is State.IDLE
    check_other(device, is_recorded=is_recorded)
    outcome = device.heard.outcomes[-1]
    assert outcome.revision == 2
    assert outcome.active == expected.digest
    assert outcome.outcome == ("succeeded" if expected is NEW else "failed")
    assert device.serving.running == 1
    # The device still takes what comes next.
    device.hook = nothing
    device.bad_golden.clear()
    device.install(3, NEW)
    assert device.heard.outcomes[-1].outcome == "succeeded"
    assert device.adaptation.active() == (NEW.digest, "best")


def check_other(device: SimulatedDevice, *, is_recorded: bool) -> None:
    """The other model, if there is one, is as it was."""
    other = device.models.get("speech")
    if other is None:
        return
    assert other.adaptation.active() == (OTHER.digest, "only")
    assert other.slot.current() == OTHER.digest
    for path, content in OTHER.files.items():
        assert (device.slots.directory(OTHER.digest) / path).read_bytes() == content
    if not is_recorded:
        return
    record = other.store.state
    assert (record.revision, record.state, record.previous) == (1, State.IDLE, None)
    assert record.report is not None
    assert record.report.outcome == "succeeded"


def keep_rejected(device: SimulatedDevice) -> None:
    """Leave what a return leaves that could write nothing: the package, and the link to it."""
    directory = device.root / "packages" / NEW.digest
    NEW.write_to(directory)
    device.slot.switch(NEW.digest)


def expected_after_cut(state: State) -> SignedPackage:
    return OLD if state is State.REVERTING else NEW


def cut_once(where: str, state: State) -> Hook:
    """Cut the power the first time that the device is there."""
    left = [True]

    def hook(at_where: str, at_state: State) -> None:
        if left and (at_where, at_state) == (where, state):
            left.clear()
            raise PowerCut

    return hook


@pytest.mark.parametrize("state", EVERY)
@pytest.mark.parametrize("where", ["effect", "effected"])
def test_power_cut_around_the_effect(device: SimulatedDevice, state: State, where: str) -> None:
    device.hook = cut_once(where, state)
    begin(device, state)
    assert device.boots == 2
    check(device, expected_after_cut(state))


@pytest.mark.parametrize("state", EVERY)
@pytest.mark.parametrize("where", ["save", "saved"])
def test_power_cut_around_the_save(device: SimulatedDevice, state: State, where: str) -> None:
    device.server.add(*NEW.blobs)
    device.hook = cut_once(where, state)
    begin(device, state)
    assert device.boots == 2
    # Before the first save the desired state was never accepted: the controller says it again.
    device.install(2, NEW)
    check(device, expected_after_cut(state))


FILES = (FLOOR_FILE, COPY_FILE, STATE_FILE)


@pytest.mark.few(32)
@pytest.mark.parametrize("state", EVERY)
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("where", ["write", "written"])
def test_power_cut_around_the_write_of_each_file(
    device: SimulatedDevice, state: State, file: str, where: str
) -> None:
    device.server.add(*NEW.blobs)
    device.hook = cut_once(f"{where} {file}", state)
    begin(device, state)
    if file == STATE_FILE or (state is State.PREFLIGHT and file == COPY_FILE):
        assert device.boots == 2
    assert not device.faults
    # Before the first save the desired state was never accepted: the controller says it again.
    device.install(2, NEW)
    check(device, expected_after_cut(state))


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("where", ["write", "written"])
def test_power_cut_while_a_desired_state_is_saved(
    device: SimulatedDevice, file: str, where: str
) -> None:
    device.server.add(*NEW.blobs)
    device.hook = cut_once(f"{where} {file}", State.IDLE)
    begin(device, State.PREFLIGHT)
    assert device.boots == 2
    assert not device.faults
    assert device.adaptation.active() == (OLD.digest, "best")
    device.install(2, NEW)
    check(device, NEW)


@pytest.mark.parametrize("state", EVERY)
@pytest.mark.parametrize("file", [COPY_FILE, STATE_FILE])
def test_power_cut_that_damages_a_record(device: SimulatedDevice, state: State, file: str) -> None:
    device.hook = cut_once("effected", state)
    if state is State.REVERTING:
        device.bad_golden.add("new best")
    with pytest.raises(PowerCut):
        device.install(2, NEW)
    (device.root / file).write_bytes(b"\0" * 64)
    device.lose_power()
    device.boot()
    assert device.faults == (f"{file} was damaged; what the other files hold is used",)
    assert (device.store.state.revision, device.files.floor) == (2, 2)
    device.machine.run()
    check(device, expected_after_cut(state))


@pytest.mark.parametrize("state", EVERY)
@pytest.mark.parametrize(
    "files", [(STATE_FILE, COPY_FILE), (FLOOR_FILE,)], ids=["records", "floor"]
)
def test_power_cut_that_damages_every_record_or_the_floor(
    device: SimulatedDevice, state: State, files: tuple[str, ...]
) -> None:
    device.hook = cut_once("effected", state)
    if state is State.REVERTING:
        device.bad_golden.add("new best")
    with pytest.raises(PowerCut):
        device.install(2, NEW)
    for file in files:
        (device.root / file).write_bytes(b"\0" * 64)
    device.lose_power()
    device.boot()
    assert (device.store.state.revision, device.files.floor, device.files.lost) == (0, 2, True)
    assert device.serving.active is not None, "what is on the device serves"
    assert set(device.served) <= GOOD
    device.hook = nothing
    device.install(2, NEW)
    check(device, expected_after_cut(state), is_recorded=False)


@pytest.mark.parametrize("where", ["save", "saved"])
@pytest.mark.parametrize("good", [True, False], ids=["good-package", "bad-package"])
def test_power_cut_around_the_save_of_the_outcome(
    device: SimulatedDevice, where: str, *, good: bool
) -> None:
    device.hook = cut_once(where, State.IDLE)
    begin(device, State.CONFIRMING if good else State.REVERTING)
    assert device.boots == 2
    # What was saved but not told is told when the same desired state comes again.
    device.install(2, NEW)
    check(device, NEW if good else OLD)


@pytest.mark.parametrize("state", FORWARD)
def test_permanent_error(device: SimulatedDevice, state: State) -> None:
    def hook(where: str, at: State) -> None:
        if where == "effect" and at is state:
            raise AgentError("no")

    device.hook = hook
    begin(device, state)
    outcome = device.heard.outcomes[-1]
    assert (outcome.phase, outcome.error_code, outcome.detail) == (state.value, "agent", "no")
    check(device, OLD)


@pytest.mark.parametrize("state", FORWARD)
def test_retryable_error_that_passes(device: SimulatedDevice, state: State) -> None:
    faults = [1, 1, 1]

    def hook(where: str, at: State) -> None:
        if where == "effect" and at is state and faults:
            faults.pop()
            raise FetchError("not now")

    device.hook = hook
    begin(device, state)
    assert not faults
    check(device, NEW)


@pytest.mark.parametrize("state", FORWARD)
def test_retryable_error_that_stays(device: SimulatedDevice, state: State) -> None:
    begun: Counter[State] = Counter()

    def hook(where: str, at: State) -> None:
        if where == "effect":
            begun[at] += 1
            if at is state:
                raise FetchError("not now")

    device.hook = hook
    begin(device, state)
    assert begun[state] == MAX_ATTEMPTS
    assert device.heard.outcomes[-1].error_code == "agent.fetch"
    check(device, OLD)


@pytest.mark.parametrize("state", FORWARD)
def test_restart_loop(device: SimulatedDevice, state: State) -> None:
    begun: Counter[State] = Counter()

    def hook(where: str, at: State) -> None:
        if where == "effect":
            begun[at] += 1
            if at is state:
                raise PowerCut

    device.hook = hook
    begin(device, state)
    assert begun[state] == MAX_ATTEMPTS
    outcome = device.heard.outcomes[-1]
    assert (outcome.error_code, outcome.phase) == ("agent.attempts", state.value)
    check(device, OLD)


def test_restart_loop_while_reverting_ends_too(device: SimulatedDevice) -> None:
    begun: Counter[State] = Counter()

    def hook(where: str, at: State) -> None:
        if where == "effect":
            begun[at] += 1
            if at is State.REVERTING:
                raise PowerCut

    device.hook = hook
    begin(device, State.REVERTING)
    assert begun[State.REVERTING] == MAX_ATTEMPTS
    assert device.heard.outcomes[-1].error_code == "agent.golden"
    check(device, OLD)


def test_the_return_is_tried_again_when_the_storage_fails(device: SimulatedDevice) -> None:
    faults = [1, 1]

    def hook(where: str, at: State) -> None:
        if (where, at) == ("effect", State.REVERTING) and faults:
            faults.pop()
            raise StorageFullError("no space left")

    device.heard.road = itertools.cycle([False])  # who is away must not wait for a connection
    device.hook = hook
    begin(device, State.REVERTING)
    assert not faults
    check(device, OLD)


def test_a_rejected_package_does_not_serve_although_current_still_names_it(
    device: SimulatedDevice,
) -> None:
    begin(device, State.REVERTING)
    keep_rejected(device)
    device.reboot()
    assert device.boots == 2
    check(device, OLD)


def test_a_rejected_package_without_one_before_does_not_serve_after_a_restart(
    tmp_path: Path,
) -> None:
    device = SimulatedDevice(tmp_path)
    device.boot()
    device.bad_golden.add("new best")
    device.install(1, NEW)
    keep_rejected(device)
    device.served.clear()
    device.reboot()
    assert device.serving.active is None
    assert not device.served
    device.bad_golden.clear()
    device.install(2, NEW)
    assert device.adaptation.active() == (NEW.digest, "best")


@pytest.mark.few(1)
@pytest.mark.parametrize("good", [True, False], ids=["good-package", "bad-package"])
def test_power_cut_at_every_single_port_call(tmp_path: Path, *, good: bool) -> None:
    """Cut at the first call of any port, then at the second, and so on to the end."""
    number = 0
    while True:
        device = SimulatedDevice(tmp_path / str(number))
        device.root.mkdir()
        device.boot()
        device.install(1, OLD)
        calls = [0]

        def hook(_where: str, _at: State, calls: list[int] = calls, last: int = number) -> None:
            calls[0] += 1
            if calls[0] == last + 1:
                raise PowerCut

        device.hook = hook
        if not good:
            device.bad_golden.add("new best")
        try:
            device.install(2, NEW)
        except PowerCut:
            device.reboot()
        if device.boots == 1:
            break
        device.install(2, NEW)  # the controller says it again on connect
        if device.store.state.revision == 2:
            check(device, NEW if good else OLD)
        number += 1
    assert number > 30
