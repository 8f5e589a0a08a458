"""Devices whose revision is not the controller's: lost, impossible, or given by another one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulators.controller_fleet import Fleet
from tests.simulators.packages import two_variants
from wire.desired import MAX_REVISION, MAX_REVISION_STEP

ONE, TWO = two_variants("1", best="one"), two_variants("2", best="two")


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(database_url, tmp_path)
    made.publish(ONE)
    made.publish(TWO)
    yield made
    made.close()


def test_a_device_that_lost_its_record_is_told_with_its_present_start(fleet: Fleet) -> None:
    fleet.enrol("cam-1")
    device = fleet.devices["cam-1"]
    assert fleet.run(fleet.roll_out("digits:1"))["state"] == "succeeded"
    revision = device.revision
    device.revision, device.boot_id = 0, "boot-2"
    device.connect()
    assert device.revision == revision
    assert device.accepted[-1].boot_id == "boot-2"


@pytest.mark.parametrize("wrong", [2**63 - 1, MAX_REVISION, 2 + MAX_REVISION_STEP])
def test_a_revision_that_cannot_be_does_not_drag_the_controllers_along(
    fleet: Fleet, wrong: int
) -> None:
    fleet.enrol("cam-1", "cam-2")
    device = fleet.devices["cam-1"]
    assert fleet.run(fleet.roll_out("digits:1"))["state"] == "succeeded"
    device.revision, device.boot_id = wrong, "boot-2"
    heard: list[int] = []
    device.hears = lambda wanted: heard.append(wanted.revision)
    device.connect()
    assert heard == [1], "the device accepts it, because it names its present start"
    device.revision = 1
    assert fleet.run(fleet.roll_out("digits:2"))["state"] == "succeeded"
    assert device.revision == 2


def test_the_first_desired_state_is_newer_than_what_a_device_has_from_elsewhere(
    fleet: Fleet,
) -> None:
    fleet.enrol("cam-1")
    device = fleet.devices["cam-1"]
    device.revision = 500
    device.connect()
    rollout = fleet.roll_out("digits:1")
    fleet.step()
    assert device.revision == 501
    assert fleet.run(rollout)["state"] == "succeeded"
