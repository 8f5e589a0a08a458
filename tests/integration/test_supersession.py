"""A new rollout meets an unfinished one of its model: what moves, and what finishes first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.simulators.controller_fleet import Fleet, names
from tests.simulators.packages import two_variants

pytestmark = pytest.mark.flow

ONE, TWO = (two_variants(version, best=version) for version in ("1", "2"))
DEVICES = names("cam", 6)


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(database_url, tmp_path)
    for package in (ONE, TWO):
        made.publish(package)
    made.enrol(*DEVICES)
    yield made
    made.close()


def half_done(fleet: Fleet, **settings: object) -> tuple[str, str]:
    """Make a rollout one device of which installs; return both."""
    rollout = fleet.roll_out("digits:1", max_in_flight=1, soak_s=10_000, **settings)
    fleet.step()
    fleet.step()
    for device in fleet.devices.values():
        device.outcome = "busy"
    fleet.step()
    working = states(fleet.show(rollout))["assigned"]
    assert len(working) == 1
    return rollout, working[0]


def states(shown: dict[str, Any]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for item in shown["deployments"]:
        found.setdefault(item["state"], []).append(item["device"])
    return found


def reasons(shown: dict[str, Any], action: str) -> list[str]:
    return [item["reason"] for item in shown["events"] if item["action"] == action]


def finish(fleet: Fleet, device: str) -> None:
    """Let the install of a device end well, and that of all others from now on."""
    for each in fleet.devices.values():
        each.outcome = "succeeded"
    working = fleet.devices[device]
    working.actives["digits"] = ONE.digest
    working.report(working.revisions["digits"], ONE.digest, "succeeded", "digits")


@pytest.mark.parametrize("killed", [False, True], ids=["", "paused-and-killed-at-every-step"])
def test_what_has_not_started_moves_and_the_rest_follows(fleet: Fleet, killed: bool) -> None:
    older, working = half_done(fleet)
    begun = {
        device
        for state in ("assigned", "succeeded")
        for device in states(fleet.show(older)).get(state, [])
    }
    fleet.kill_every_step = killed
    if killed:
        fleet.api.post(f"/v1/rollouts/{older}/pause").raise_for_status()
    plan = fleet.api.post("/v1/rollouts/plan", json={"release": "digits:2", "supersede": True})
    (moving,) = plan.json()["supersedes"]
    newer = fleet.roll_out("digits:2", supersede=True)
    shown = fleet.show(older)
    assert shown["superseded_by"] == newer
    assert set(states(shown)["cancelled"]) == set(DEVICES) - begun == set(moving["devices"])
    assert moving["stays"] == len(begun)
    assert reasons(shown, "supersede")[0].startswith(f"{6 - len(begun)} devices moved to rollout")
    assert f"taken out of rollout {older}" in reasons(fleet.show(newer), "supersede")[0]
    for _ in range(4):
        fleet.step()
        assert working not in [d for ds in states(fleet.show(newer)).values() for d in ds]
    finish(fleet, working)
    assert fleet.run(newer)["state"] == "succeeded"
    assert fleet.state(older) == "succeeded"
    assert fleet.running(TWO.digest) == set(DEVICES)


def test_priority_decides_unasked_and_a_lower_one_is_refused(fleet: Fleet) -> None:
    older, _working = half_done(fleet, priority=5)
    for body in ({"supersede": True}, {}, {"priority": 5}):
        answer = fleet.api.post("/v1/rollouts", json={"release": "digits:2", **body})
        assert answer.status_code == 409
        assert older in answer.json()["message"]
    low = fleet.api.post("/v1/rollouts", json={"release": "digits:2", "supersede": True}).json()
    assert "whose priority 5 is above 0" in low["message"]
    assert fleet.show(older)["superseded_by"] is None
    newer = fleet.roll_out("digits:2", priority=6)
    assert fleet.show(older)["superseded_by"] == newer


def test_a_rollout_all_of_whose_devices_began_elsewhere_does_not_begin(fleet: Fleet) -> None:
    older, working = half_done(fleet)
    body = {"release": "digits:2", "supersede": True, "selector": f"id={working}"}
    answer = fleet.api.post("/v1/rollouts", json=body)
    assert answer.status_code == 409
    assert f"all devices have started in rollout {older}" in answer.json()["message"]


def test_a_rollout_goes_on_with_what_another_did_not_take(fleet: Fleet) -> None:
    older, working = half_done(fleet)
    left = states(fleet.show(older))["pending"]
    newer = fleet.roll_out("digits:2", supersede=True, selector=f"id={left[0]}")
    finish(fleet, working)
    assert fleet.run(newer)["state"] == "succeeded"
    assert fleet.running(TWO.digest) == {left[0]}
    assert fleet.state(older) == "running"
    assert set(states(fleet.run(older))["succeeded"]) == set(DEVICES) - {left[0]}


def test_what_is_promised_to_one_rollout_no_other_takes(fleet: Fleet) -> None:
    older, working = half_done(fleet)
    left = states(fleet.show(older))["pending"]
    newer = fleet.roll_out("digits:2", supersede=True, selector=f"id in ({working},{left[0]})")
    for selector, why in (
        (f"id={left[1]}", f"rollout {older} is superseded by rollout {newer}"),
        (f"id={left[0]}", f"rollout {newer} takes in the devices of rollout {older}"),
    ):
        body = {"release": "digits:1", "supersede": True, "selector": selector}
        refused = fleet.api.post("/v1/rollouts", json=body)
        assert (refused.status_code, why in refused.json()["message"]) == (409, True), refused.text
    finish(fleet, working)
    fleet.api.post(f"/v1/rollouts/{older}/abort").raise_for_status()
    assert fleet.run(newer)["state"] == "succeeded"
    assert fleet.running(TWO.digest) == {working, left[0]}


def test_a_halt_leaves_to_the_newer_rollout_what_it_would_revert(fleet: Fleet) -> None:
    first = fleet.roll_out("digits:2")
    assert fleet.run(first)["state"] == "succeeded"
    older, working = half_done(fleet, on_halt="revert")
    newer = fleet.roll_out("digits:2", supersede=True)
    device = fleet.devices[working]
    for each in fleet.devices.values():
        each.outcome = "succeeded"
    device.report(device.revisions["digits"], ONE.digest, "failed", "digits")
    shown = fleet.run(newer)
    assert shown["state"] == "succeeded", shown["reason"]
    assert f"rollout {newer} takes the devices in" in reasons(fleet.show(older), "revert")[0]
    assert fleet.running(TWO.digest) == set(DEVICES)


def test_a_stage_that_nobody_is_left_in_can_be_approved(fleet: Fleet) -> None:
    for name in DEVICES:
        fleet.devices[name].leave()
    stages = [{"count": 1}, {"percent": 100}]
    rollout = fleet.roll_out("digits:1", stages=stages, approval=True)
    body = {"devices": list(DEVICES)}
    fleet.api.post(f"/v1/rollouts/{rollout}/exclude", json=body).raise_for_status()
    fleet.step()
    fleet.step()
    shown = fleet.show(rollout)
    if shown["state"] == "running":
        assert shown["reason"] == "stage 2 waits for approval"
        fleet.approve(rollout).raise_for_status()
        assert fleet.run(rollout)["state"] == "succeeded"
