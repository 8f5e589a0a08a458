"""Devices that do not run what they should: the controller shows them, and tells them again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.services.director import RESEND_EVERY_S
from tests.simulators.controller_fleet import Fleet
from tests.simulators.packages import two_variants
from wire import topics
from wire.transport import Received

ONE, TWO = two_variants("1", best="one"), two_variants("2", best="two")


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    """Return a fleet of three devices that run the second release."""
    made = Fleet(database_url, tmp_path)
    made.publish(ONE)
    made.publish(TWO)
    made.enrol("cam-1", "cam-2", "cam-3")
    for release in ("digits:1", "digits:2"):
        assert made.run(made.roll_out(release))["state"] == "succeeded"
    yield made
    made.close()


def drifted(fleet: Fleet) -> list[str]:
    found = fleet.api.get("/v1/devices", params={"drifted": "true"}).raise_for_status().json()
    return [device["id"] for device in found]


def sent_to(fleet: Fleet, device: str) -> list[Received]:
    """Return the list to which each desired state is added that is sent to a device from now on."""
    heard: list[Received] = []
    fleet.hub.on(topics.down(device, "desired"), heard.append)
    return heard


def test_a_device_that_comes_back_without_its_release_is_told_at_once(fleet: Fleet) -> None:
    device = fleet.devices["cam-2"]
    device.active = ONE.digest
    device.connect()
    assert device.active == TWO.digest
    assert drifted(fleet) == []


def test_a_device_that_drifted_is_shown_and_told_again_while_it_is_online(fleet: Fleet) -> None:
    device = fleet.devices["cam-2"]
    sent = sent_to(fleet, "cam-2")
    device.outcome, device.active = "silent", None
    device.connect()
    assert len(sent) == 1
    assert drifted(fleet) == ["cam-2"]
    shown = fleet.api.get("/v1/devices/cam-2").json()
    assert (shown["drifted"], shown["release"], shown["desired_release"]) == (
        True, None, "digits:2",
    )  # fmt: skip
    fleet.step(RESEND_EVERY_S + 1)
    assert len(sent) == 2
    fleet.step(1)
    assert len(sent) == 2
    device.outcome = "succeeded"
    fleet.step(RESEND_EVERY_S + 1)
    assert drifted(fleet) == []
    fleet.step(RESEND_EVERY_S + 1)
    assert len(sent) == 3


def test_a_device_whose_install_failed_is_shown_and_not_told_for_ever(fleet: Fleet) -> None:
    fleet.devices["cam-3"].outcome = "failed"
    rollout = fleet.roll_out("digits:1", max_failures=3)
    assert fleet.run(rollout)["state"] == "succeeded"
    assert drifted(fleet) == ["cam-3"]
    assert "golden" in fleet.api.get("/v1/devices/cam-3").json()["last_error"]
    sent = sent_to(fleet, "cam-3")
    for _ in range(3):
        fleet.step(RESEND_EVERY_S + 1)
    assert not sent
    fleet.devices["cam-3"].connect()
    assert len(sent) == 1, "a hello is answered"


def test_a_device_in_the_middle_of_its_install_has_not_drifted(fleet: Fleet) -> None:
    fleet.devices["cam-1"].outcome = "silent"
    rollout = fleet.roll_out("digits:1", stages=[{"count": 1}, {"percent": 100}])
    fleet.step()
    assert fleet.state(rollout) == "running"
    assert drifted(fleet) == []


def test_a_device_that_left_the_fleet_has_not_drifted(fleet: Fleet) -> None:
    device = fleet.devices["cam-2"]
    device.outcome, device.active = "silent", None
    device.connect()
    for state, shown in (("quarantined", []), ("enrolled", ["cam-2"]), ("decommissioned", [])):
        fleet.api.patch("/v1/devices/cam-2", json={"state": state}).raise_for_status()
        assert drifted(fleet) == shown
