"""A release whose first variant serves before the others have come."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.errors import FetchError
from agent.install.states import State
from agent.install.workflow import REPAIR_MIN_S
from tests.simulators.device import PowerCut, SimulatedDevice, nothing
from tests.simulators.packages import desired, two_variants

OLD = two_variants("1.0.0", best="old best", small="old small")
NEW = two_variants("2.0.0", best="new best", small="new small")


@pytest.fixture
def device(tmp_path: Path) -> SimulatedDevice:
    """Return a device on which the old package serves."""
    device = SimulatedDevice(tmp_path)
    device.boot()
    device.install(1, OLD)
    device.serve_early = True
    device.boot()
    return device


def has_come(device: SimulatedDevice, name: str) -> bool:
    return (device.slots.directory(NEW.digest) / f"variants/{name}/model.json").exists()


def usable(device: SimulatedDevice) -> list[str]:
    return [each.name for each in device.adaptation.candidates()]


def outcome(device: SimulatedDevice) -> str:
    return device.heard.outcomes[-1].outcome


def rest(device: SimulatedDevice) -> bool:
    """Look once, as the install thread does; do what is to be done."""
    begun = device.machine.repair()
    device.machine.run()
    return begun


def test_the_first_variant_serves_and_then_the_others_come(device: SimulatedDevice) -> None:
    device.install(2, NEW)
    report = device.heard.outcomes[-1]
    assert (report.outcome, report.variant, report.active) == ("succeeded", "best", NEW.digest)
    assert (has_come(device, "best"), has_come(device, "small")) == (True, False)
    assert usable(device) == ["best"]
    calls = device.serving.calls.count("activate")
    assert rest(device)
    assert (has_come(device, "small"), usable(device)) == (True, ["best", "small"])
    assert device.serving.calls.count("activate") == calls, "what serves is not disturbed"
    assert outcome(device) == "succeeded"
    reasons = [reason for kind, reason, _ in device.heard.events if kind == "install"]
    assert "digits:2.0.0 serves; its other variants come now" in reasons
    assert not rest(device)


def test_a_restart_before_the_rest_serves_the_first(device: SimulatedDevice) -> None:
    device.install(2, NEW)
    device.reboot()
    assert device.adaptation.active() == (NEW.digest, "best")
    assert usable(device) == ["best"]
    assert rest(device)
    assert usable(device) == ["best", "small"]


def test_a_rest_that_does_not_come_leaves_what_serves_and_is_tried_again(
    device: SimulatedDevice,
) -> None:
    device.install(2, NEW)

    def fail(where: str, state: State) -> None:
        if (where, state) == ("effect", State.FETCHING):
            raise FetchError("not now")

    device.hook = fail
    assert rest(device)
    assert device.adaptation.active() == (NEW.digest, "best")
    assert outcome(device) == "failed"
    device.hook = nothing
    device.reboot()
    assert usable(device) == ["best"]
    device.clock.advance(2 * REPAIR_MIN_S)
    assert rest(device)
    assert usable(device) == ["best", "small"]
    assert outcome(device) == "succeeded"


def test_a_newer_release_replaces_one_of_which_only_a_part_is_here(
    device: SimulatedDevice,
) -> None:
    device.install(2, NEW)
    device.install(3, two_variants("3.0.0", best="third best", small="third small"))
    assert outcome(device) == "succeeded"
    assert device.store.state.previous == NEW.digest
    assert device.served[-1] == b"third best"


def test_a_failed_successor_returns_to_the_part_that_served(device: SimulatedDevice) -> None:
    device.install(2, NEW)
    device.bad_golden.add("third best")
    device.install(3, two_variants("3.0.0", best="third best", small="third small"))
    assert outcome(device) == "failed"
    assert device.adaptation.active() == (NEW.digest, "best")


def test_a_package_that_is_here_as_a_whole_is_installed_as_a_whole(
    device: SimulatedDevice,
) -> None:
    device.install(2, NEW)
    rest(device)
    device.install(3, OLD)
    assert not device.store.state.partial
    assert usable(device) == ["best", "small"]


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("where", ["effect", "effected", "save", "saved"])
@pytest.mark.parametrize("second", [False, True], ids=["first", "rest"])
def test_a_power_cut_at_any_point(
    device: SimulatedDevice, state: State, where: str, *, second: bool
) -> None:
    if second:
        device.install(2, NEW)

    def hook(at: str, now: State) -> None:
        if (at, now) == (where, state):
            device.hook = nothing
            raise PowerCut

    device.hook = hook
    try:
        if second:
            rest(device)
        else:
            device.install(2, NEW)
    except PowerCut:
        device.reboot()
    device.hook = nothing
    device.machine.accept(*desired(2, NEW))
    device.machine.run()
    device.clock.advance(2 * REPAIR_MIN_S)
    rest(device)
    assert device.adaptation.active() == (NEW.digest, "best")
    assert usable(device) == ["best", "small"]
    assert set(device.served) <= {b"old best", b"new best"}
    assert not device.store.state.partial
    assert not rest(device)
