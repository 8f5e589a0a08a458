"""Devices whose installs fail again and again are held out of rollouts for a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.penalty_settings import PenaltyConfig, faults
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


def test_settings_that_hold_out_nobody_or_for_ever_are_refused() -> None:
    assert list(faults(PenaltyConfig())) == []
    assert list(faults(CONFIG)) == []
    assert list(faults(PenaltyConfig(time_out_s=7200.0))) != []
    assert list(faults(PenaltyConfig(failures=3, time_out_s=float("inf")))) != []
