"""Rollouts from end to end: real controller and database, devices that speak the protocol."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.simulators.controller_fleet import Fleet, names
from tests.simulators.packages import SignedPackage, two_variants

pytestmark = pytest.mark.flow

ONE = two_variants("1", best="one")
TWO = two_variants("2", best="two")
THREE = two_variants("3", best="three")
STAGES = [{"count": 1}, {"percent": 30}, {"percent": 100}]


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(database_url, tmp_path)
    made.publish(ONE)
    made.publish(TWO)
    yield made
    made.close()


def brought_to(fleet: Fleet, package: SignedPackage, count: int = 10) -> None:
    """Enrol devices and bring them to a release."""
    fleet.enrol(*names("cam", count))
    rollout = fleet.roll_out(f"digits:{package.index.version}")
    assert fleet.run(rollout)["state"] == "succeeded"


def reasons(shown: dict[str, Any], action: str) -> list[str]:
    return [item["reason"] for item in shown["events"] if item["action"] == action]


def states(shown: dict[str, Any]) -> dict[str, str]:
    return {item["device"]: item["state"] for item in shown["deployments"]}


@pytest.mark.parametrize("killed", [False, True], ids=["", "killed-at-every-step"])
def test_a_staged_rollout(fleet: Fleet, killed: bool) -> None:
    fleet.enrol(*names("cam", 10))
    fleet.kill_every_step = killed
    rollout = fleet.roll_out("digits:1", stages=STAGES, max_in_flight=3)
    reached = []
    for _ in range(40):
        fleet.step()
        reached.append(len(fleet.running(ONE.digest)))
        if fleet.state(rollout) != "running":
            break
    shown = fleet.show(rollout)
    assert shown["state"] == "succeeded"
    assert shown["counts"] == {"succeeded": 10}
    assert [item["state"] for item in shown["stages"]] == ["done"] * 3
    assert [item["target"] for item in shown["stages"]] == [1, 3, 10]
    assert {1, 3, 10} <= set(reached)
    assert max(b - a for a, b in itertools.pairwise(reached)) <= 3
    assert len(fleet.running(ONE.digest)) == 10
    assert all(len(device.accepted) == 1 for device in fleet.devices.values())
    assert reasons(shown, "create")
    assert reasons(shown, "finish") == ["10 of 10 devices installed it"]


def test_a_device_that_has_finished_is_free_when_its_rollout_has_ended(fleet: Fleet) -> None:
    fleet.enrol(*names("cam", 2))
    first = fleet.roll_out("digits:1", soak_s=60.0)
    for _ in range(10):
        fleet.step()
    assert len(fleet.running(ONE.digest)) == 2, "all is done but the soak"
    second = {"release": "digits:2"}
    refused = fleet.api.post("/v1/rollouts", json=second)
    assert refused.status_code == 409
    assert f"takes part in rollout {first}" in refused.json()["message"]
    assert f"fleet rollout abort {first}" in refused.json()["remedy"]
    fleet.api.post(f"/v1/rollouts/{first}/abort").raise_for_status()
    assert len(fleet.running(ONE.digest)) == 2, "what has the release keeps it"
    assert fleet.run(fleet.roll_out("digits:2"))["state"] == "succeeded"
    assert fleet.state(first) == "aborted"


def test_a_halted_rollout_does_not_go_on_while_another_has_what_it_finished(fleet: Fleet) -> None:
    fleet.enrol(*names("cam", 3))
    first = fleet.roll_out("digits:1", max_in_flight=1)
    while not fleet.running(ONE.digest):
        fleet.step()
    (done,) = fleet.running(ONE.digest)
    for device in fleet.devices.values():
        device.outcome = "failed"
    assert fleet.run(first)["state"] == "halted"
    fleet.devices[done].outcome = "succeeded"
    fleet.api.patch(f"/v1/devices/{done}", json={"labels": {"site": "rome"}}).raise_for_status()
    second = fleet.roll_out("digits:2", selector="site=rome", soak_s=60.0)
    for _ in range(10):
        fleet.step()
    assert fleet.running(TWO.digest) == {done}
    answer = fleet.api.post(f"/v1/rollouts/{first}/resume")
    assert answer.status_code == 409
    assert f"device {done} takes part in rollout {second}" in answer.json()["message"]


def test_a_rollout_shows_what_an_install_waits_for_as_long_as_it_waits(fleet: Fleet) -> None:
    fleet.enrol("cam-001")
    device = fleet.devices["cam-001"]
    device.outcome, device.phase, device.waits_for = "busy", "switching", "hook x says later"
    rollout = fleet.roll_out("digits:1")
    fleet.step()
    (part,) = fleet.show(rollout)["deployments"]
    assert (part["state"], part["phase"], part["error_code"], part["detail"]) == (
        "assigned", "switching", "", "hook x says later",
    )  # fmt: skip
    assert fleet.api.get("/v1/devices/cam-001").json()["waits_for"] == "hook x says later"
    device.waits_for = ""
    device.report(device.accepted[-1].revision, ONE.digest, "busy")
    fleet.step()
    (part,) = fleet.show(rollout)["deployments"]
    assert (part["state"], part["detail"]) == ("assigned", "")
    assert fleet.api.get("/v1/devices").json()[0]["waits_for"] == ""


def test_a_failing_device_halts_and_goes_back_by_itself(fleet: Fleet) -> None:
    brought_to(fleet, ONE)
    for device in fleet.devices.values():
        device.outcome = "failed"
    rollout = fleet.roll_out("digits:2", stages=STAGES)
    shown = fleet.run(rollout)
    assert shown["state"] == "halted"
    assert shown["reason"] == "1 device failed; allowed: 0"
    assert shown["counts"] == {"cancelled": 9, "failed": 1}
    assert shown["previous"] == {"digits:1": 1}
    failed = next(item for item in shown["deployments"] if item["state"] == "failed")
    assert (failed["error_code"], failed["detail"]) == ("agent.probe", "the golden test failed")
    device = fleet.devices[failed["device"]]
    assert [state.release.version for state in device.accepted if state.release] == ["1", "2", "1"]
    assert len(fleet.running(ONE.digest)) == 10
    assert reasons(shown, "restore")


def test_nothing_starts_after_a_halt(fleet: Fleet) -> None:
    brought_to(fleet, ONE)
    for device in fleet.devices.values():
        device.outcome = "failed"
    rollout = fleet.roll_out("digits:2", stages=STAGES)
    fleet.run(rollout)
    for device in fleet.devices.values():
        device.outcome = "succeeded"
    for _ in range(5):
        fleet.step(6)
        fleet.kill()
    for device in fleet.devices.values():
        device.connect()
    assert fleet.running(TWO.digest) == set()
    for order in ("pause", "approve", "abort"):
        answer = fleet.api.post(f"/v1/rollouts/{rollout}/{order}")
        assert answer.status_code == 409, order


def test_a_device_without_a_past_is_told_to_run_nothing(fleet: Fleet) -> None:
    fleet.enrol("cam-1")
    fleet.devices["cam-1"].outcome = "failed"
    fleet.run(fleet.roll_out("digits:1"))
    assert [state.release is None for state in fleet.devices["cam-1"].accepted] == [False, True]


def test_tolerated_failures_do_not_halt(fleet: Fleet) -> None:
    fleet.enrol(*names("cam", 10))
    fleet.devices["cam-003"].outcome = "failed"
    shown = fleet.run(fleet.roll_out("digits:1", max_failures=1))
    assert shown["state"] == "succeeded"
    assert shown["counts"] == {"failed": 1, "succeeded": 9}


def test_a_share_of_failures_halts(fleet: Fleet) -> None:
    fleet.enrol(*names("cam", 10))
    for name in ("cam-001", "cam-002", "cam-003", "cam-004"):
        fleet.devices[name].outcome = "failed"
    shown = fleet.run(
        fleet.roll_out(
            "digits:1",
            max_failures=9,
            max_failure_percent=20,
            min_finished=5,
            max_in_flight=1,
        )
    )
    assert shown["state"] == "halted"
    assert "%" in str(shown["reason"])


def test_silence_past_the_deadline_halts(fleet: Fleet) -> None:
    fleet.enrol(*names("cam", 4))
    for device in fleet.devices.values():
        device.outcome = "silent"
    rollout = fleet.roll_out("digits:1", stages=[{"count": 1}], device_deadline_s=30)
    fleet.step()
    fleet.step(28)
    assert fleet.state(rollout) == "running"
    shown = fleet.run(rollout, steps=5)
    assert shown["state"] == "halted"
    assert "sent no report" in str(shown["reason"])
    assert sorted(states(shown).values()) == ["cancelled", "cancelled", "cancelled", "failed"]


def test_the_time_that_an_install_waits_does_not_count_for_its_deadline(fleet: Fleet) -> None:
    fleet.enrol("cam-1")
    device = fleet.devices["cam-1"]
    device.outcome, device.phase, device.waits_for = "busy", "preflight", "its window begins at 1"
    rollout = fleet.roll_out("digits:1", device_deadline_s=30, offline_limit_s=600)
    fleet.step()
    for _ in range(20):
        fleet.step(10)
    assert fleet.state(rollout) == "running"
    device.waits_for = ""
    device.report(device.accepted[-1].revision, ONE.digest, "busy")
    fleet.step(25)
    assert fleet.state(rollout) == "running"
    assert fleet.run(rollout, steps=40)["state"] == "halted"


def test_an_install_may_wait_no_longer_than_a_device_may_be_offline(fleet: Fleet) -> None:
    fleet.enrol("cam-1")
    device = fleet.devices["cam-1"]
    device.outcome, device.phase, device.waits_for = "busy", "preflight", "a hook says later"
    rollout = fleet.roll_out("digits:1", device_deadline_s=30, offline_limit_s=100)
    fleet.step()
    for _ in range(12):
        fleet.step(10)
    assert fleet.state(rollout) == "running"
    assert fleet.run(rollout, steps=40)["state"] == "halted"


def test_a_device_that_says_success_and_runs_something_else_failed(fleet: Fleet) -> None:
    fleet.enrol("cam-1")
    fleet.devices["cam-1"].outcome = "liar"
    shown = fleet.run(fleet.roll_out("digits:1"))
    assert shown["state"] == "halted"
    assert shown["deployments"][0]["error_code"] == "controller.report.mismatch"


def test_pause_and_resume(fleet: Fleet) -> None:
    fleet.enrol(*names("cam", 10))
    rollout = fleet.roll_out("digits:1", stages=STAGES)
    fleet.step()
    fleet.api.post(f"/v1/rollouts/{rollout}/pause").raise_for_status()
    for _ in range(5):
        fleet.step(2)
        fleet.kill()
    assert len(fleet.running(ONE.digest)) == 1
    assert fleet.api.post(f"/v1/rollouts/{rollout}/pause").status_code == 409
    fleet.api.post(f"/v1/rollouts/{rollout}/resume").raise_for_status()
    assert fleet.run(rollout)["state"] == "succeeded"


def test_a_failure_while_paused_halts(fleet: Fleet) -> None:
    fleet.enrol("cam-1", "cam-2")
    fleet.devices["cam-1"].outcome = "silent"
    fleet.devices["cam-2"].outcome = "silent"
    rollout = fleet.roll_out("digits:1", device_deadline_s=10)
    fleet.step()
    fleet.api.post(f"/v1/rollouts/{rollout}/pause").raise_for_status()
    assert fleet.run(rollout)["state"] == "halted"


def test_soak_and_a_success_that_is_taken_back(fleet: Fleet) -> None:
    fleet.enrol(*names("cam", 4))
    rollout = fleet.roll_out("digits:1", stages=[{"count": 1}, {"percent": 100}], soak_s=60)
    for _ in range(6):
        fleet.step(5)
    shown = fleet.show(rollout)
    assert [item["state"] for item in shown["stages"]] == ["soaking", "waiting"]
    name = next(name for name, state in states(shown).items() if state == "succeeded")
    device = fleet.devices[name]
    device.active = None
    device.report(device.revision, ONE.digest, "failed")
    assert fleet.run(rollout, steps=3)["state"] == "halted"
    assert len(fleet.running(ONE.digest)) == 0


def test_a_soaked_stage_goes_on(fleet: Fleet) -> None:
    fleet.enrol(*names("cam", 4))
    rollout = fleet.roll_out("digits:1", stages=[{"count": 1}, {"percent": 100}], soak_s=5)
    assert fleet.run(rollout)["state"] == "succeeded"


def test_approval(fleet: Fleet) -> None:
    fleet.enrol(*names("cam", 4))
    rollout = fleet.roll_out("digits:1", stages=[{"count": 1}, {"percent": 100}], approval=True)
    assert fleet.approve(rollout).status_code == 409
    for _ in range(10):
        fleet.step()
    shown = fleet.show(rollout)
    assert shown["stages"][0]["state"] == "awaiting_approval"
    assert shown["reason"] == "stage 2 waits for approval"
    fleet.kill()
    own = fleet.api.post(f"/v1/rollouts/{rollout}/approve")
    assert (own.status_code, own.json()["code"]) == (403, "controller.forbidden.own_rollout")
    fleet.approve(rollout).raise_for_status()
    logged = [(e["action"], e["actor"]) for e in fleet.show(rollout)["events"] if e["actor"]]
    assert logged == [("create", "home"), ("approve", "approver")]
    assert fleet.run(rollout)["state"] == "succeeded"


def test_abort_sends_back_what_had_not_finished(fleet: Fleet) -> None:
    brought_to(fleet, ONE, 4)
    for device in fleet.devices.values():
        device.outcome = "silent"
    rollout = fleet.roll_out("digits:2", stages=[{"count": 2}, {"percent": 100}])
    fleet.step()
    for device in fleet.devices.values():
        device.outcome = "succeeded"
    shown = fleet.api.post(f"/v1/rollouts/{rollout}/abort").raise_for_status().json()
    assert shown["state"] == "aborted"
    assert shown["counts"] == {"cancelled": 4}
    fleet.step(20)
    assert len(fleet.running(ONE.digest)) == 4
    told = [device for device in fleet.devices.values() if device.revision == 3]
    assert len(told) == 2


def test_a_device_that_joins_late_takes_part_in_the_last_stage(fleet: Fleet) -> None:
    fleet.enrol(*names("cam", 4), site="berlin")
    rollout = fleet.roll_out(
        "digits:1",
        selector="site=berlin",
        stages=[{"count": 1}, {"percent": 100}],
        soak_s=10,
    )
    fleet.step()
    fleet.enrol("late-berlin", site="berlin")
    fleet.enrol("late-paris", site="paris")
    fleet.step()
    assert len(fleet.show(rollout)["deployments"]) == 4
    shown = fleet.run(rollout)
    assert shown["state"] == "succeeded"
    assert fleet.devices["late-berlin"].active == ONE.digest
    assert fleet.devices["late-paris"].active is None
    assert states(shown)["late-berlin"] == "succeeded"


def test_a_last_stage_below_all_leaves_the_others_alone(fleet: Fleet) -> None:
    fleet.enrol(*names("cam", 4))
    shown = fleet.run(fleet.roll_out("digits:1", stages=[{"count": 3}]))
    assert (shown["state"], shown["counts"]) == ("succeeded", {"cancelled": 1, "succeeded": 3})
    assert len(fleet.running(ONE.digest)) == 3


def test_rollback_is_a_rollout_over_the_same_devices(fleet: Fleet) -> None:
    brought_to(fleet, ONE, 6)
    first = fleet.roll_out("digits:2", stages=[{"count": 2}, {"percent": 100}])
    fleet.run(first)
    fleet.enrol("other")
    answer = fleet.api.post(f"/v1/rollouts/{first}/rollback", json={"release": "digits:1"})
    assert answer.status_code == 201
    made = answer.json()
    assert made["rollback_of"] == first
    assert [item["target"] for item in made["stages"]] == [2, 6]
    shown = fleet.run(made["id"])
    assert shown["state"] == "succeeded"
    assert fleet.running(ONE.digest) == set(names("cam", 6))
    assert fleet.devices["other"].active is None


def test_rollback_ends_what_still_goes_on_and_spares_what_was_not_touched(fleet: Fleet) -> None:
    brought_to(fleet, ONE, 6)
    first = fleet.roll_out("digits:2", stages=[{"count": 2}, {"percent": 100}], approval=True)
    for _ in range(5):
        fleet.step()
    touched = fleet.running(TWO.digest)
    assert len(touched) == 2
    made = fleet.api.post(f"/v1/rollouts/{first}/rollback", json={"release": "digits:1"}).json()
    assert fleet.state(first) == "aborted"
    assert set(states(made)) == touched
    assert fleet.run(made["id"])["state"] == "succeeded", "a way back waits for no approval"
    assert len(fleet.running(ONE.digest)) == 6


def test_a_release_that_a_device_never_ran_is_nothing_to_go_back_to(fleet: Fleet) -> None:
    fleet.publish(THREE)
    fleet.enrol(*names("cam", 2))
    fleet.devices["cam-001"].outcome = "failed"
    fleet.run(fleet.roll_out("digits:1", max_failures=1))
    fleet.devices["cam-001"].outcome = "succeeded"
    second = fleet.roll_out("digits:3")
    assert fleet.run(second)["state"] == "succeeded"
    made = fleet.api.post(f"/v1/rollouts/{second}/rollback", json={}).json()
    assert fleet.run(made["id"])["state"] == "succeeded"
    assert {name: device.active for name, device in fleet.devices.items()} == {
        "cam-000": ONE.digest,
        "cam-001": THREE.digest,
    }


def test_a_device_that_missed_a_way_back_gets_what_that_brings_when_the_next_release_fails(
    fleet: Fleet,
) -> None:
    """It still reports the bad release, of which it was to be rid."""
    fleet.publish(THREE)
    brought_to(fleet, ONE, 4)
    bad = fleet.roll_out("digits:2", offline_limit_s=60.0)
    assert fleet.run(bad)["state"] == "succeeded"
    away = fleet.devices["cam-000"]
    away.leave()
    back = fleet.api.post(f"/v1/rollouts/{bad}/rollback", json={}).json()["id"]
    for _ in range(12):
        fleet.step(20.0)
    assert fleet.state(back) == "succeeded", "it ends without the one that is away"
    away.outcome = "busy"
    third = fleet.roll_out("digits:3", max_in_flight=4)
    fleet.step()
    away.connect()
    fleet.step()
    assert states(fleet.show(third))["cam-000"] == "assigned"
    away.outcome = "succeeded"
    fleet.api.post(f"/v1/rollouts/{third}/abort").raise_for_status()
    for _ in range(3):
        fleet.step()
    assert fleet.running(ONE.digest) == set(names("cam", 4))


def test_rollback_of_nothing_is_refused(fleet: Fleet) -> None:
    fleet.enrol("cam-1")
    first = fleet.roll_out("digits:2")
    answer = fleet.api.post(f"/v1/rollouts/{first}/rollback", json={"release": "digits:1"})
    assert answer.status_code == 409
    assert fleet.state(first) == "running"


def test_a_quarantined_device_is_skipped_and_goes_back(fleet: Fleet) -> None:
    brought_to(fleet, ONE, 3)
    for device in fleet.devices.values():
        device.outcome = "silent"
    rollout = fleet.roll_out("digits:2", max_in_flight=2)
    fleet.step()
    flying = [name for name, state in states(fleet.show(rollout)).items() if state == "assigned"]
    change = fleet.api.patch(f"/v1/devices/{flying[0]}", json={"state": "quarantined"})
    assert change.json()["desired_release"] == "digits:1"
    assert fleet.access.refused == {flying[0]}
    for device in fleet.devices.values():
        device.outcome = "succeeded"
    fleet.step(20)
    shown = fleet.run(rollout)
    assert (shown["state"], shown["counts"]) == ("succeeded", {"cancelled": 1, "succeeded": 2})
    fleet.api.patch(f"/v1/devices/{flying[0]}", json={"state": "enrolled"}).raise_for_status()
    fleet.devices[flying[0]].connect()
    assert fleet.devices[flying[0]].active == ONE.digest


def test_a_revoked_release_halts_its_rollouts_and_is_handed_out_no_more(fleet: Fleet) -> None:
    brought_to(fleet, ONE, 3)
    rollout = fleet.roll_out("digits:2", stages=[{"count": 1}, {"percent": 100}], approval=True)
    for _ in range(4):
        fleet.step()
    fleet.api.post("/v1/releases/digits:2/revoke").raise_for_status()
    assert fleet.show(rollout)["reason"] == "release digits:2 was revoked"
    (name,) = fleet.running(TWO.digest)
    device = fleet.devices[name]
    device.revision = 0
    accepted = len(device.accepted)
    device.connect()
    fleet.step(30)
    assert [told.release for told in device.accepted[accepted:]] == [None]
    assert device.active == TWO.digest, "it goes on"
    assert fleet.api.post("/v1/rollouts", json={"release": "digits:2"}).status_code == 409


def test_a_lost_message_is_sent_again(fleet: Fleet) -> None:
    fleet.enrol("cam-1")
    device = fleet.devices["cam-1"]
    device.outcome = "silent"
    rollout = fleet.roll_out("digits:1")
    fleet.step()
    device.outcome = "succeeded"
    for _ in range(14):
        fleet.step()
    assert device.active is None
    shown = fleet.run(rollout, steps=3)
    assert shown["state"] == "succeeded"


def test_a_device_that_was_away_is_told_at_its_hello(fleet: Fleet) -> None:
    fleet.enrol("cam-1")
    device = fleet.devices["cam-1"]
    device.online = False
    rollout = fleet.roll_out("digits:1")
    fleet.step()
    device.connect()
    assert device.active == ONE.digest
    assert fleet.run(rollout)["state"] == "succeeded"


def test_a_controller_restored_from_a_backup_catches_up(fleet: Fleet) -> None:
    fleet.enrol("cam-1")
    device = fleet.devices["cam-1"]
    device.revision = 70
    rollout = fleet.roll_out("digits:1")
    fleet.step()
    assert fleet.running(ONE.digest) == set()
    device.connect()
    assert device.revision == 71
    assert fleet.running(ONE.digest) == {"cam-1"}
    assert fleet.run(rollout)["state"] == "succeeded"


def test_two_rollouts_do_not_share_a_device(fleet: Fleet) -> None:
    fleet.enrol("cam-1", "cam-2")
    fleet.roll_out("digits:1", selector="id=cam-1")
    answer = fleet.api.post("/v1/rollouts", json={"release": "digits:2"})
    assert answer.status_code == 409
    assert "cam-1" in answer.json()["message"]
    fleet.roll_out("digits:2", selector="id=cam-2")
