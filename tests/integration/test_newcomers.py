"""A device that enrols while a rollout goes on joins it when it is known that it can take it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from controller.store.database import Database
from controller.store.restored import catch_up
from tests.simulators.controller_fleet import Fleet
from tests.simulators.packages import PROFILE, two_variants

pytestmark = pytest.mark.flow

CRAMPED = msgspec.structs.replace(PROFILE, storage_bytes=1)


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(database_url, tmp_path)
    made.publish(two_variants("1", best="one"))
    yield made
    made.close()


def states(fleet: Fleet, rollout: str) -> dict[str, str]:
    return {each["device"]: each["state"] for each in fleet.show(rollout)["deployments"]}


@pytest.mark.parametrize("cramped", [True, False], ids=["cramped", "without runtimes"])
def test_who_cannot_take_it_stays_out_also_before_it_has_greeted(
    fleet: Fleet, cramped: bool
) -> None:
    fleet.enrol("cam-1")
    fleet.devices["cam-1"].outcome = "busy"
    rollout = fleet.roll_out("digits:1")
    fleet.step()
    late = fleet.device("late")
    late.outcome = "failed"
    if cramped:
        late.profile = CRAMPED
    else:
        late.runtimes = ()  # its request to enrol says only what the profile has
    token = fleet.api.post("/v1/tokens", json={"uses": 1}).json()["token"]
    assert late.ask_to_enrol(token).accepted
    fleet.step()
    assert "late" not in states(fleet, rollout), "nobody knows yet what it has"
    late.connect()
    for _ in range(3):
        fleet.step()
    assert states(fleet, rollout)["late"] == "cancelled"
    assert fleet.show(rollout)["state"] == "running"


def test_who_can_take_it_joins_when_it_has_greeted(fleet: Fleet) -> None:
    fleet.enrol("cam-1")
    fleet.devices["cam-1"].outcome = "busy"
    rollout = fleet.roll_out("digits:1")
    fleet.step()
    late = fleet.device("late")
    token = fleet.api.post("/v1/tokens", json={"uses": 1}).json()["token"]
    assert late.ask_to_enrol(token).accepted
    fleet.step()
    late.connect()
    for _ in range(5):
        fleet.step()
    assert states(fleet, rollout)["late"] == "succeeded"


def test_after_a_restore_it_is_still_known_who_cannot_take_it(fleet: Fleet) -> None:
    fleet.enrol("cam-1", "cam-2")
    fleet.devices["cam-2"].profile = CRAMPED
    fleet.devices["cam-2"].connect()
    database = Database(fleet.config.database_url)
    with database.transaction() as session:
        catch_up(session, now_s=fleet.clock.now_s())
    database.close()
    shown = fleet.api.get("/v1/releases/digits:1/preflight").json()
    assert (shown["takes"], shown["refuses"], shown["unknown"]) == (1, 1, 0)


def test_a_device_that_enrols_again_is_unknown_until_it_greets(fleet: Fleet) -> None:
    fleet.enrol("cam-1")
    path = "/v1/devices/cam-1"
    fleet.api.patch(path, json={"state": "decommissioned"}).raise_for_status()
    fleet.api.patch(path, json={"may_enrol_again": True}).raise_for_status()
    token = fleet.api.post("/v1/tokens", json={"uses": 1}).json()["token"]
    device = fleet.devices["cam-1"]
    assert device.ask_to_enrol(token).accepted
    check = "/v1/releases/digits:1/preflight"
    assert fleet.api.get(check).json()["unknown_devices"] == ["cam-1"]
    device.connect()
    assert fleet.api.get(check).json()["takes"] == 1
