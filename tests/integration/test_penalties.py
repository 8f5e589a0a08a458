"""Devices whose installs fail again and again are held out of rollouts for a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.penalty_settings import PenaltyConfig, faults
from controller.store import penalties
from controller.store.database import MANY
from tests.simulators.controller_fleet import Fleet
from tests.simulators.packages import package, two_variants, variant

CONFIG = PenaltyConfig(failures=2, within_s=86_400.0, time_out_s=3600.0)


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(database_url, tmp_path, penalty=CONFIG)
    yield made
    made.close()


def shown(fleet: Fleet, device: str) -> dict[str, Any]:
    found: dict[str, Any] = fleet.api.get(f"/v1/devices/{device}").json()
    return found


def members(fleet: Fleet, release: str) -> set[str]:
    """Roll a release out to its end; return the devices that took part."""
    rollout = fleet.roll_out(release, max_failures=9)
    return {each["device"] for each in fleet.run(rollout)["deployments"]}


def test_a_device_that_fails_again_is_held_out_and_comes_back(fleet: Fleet) -> None:
    fleet.enrol("cam-1", "cam-2")
    for version in "1234567":
        fleet.publish(two_variants(version))
    fleet.devices["cam-1"].outcome = "failed"

    assert members(fleet, "digits:1") == {"cam-1", "cam-2"}
    fleet.step(11)
    assert shown(fleet, "cam-1")["held_out_until_s"] is None
    assert members(fleet, "digits:2") == {"cam-1", "cam-2"}
    fleet.step(11)
    held = shown(fleet, "cam-1")
    assert held["held_out_until_s"] == pytest.approx(fleet.clock.now_s() + 3600.0, abs=12.0)
    assert held["held_out_reason"] == "2 installs failed within 1d"
    assert (held["state"], held["online"]) == ("enrolled", True), "it is no quarantine"
    assert shown(fleet, "cam-2")["held_out_until_s"] is None
    assert members(fleet, "digits:3") == {"cam-2"}

    fleet.step(3600)
    for device in fleet.devices.values():
        device.connect()
    assert shown(fleet, "cam-1")["held_out_until_s"] is None
    fleet.step(11)
    assert shown(fleet, "cam-1")["held_out_until_s"] is None, "what failed before counts no more"
    assert members(fleet, "digits:4") == {"cam-1", "cam-2"}
    assert members(fleet, "digits:5") == {"cam-1", "cam-2"}
    fleet.step(11)
    assert members(fleet, "digits:6") == {"cam-2"}
    fleet.api.patch("/v1/devices/cam-1", json={"state": "enrolled"}).raise_for_status()
    fleet.step(11)
    assert shown(fleet, "cam-1")["held_out_until_s"] is None
    assert members(fleet, "digits:7") == {"cam-1", "cam-2"}


def test_of_many_devices_those_that_are_held_out_are_found(fleet: Fleet) -> None:
    fleet.enrol("cam-1", "cam-2")
    for version in "12":
        fleet.publish(two_variants(version))
        for device in fleet.devices.values():
            device.outcome = "failed"
        members(fleet, f"digits:{version}")
        fleet.step(11)
    fleet.api.patch("/v1/devices/cam-2", json={"state": "enrolled"}).raise_for_status()
    many = [f"other-{number}" for number in range(MANY)]
    with fleet.controller._database.reading() as transaction:
        for asked in (["cam-1", "cam-2"], ["cam-1", "cam-2", *many], ["cam-2", *many]):
            found = penalties.held_out_among(transaction, asked)
            assert found.keys() == {"cam-1"} & {*asked}


def test_what_has_not_begun_is_cancelled(fleet: Fleet) -> None:
    fleet.enrol("cam-1", "cam-2")
    fleet.publish(package("1", [(variant("v"), b"faces")], name="faces"))
    waiting = fleet.roll_out("faces:1", max_failures=9)
    fleet.api.post(f"/v1/rollouts/{waiting}/pause").raise_for_status()
    fleet.devices["cam-1"].outcome = "failed"
    for version in "12":
        fleet.publish(two_variants(version))
        members(fleet, f"digits:{version}")
    fleet.step(11)
    parts = {each["device"]: each for each in fleet.show(waiting)["deployments"]}
    assert (parts["cam-1"]["state"], parts["cam-2"]["state"]) == ("cancelled", "pending")
    assert parts["cam-1"]["error_code"] == "controller.held_out"


def hold_out(fleet: Fleet, device: str, *versions: str) -> None:
    """Let a device fail to install releases, until it is held out."""
    before, fleet.devices[device].outcome = fleet.devices[device].outcome, "failed"
    for version in versions:
        fleet.publish(two_variants(version))
        fleet.run(fleet.roll_out(f"digits:{version}", selector=f"id={device}"))
    fleet.devices[device].outcome = before
    fleet.step(11)
    assert shown(fleet, device)["held_out_until_s"] is not None


def test_a_resumed_rollout_goes_on_without_who_is_held_out_and_a_retry_takes_it(
    fleet: Fleet,
) -> None:
    fleet.enrol("cam-1", "cam-2", "cam-3")
    fleet.publish(package("1", [(variant("v"), b"faces")], name="faces"))
    for device in fleet.devices.values():
        device.outcomes["faces"] = "busy"
    rollout = fleet.roll_out("faces:1", max_in_flight=1)
    fleet.step()
    states = {each["device"]: each["state"] for each in fleet.show(rollout)["deployments"]}
    (working,) = [device for device, state in states.items() if state == "assigned"]
    held, other = (device for device in states if device != working)
    at_work = fleet.devices[working].documents[-1].models[0]
    assert at_work.release is not None
    fleet.devices[working].report(at_work.revision, at_work.release.digest, "failed", "faces")
    fleet.step()
    assert fleet.state(rollout) == "halted"
    hold_out(fleet, held, "1", "2")
    for device in fleet.devices.values():
        device.outcomes["faces"] = "succeeded"
    fleet.api.post(f"/v1/rollouts/{rollout}/resume").raise_for_status()
    ended = fleet.run(rollout)
    assert ended["counts"] == {"cancelled": 1, "failed": 1, "succeeded": 1}
    skipped = [each["reason"] for each in ended["events"] if each["action"] == "skip"]
    why = f"1 device left out: held out of rollouts, as installs failed: {held}"
    assert skipped == [why]
    again = fleet.api.post(f"/v1/rollouts/{rollout}/retry", json={}).json()
    assert fleet.run(again["id"])["counts"] == {"succeeded": 2}
    assert shown(fleet, other)["held_out_until_s"] is None


def test_who_is_held_out_is_not_added_and_is_told_so(fleet: Fleet) -> None:
    fleet.enrol("cam-1", "cam-2")
    hold_out(fleet, "cam-2", "1", "2")
    fleet.publish(two_variants("3"))
    rollout = fleet.roll_out("digits:3", selector="id=cam-1")
    body = {"devices": ["cam-2"]}
    told = fleet.api.post(f"/v1/rollouts/{rollout}/add", json=body).json()
    assert told["changed"] == []
    why = "2 installs failed within 1d; `fleet device restore` ends that"
    assert told["unchanged"] == {"cam-2": f"it is held out of rollouts: {why}"}


def test_no_other_rollout_takes_who_is_held_out_from_its_way_back(fleet: Fleet) -> None:
    fleet.enrol("cam-1", "cam-2")
    fleet.publish(package("1", [(variant("v"), b"faces")], name="faces"))
    fleet.publish(package("2", [(variant("v"), b"faces of 2")], name="faces"))
    fleet.publish(package("3", [(variant("v"), b"faces of 3")], name="faces"))
    assert fleet.run(fleet.roll_out("faces:1"))["state"] == "succeeded"
    bad = fleet.roll_out("faces:2")
    assert fleet.run(bad)["state"] == "succeeded"
    hold_out(fleet, "cam-2", "1", "2")
    back = fleet.api.post(f"/v1/rollouts/{bad}/rollback", json={}).json()["id"]
    fleet.api.post(f"/v1/rollouts/{back}/pause").raise_for_status()
    third = fleet.roll_out("faces:3", supersede=True)
    assert [each["device"] for each in fleet.show(third)["deployments"]] == ["cam-1"]
    fleet.api.post(f"/v1/rollouts/{back}/resume").raise_for_status()
    assert fleet.run(back)["counts"] == {"cancelled": 1, "succeeded": 1}
    assert fleet.run(third)["counts"] == {"succeeded": 1}


def test_settings_that_hold_out_nobody_or_for_ever_are_refused() -> None:
    assert list(faults(PenaltyConfig())) == []
    assert list(faults(CONFIG)) == []
    assert list(faults(PenaltyConfig(time_out_s=7200.0))) != []
    assert list(faults(PenaltyConfig(failures=3, time_out_s=float("inf")))) != []
