"""Devices that are offline wait, catch up when they return, and halt nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.simulators.controller_fleet import Fleet, names
from tests.simulators.packages import two_variants

pytestmark = pytest.mark.flow

ONE, TWO = two_variants("1", best="one"), two_variants("2", best="two")
DEVICES = names("cam", 4)
LIMITS = {"device_deadline_s": 30, "offline_limit_s": 20}


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    """Return a fleet of four devices that run the first release."""
    made = Fleet(database_url, tmp_path)
    made.publish(ONE)
    made.publish(TWO)
    made.enrol(*DEVICES)
    assert made.run(made.roll_out("digits:1"))["state"] == "succeeded"
    yield made
    made.close()


def parts(shown: dict[str, Any]) -> dict[str, str]:
    return {item["device"]: item["state"] for item in shown["deployments"]}


def actions(shown: dict[str, Any]) -> list[str]:
    return [item["action"] for item in shown["events"]]


def steps(fleet: Fleet, count: int) -> None:
    for _ in range(count):
        fleet.step()


def go_by(fleet: Fleet, seconds: float, *, tick_s: float = 5.0) -> None:
    """Let time go by at a slower tick: what is measured here is time, not the number of ticks."""
    for _ in range(round(seconds / tick_s)):
        fleet.step(tick_s)


def at_work(fleet: Fleet, phase: Any, **settings: object) -> tuple[str, str]:
    """Begin a rollout of the second release; return it, and the only device that installs."""
    for device in fleet.devices.values():
        device.outcome, device.phase = "busy", phase
    rollout = fleet.roll_out("digits:2", max_in_flight=1, **settings)
    fleet.step()
    (name,) = [name for name, state in parts(fleet.show(rollout)).items() if state == "assigned"]
    for device in fleet.devices.values():
        device.outcome = "succeeded" if device.name != name else "busy"
    return rollout, name


@pytest.mark.parametrize("killed", [False, True], ids=["", "killed-at-every-step"])
def test_an_offline_device_waits_and_goes_on_when_it_returns(fleet: Fleet, killed: bool) -> None:
    fleet.kill_every_step = killed
    away = fleet.devices["cam-001"]
    away.leave()
    rollout = fleet.roll_out("digits:2", device_deadline_s=5, offline_limit_s=3600)
    go_by(fleet, 60)
    shown = fleet.show(rollout)
    assert (shown["state"], shown["counts"]) == ("running", {"succeeded": 3, "waiting": 1})
    assert shown["reason"] == "stage 1 waits for 1 device that is offline, for 1h at most"
    assert shown["stages"][0]["state"] == "waiting_for_devices"
    assert parts(shown)["cam-001"] == "waiting"
    (listed, _first) = fleet.api.get("/v1/rollouts").json()
    assert listed["counts"] == {"succeeded": 3, "waiting": 1}
    away.connect()
    shown = fleet.run(rollout)
    assert (shown["state"], shown["counts"]) == ("succeeded", {"succeeded": 4})
    assert fleet.running(TWO.digest) == set(DEVICES)


@pytest.mark.parametrize("killed", [False, True], ids=["", "killed-at-every-step"])
def test_a_rollout_ends_without_a_device_that_catches_up_later(fleet: Fleet, killed: bool) -> None:
    fleet.kill_every_step = killed
    away = fleet.devices["cam-001"]
    away.leave()
    rollout = fleet.roll_out("digits:2", **LIMITS)
    shown = fleet.run(rollout)
    assert (shown["state"], shown["counts"]) == ("succeeded", {"succeeded": 3, "waiting": 1})
    assert shown["reason"].endswith("1 device is offline and gets it on return")
    fleet.stay_down(5 * 86_400)
    assert fleet.api.get("/v1/devices", params={"drifted": "true"}).json() == []
    away.connect()
    assert away.active == TWO.digest
    assert fleet.show(rollout)["counts"] == {"succeeded": 4}


def test_a_failure_after_the_end_is_told_and_changes_nothing_else(fleet: Fleet) -> None:
    away = fleet.devices["cam-001"]
    away.leave()
    rollout = fleet.roll_out("digits:2", **LIMITS)
    fleet.run(rollout)
    away.outcome = "failed"
    away.connect()
    shown = fleet.show(rollout)
    assert (shown["state"], shown["counts"]) == ("succeeded", {"succeeded": 3, "failed": 1})
    assert (away.active, fleet.running(TWO.digest)) == (ONE.digest, set(DEVICES) - {"cam-001"})


def test_a_last_stage_below_all_leaves_its_order_to_no_more_devices(fleet: Fleet) -> None:
    for name in ("cam-001", "cam-002", "cam-003"):
        fleet.devices[name].leave()
    shown = fleet.run(fleet.roll_out("digits:2", stages=[{"count": 2}], **LIMITS))
    assert shown["counts"] == {"succeeded": 1, "waiting": 1, "cancelled": 2}
    for device in fleet.devices.values():
        device.connect()
    assert len(fleet.running(TWO.digest)) == 2


def test_a_rollout_without_any_device_online_waits_for_the_first(fleet: Fleet) -> None:
    for device in fleet.devices.values():
        device.leave()
    rollout = fleet.roll_out("digits:2", stages=[{"count": 1}, {"percent": 100}], **LIMITS)
    go_by(fleet, 60)
    shown = fleet.show(rollout)
    assert (shown["state"], shown["counts"]) == ("running", {"waiting": 4})
    assert shown["stages"][0]["state"] == "running"
    fleet.devices["cam-002"].outcome = "failed"
    fleet.devices["cam-002"].connect()
    assert fleet.run(rollout)["state"] == "halted"
    for device in fleet.devices.values():
        device.connect()
    fleet.step(20)
    assert fleet.running(TWO.digest) == set()


def test_what_waits_after_the_end_is_not_told_of_a_revoked_release(fleet: Fleet) -> None:
    away = fleet.devices["cam-001"]
    away.leave()
    rollout = fleet.roll_out("digits:2", **LIMITS)
    fleet.run(rollout)
    fleet.api.post("/v1/releases/digits:2/revoke").raise_for_status()
    assert fleet.show(rollout)["counts"] == {"succeeded": 3, "cancelled": 1}
    away.connect()
    fleet.step(20)
    assert [state.release for state in away.accepted] == [ONE.ref, ONE.ref]
    assert away.active == ONE.digest


def test_what_waits_after_the_end_is_not_told_of_what_was_rolled_back(fleet: Fleet) -> None:
    away = fleet.devices["cam-001"]
    away.leave()
    rollout = fleet.roll_out("digits:2", **LIMITS)
    fleet.run(rollout)
    back = fleet.api.post(f"/v1/rollouts/{rollout}/rollback", json={}).json()
    assert "cam-001" not in parts(back), "it never had the release"
    assert fleet.run(back["id"])["counts"] == {"succeeded": 3}
    away.connect()
    fleet.step(20)
    assert all(state.release == ONE.ref for state in away.accepted)
    assert fleet.running(ONE.digest) == set(DEVICES)


def test_a_later_rollout_takes_what_waits(fleet: Fleet) -> None:
    away = fleet.devices["cam-001"]
    away.leave()
    first = fleet.roll_out("digits:2", **LIMITS)
    fleet.run(first)
    second = fleet.roll_out("digits:1", offline_limit_s=3600)
    assert parts(fleet.show(first))["cam-001"] == "cancelled"
    steps(fleet, 3)
    away.connect()
    assert fleet.run(second)["counts"] == {"succeeded": 4}
    assert fleet.running(ONE.digest) == set(DEVICES)


def test_a_quarantined_device_no_longer_waits(fleet: Fleet) -> None:
    away = fleet.devices["cam-001"]
    away.leave()
    rollout = fleet.roll_out("digits:2", **LIMITS)
    fleet.run(rollout)
    for state in ("quarantined", "enrolled"):
        fleet.api.patch("/v1/devices/cam-001", json={"state": state}).raise_for_status()
    away.connect()
    assert parts(fleet.show(rollout))["cam-001"] == "cancelled"
    assert away.active == ONE.digest


@pytest.mark.parametrize("killed", [False, True], ids=["", "killed-at-every-step"])
def test_a_device_that_goes_offline_while_it_fetches_holds_nobody_up(
    fleet: Fleet, killed: bool
) -> None:
    rollout, name = at_work(fleet, "fetching", offline_limit_s=3600)
    fleet.kill_every_step = killed
    device = fleet.devices[name]
    device.leave()
    steps(fleet, 12)
    shown = fleet.show(rollout)
    assert (shown["state"], shown["counts"]) == ("running", {"succeeded": 3, "waiting": 1})
    assert "wait" in actions(shown)
    device.outcome = "succeeded"
    device.connect()
    shown = fleet.run(rollout)
    assert (shown["state"], shown["counts"]) == ("succeeded", {"succeeded": 4})
    orders = [state for state in device.accepted if state.release == TWO.ref]
    assert len(orders) == 1, "it went on with the order that it had"


def test_a_stage_reaches_no_more_devices_because_one_is_away(fleet: Fleet) -> None:
    stages = [{"count": 1}, {"percent": 100}]
    rollout, name = at_work(fleet, "fetching", stages=stages, offline_limit_s=30)
    fleet.devices[name].leave()
    go_by(fleet, 25)
    shown = fleet.show(rollout)
    assert (shown["state"], shown["counts"]) == ("running", {"pending": 3, "waiting": 1})
    assert shown["stages"][0]["state"] == "running"
    shown = fleet.run(rollout, step_s=5)
    assert (shown["state"], shown["counts"]) == ("succeeded", {"succeeded": 3, "waiting": 1})
    told = [item["reason"] for item in shown["events"] if item["action"] == "hold"]
    assert "stage 1 tries another device, as none has come back" in told


def test_time_offline_does_not_count_and_time_online_adds_up(fleet: Fleet) -> None:
    rollout, name = at_work(fleet, "fetching", device_deadline_s=30, offline_limit_s=3600)
    device = fleet.devices[name]
    go_by(fleet, 15)
    device.leave()
    go_by(fleet, 100)
    device.connect()
    go_by(fleet, 10)
    assert fleet.state(rollout) == "running"
    go_by(fleet, 10)
    shown = fleet.show(rollout)
    assert (shown["state"], parts(shown)[name]) == ("halted", "failed")
    assert "sent no report before the deadline" in shown["reason"]


def test_a_device_that_goes_offline_when_the_release_runs_keeps_its_place(fleet: Fleet) -> None:
    rollout, name = at_work(fleet, "probing", device_deadline_s=30, offline_limit_s=60)
    device = fleet.devices[name]
    device.leave()
    go_by(fleet, 55)
    shown = fleet.show(rollout)
    assert shown["state"] == "running"
    assert fleet.running(TWO.digest) == set(), "nobody takes its place in flight"
    device.outcome = "succeeded"
    device.connect()
    assert fleet.run(rollout)["counts"] == {"succeeded": 4}


def test_a_device_that_the_release_may_have_ended_counts_as_failed(fleet: Fleet) -> None:
    rollout, name = at_work(fleet, "confirming", device_deadline_s=30, offline_limit_s=40)
    fleet.devices[name].leave()
    go_by(fleet, 50)
    shown = fleet.show(rollout)
    assert shown["state"] == "halted"
    assert "1 of them went offline and did not come back" in shown["reason"]
    (part,) = [item for item in shown["deployments"] if item["device"] == name]
    assert (part["state"], part["error_code"]) == ("failed", "controller.lost")
    fleet.devices[name].connect()
    fleet.step(20)
    assert fleet.running(ONE.digest) == set(DEVICES)


def test_a_halt_takes_the_order_back_from_what_waits(fleet: Fleet) -> None:
    rollout, name = at_work(fleet, "fetching", offline_limit_s=3600)
    device = fleet.devices[name]
    device.leave()
    for other in fleet.devices.values():
        other.outcome = "failed"
    assert fleet.run(rollout)["state"] == "halted"
    device.outcome = "succeeded"
    device.connect()
    fleet.step(20)
    assert device.active == ONE.digest
    assert device.accepted[-1].release == ONE.ref


def test_deadlines_stand_still_while_the_controller_is_down(fleet: Fleet) -> None:
    rollout, name = at_work(fleet, "probing", device_deadline_s=30)
    go_by(fleet, 20)
    fleet.stay_down(86_400)
    fleet.devices[name].connect()
    steps(fleet, 8)
    assert fleet.state(rollout) == "running"
    steps(fleet, 5)
    assert fleet.state(rollout) == "halted"


def test_a_stage_does_not_soak_while_the_controller_is_down(fleet: Fleet) -> None:
    rollout = fleet.roll_out("digits:2", stages=[{"count": 1}, {"percent": 100}], soak_s=60)
    go_by(fleet, 30)
    fleet.stay_down(86_400)
    fleet.step()
    assert fleet.show(rollout)["stages"][0]["state"] == "soaking"
    for device in fleet.devices.values():
        device.connect()
    assert fleet.run(rollout, step_s=5)["state"] == "succeeded"


def test_a_stage_soaks_on_when_the_devices_have_had_time_to_come_back(fleet: Fleet) -> None:
    rollout = fleet.roll_out("digits:2", stages=[{"count": 1}, {"percent": 100}], soak_s=60)
    go_by(fleet, 30)
    fleet.transport.set_up(False)
    go_by(fleet, 100)
    fleet.transport.set_up(True)
    go_by(fleet, 60)
    assert fleet.show(rollout)["stages"][0]["state"] == "soaking"
    go_by(fleet, 50)
    assert [stage["state"] for stage in fleet.show(rollout)["stages"]] == ["done", "soaking"]
    assert fleet.run(rollout, step_s=5)["state"] == "succeeded"


def test_the_offline_limit_does_not_run_while_the_controller_is_down(fleet: Fleet) -> None:
    fleet.devices["cam-001"].leave()
    rollout = fleet.roll_out("digits:2", **LIMITS)
    steps(fleet, 10)
    fleet.stay_down(86_400)
    steps(fleet, 5)
    assert fleet.state(rollout) == "running"


def test_the_deadline_does_not_run_while_the_broker_is_away(fleet: Fleet) -> None:
    rollout, name = at_work(fleet, "probing", device_deadline_s=40)
    fleet.transport.set_up(False)
    go_by(fleet, 150)
    fleet.transport.set_up(True)
    go_by(fleet, 50)  # the devices come back, and repeat what they reported
    assert parts(fleet.show(rollout))[name] == "assigned"
    go_by(fleet, 60)
    assert parts(fleet.show(rollout))[name] == "failed", "since then it has been heard for 40 s"


@pytest.mark.parametrize("lost", ["controller", "broker"])
def test_a_pause_of_the_controller_takes_no_device_offline(fleet: Fleet, lost: str) -> None:
    rollout, name = at_work(fleet, "fetching")
    before = parts(fleet.show(rollout))
    for device in fleet.devices.values():
        device.online = False  # they say nothing in this moment; there is no last will
    if lost == "controller":
        fleet.stay_down(300)
    else:
        fleet.transport.set_up(False)
        steps(fleet, 3)
        fleet.clock.advance(300)
        fleet.transport.set_up(True)
    go_by(fleet, 170)
    assert parts(fleet.show(rollout)) == before
    for device in fleet.devices.values():
        if device.name != name:
            device.connect()  # it is heard first, but the other one keeps its place
    fleet.step()
    assert parts(fleet.show(rollout)) == before
    go_by(fleet, 20)
    assert parts(fleet.show(rollout))[name] == "waiting", "now it is silent for long enough"
