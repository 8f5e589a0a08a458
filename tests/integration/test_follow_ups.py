"""What an operator does after a rollout: go on, try again, go back, revoke."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event

from tests.simulators.controller_fleet import Fleet, names
from tests.simulators.packages import two_variants

pytestmark = pytest.mark.flow

ONE, TWO, THREE = (two_variants(version, best=version) for version in ("1", "2", "3"))
DEVICES = names("cam", 6)


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    """Return a fleet of six devices that run the first of three releases."""
    made = Fleet(database_url, tmp_path)
    for package in (ONE, TWO, THREE):
        made.publish(package)
    made.enrol(*DEVICES)
    assert made.run(made.roll_out("digits:1"))["state"] == "succeeded"
    yield made
    made.close()


def parts(shown: dict[str, Any]) -> dict[str, str]:
    return {item["device"]: item["state"] for item in shown["deployments"]}


def brought_to(shown: dict[str, Any]) -> dict[str, str]:
    return {item["device"]: item["release"] for item in shown["deployments"]}


def reasons(shown: dict[str, Any], action: str) -> list[str]:
    return [item["reason"] for item in shown["events"] if item["action"] == action]


def order(fleet: Fleet, rollout: str, name: str, body: dict[str, Any] | None = None) -> Any:
    return fleet.api.post(f"/v1/rollouts/{rollout}/{name}", json=body)


def halted(fleet: Fleet, *failing: str) -> str:
    """Roll the second release out, one device after another, until one fails."""
    for name in failing:
        fleet.devices[name].outcome = "failed"
    rollout = fleet.roll_out("digits:2", max_in_flight=1)
    assert fleet.run(rollout)["state"] == "halted"
    return rollout


@pytest.mark.parametrize("killed", [False, True], ids=["", "killed-at-every-step"])
def test_resume_after_a_halt_goes_on_without_what_failed(fleet: Fleet, killed: bool) -> None:
    rollout = halted(fleet, "cam-002")
    fleet.kill_every_step = killed
    shown = order(fleet, rollout, "resume").raise_for_status().json()
    assert (shown["state"], shown["acknowledged"], shown["finished_at_s"]) == ("running", 1, None)
    assert reasons(shown, "resume")[0].startswith("resumed by the operator: 1 failed")
    shown = fleet.run(rollout)
    assert (shown["state"], shown["counts"]) == ("succeeded", {"failed": 1, "succeeded": 5})
    assert fleet.running(TWO.digest) == set(DEVICES) - {"cam-002"}
    assert fleet.devices["cam-002"].active == ONE.digest


def test_another_failure_after_that_halts_again(fleet: Fleet) -> None:
    rollout = halted(fleet, "cam-002", "cam-004")
    order(fleet, rollout, "resume").raise_for_status()
    shown = fleet.run(rollout)
    assert shown["state"] == "halted"
    assert "not counting 1 that the operator acknowledged" in shown["reason"]
    order(fleet, rollout, "resume").raise_for_status()
    assert fleet.run(rollout)["counts"] == {"failed": 2, "succeeded": 4}


def test_resume_is_refused_where_there_is_no_way_on(fleet: Fleet) -> None:
    rollout = halted(fleet, *DEVICES)
    others = fleet.roll_out("digits:3", soak_s=100)
    answer = order(fleet, rollout, "resume")
    assert (answer.status_code, others in answer.json()["message"]) == (409, True)
    order(fleet, others, "abort").raise_for_status()
    order(fleet, rollout, "rollback", {"release": "digits:1"}).raise_for_status()
    answer = order(fleet, rollout, "resume")
    assert (answer.status_code, "rolled back" in answer.json()["message"]) == (409, True)
    assert answer.json()["remedy"]


def test_a_revoked_release_is_not_resumed_and_not_tried_again(fleet: Fleet) -> None:
    rollout = halted(fleet, "cam-002")
    fleet.api.post("/v1/releases/digits:2/revoke").raise_for_status()
    for name, body in (("resume", None), ("retry", {})):
        answer = order(fleet, rollout, name, body)
        assert answer.status_code == 409
        assert "revoked" in answer.json()["message"]
        assert "fleet release list" in answer.json()["remedy"]


@pytest.mark.parametrize("corrected_s", [0, -3600], ids=["", "the-clock-was-an-hour-fast"])
def test_resume_leaves_alone_what_another_rollout_has_started_since(
    fleet: Fleet, corrected_s: float
) -> None:
    rollout = halted(fleet, *DEVICES)
    fleet.clock.correct(corrected_s)
    taken = next(name for name, state in parts(fleet.show(rollout)).items() if state != "failed")
    for device in fleet.devices.values():
        device.outcome = "succeeded"
    fleet.step()
    assert fleet.run(fleet.roll_out("digits:3", selector=f"id={taken}"))["state"] == "succeeded"
    order(fleet, rollout, "resume").raise_for_status()
    assert fleet.run(rollout)["counts"] == {"failed": 1, "cancelled": 1, "succeeded": 4}
    assert fleet.running(THREE.digest) == {taken}


def test_resume_names_the_rollout_that_a_device_joined_while_it_was_decided(fleet: Fleet) -> None:
    rollout = halted(fleet, "cam-002")
    (device, *_) = [name for name, state in parts(fleet.show(rollout)).items() if state != "failed"]
    fleet.publish(two_variants("4", best="4"))
    fleet.enrol("late")
    for each in fleet.devices.values():
        each.outcome = "busy"
    other = fleet.roll_out("digits:3", selector="id=late")
    joined: list[Any] = []

    def join(connection: Connection) -> None:
        """Join another rollout before the order saves what it decided."""
        if not connection.get_execution_options().get("fleet_read_only") and not joined:
            joined.append(None)
            joined[0] = order(fleet, other, "add", {"devices": [device]}).json().get("changed")

    event.listen(fleet.controller._database.engine, "engine_connect", join)
    answer = order(fleet, rollout, "resume")
    assert joined == [[device]]
    assert answer.status_code == 409
    told = answer.json()
    assert f"device {device} takes part in rollout {other}, which has not ended" in str(told)
    assert f"fleet rollout abort {other}" in str(told)
    assert fleet.state(rollout) == "halted"


def test_only_what_failed_is_tried_again(fleet: Fleet) -> None:
    rollout = halted(fleet, "cam-002")
    fleet.devices["cam-002"].outcome = "succeeded"
    made = order(fleet, rollout, "retry", {"only_failed": True})
    assert made.status_code == 201
    shown = made.json()
    assert (shown["retry_of"], shown["rollback_of"]) == (rollout, None)
    assert list(parts(shown)) == ["cam-002"]
    again = order(fleet, rollout, "retry", {"only_failed": True})
    assert (again.status_code, shown["id"] in again.json()["message"]) == (409, True)
    assert fleet.run(shown["id"])["state"] == "succeeded"
    assert fleet.devices["cam-002"].active == TWO.digest
    answer = order(fleet, rollout, "retry", {"only_failed": True})
    assert (answer.status_code, bool(answer.json()["remedy"])) == (409, True)
    order(fleet, rollout, "resume").raise_for_status()
    fleet.run(rollout)
    assert fleet.running(TWO.digest) == set(DEVICES)


@pytest.mark.parametrize("killed", [False, True], ids=["", "killed-at-every-step"])
def test_all_without_the_release_are_tried_again(fleet: Fleet, killed: bool) -> None:
    rollout = halted(fleet, "cam-002")
    fleet.kill_every_step = killed
    before = fleet.running(TWO.digest)
    fleet.devices["cam-002"].outcome = "succeeded"
    shown = order(fleet, rollout, "retry", {}).raise_for_status().json()
    assert set(parts(shown)) == set(DEVICES) - before
    fleet.enrol("late")
    assert fleet.run(shown["id"])["state"] == "succeeded"
    assert fleet.running(TWO.digest) == set(DEVICES), "and no other device joined"
    assert fleet.state(rollout) == "halted"


def test_a_tolerated_failure_is_tried_again_as_a_new_install(fleet: Fleet) -> None:
    device = fleet.devices["cam-002"]
    device.outcome = "failed"
    rollout = fleet.roll_out("digits:2", max_failures=1)
    assert fleet.run(rollout)["state"] == "succeeded"
    device.outcome = "succeeded"
    shown = order(fleet, rollout, "retry", {"only_failed": True}).raise_for_status().json()
    assert fleet.run(shown["id"])["state"] == "succeeded"
    orders = [state.rollout for state in device.accepted if state.release == TWO.ref]
    # An agent repeats the outcome of an order that names the same release and the same rollout.
    assert orders == [rollout, shown["id"]]


def test_each_device_goes_back_to_what_it_had(fleet: Fleet) -> None:
    fleet.run(fleet.roll_out("digits:3", selector="id in (cam-004,cam-005)"))
    rollout = fleet.roll_out("digits:2")
    fleet.run(rollout)
    shown = order(fleet, rollout, "rollback", {}).raise_for_status().json()
    assert (shown["release"], shown["rollback_of"]) == ("digits:1", rollout)
    expected = {name: "digits:3" if name > "cam-003" else "digits:1" for name in DEVICES}
    assert brought_to(shown) == expected
    assert fleet.run(shown["id"])["counts"] == {"succeeded": 6}
    assert fleet.running(ONE.digest) == set(DEVICES[:4])
    assert fleet.running(THREE.digest) == set(DEVICES[4:])
    again = order(fleet, shown["id"], "rollback", {}).raise_for_status().json()
    fleet.run(again["id"])
    assert fleet.running(TWO.digest) == set(DEVICES)


def test_a_failed_rollback_to_several_releases_is_tried_again_to_each(fleet: Fleet) -> None:
    fleet.run(fleet.roll_out("digits:3", selector="id=cam-005"))
    rollout = fleet.roll_out("digits:2")
    fleet.run(rollout)
    fleet.devices["cam-005"].outcome = "failed"
    back = order(fleet, rollout, "rollback", {}).raise_for_status().json()["id"]
    assert fleet.run(back)["state"] == "halted"
    fleet.devices["cam-005"].outcome = "succeeded"
    fleet.step()
    again = order(fleet, back, "retry", {}).raise_for_status().json()
    assert brought_to(again)["cam-005"] == "digits:3"
    assert fleet.run(again["id"])["state"] == "succeeded"
    assert fleet.running(THREE.digest) == {"cam-005"}
    assert fleet.running(ONE.digest) == set(DEVICES[:5])


def test_revoking_one_of_several_releases_halts_their_rollback(fleet: Fleet) -> None:
    fleet.run(fleet.roll_out("digits:3", selector="id=cam-005"))
    rollout = fleet.roll_out("digits:2", stages=[{"count": 1}, {"percent": 100}])
    fleet.run(rollout)
    back = order(fleet, rollout, "rollback", {}).raise_for_status().json()["id"]
    fleet.api.post("/v1/releases/digits:3/revoke").raise_for_status()
    assert fleet.state(back) == "halted"


def test_a_rollback_goes_on_without_what_is_brought_to_a_revoked_release(fleet: Fleet) -> None:
    fleet.run(fleet.roll_out("digits:3", selector="id=cam-005"))
    rollout = fleet.roll_out("digits:2")
    fleet.run(rollout)
    back = order(fleet, rollout, "rollback", {}).raise_for_status().json()["id"]
    fleet.api.post("/v1/releases/digits:3/revoke").raise_for_status()
    shown = order(fleet, back, "resume").raise_for_status().json()
    assert reasons(shown, "skip") == ["1 device left out: the release was revoked: cam-005"]
    assert fleet.run(back)["counts"] == {"cancelled": 1, "succeeded": 5}
    assert fleet.running(TWO.digest) == {"cam-005"}


def test_revoking_one_of_several_releases_recalls_only_what_waits_for_it(fleet: Fleet) -> None:
    fleet.run(fleet.roll_out("digits:3", selector="id=cam-005"))
    rollout = fleet.roll_out("digits:2", offline_limit_s=5)
    fleet.run(rollout)
    away = [fleet.devices["cam-001"], fleet.devices["cam-005"]]
    for device in away:
        device.leave()
    back = order(fleet, rollout, "rollback", {}).raise_for_status().json()["id"]
    assert fleet.run(back)["counts"] == {"succeeded": 4, "waiting": 2}
    fleet.api.post("/v1/releases/digits:3/revoke").raise_for_status()
    assert fleet.show(back)["counts"] == {"succeeded": 4, "waiting": 1, "cancelled": 1}
    for device in away:
        device.connect()
    assert fleet.running(TWO.digest) == {"cam-005"}
    assert fleet.running(ONE.digest) == set(DEVICES[:5])


def test_a_device_that_had_nothing_stays_and_is_named(fleet: Fleet) -> None:
    fleet.enrol("new")
    rollout = fleet.roll_out("digits:2")
    fleet.run(rollout)
    shown = order(fleet, rollout, "rollback", {}).raise_for_status().json()
    assert "new" not in parts(shown)
    assert reasons(shown, "skip") == [
        "1 device left alone: busy, or without a release to go back to: new"
    ]
    fleet.run(shown["id"])
    assert fleet.running(TWO.digest) == {"new"}


def test_a_rollback_to_nothing_names_the_way_out(fleet: Fleet) -> None:
    fleet.enrol("new")
    rollout = fleet.roll_out("digits:2", selector="id=new")
    fleet.run(rollout)
    answer = order(fleet, rollout, "rollback", {})
    assert answer.status_code == 409
    assert answer.json()["remedy"] == (
        "`fleet model remove digits --selector 'id in (new)'` takes the model away from them; or "
        f"name a release: `fleet rollout rollback {rollout} --to NAME:VERSION`"
    )
    shown = order(fleet, rollout, "rollback", {"release": "digits:1"}).raise_for_status().json()
    assert fleet.run(shown["id"])["counts"] == {"succeeded": 1}


def test_a_rollback_spares_what_has_moved_on(fleet: Fleet) -> None:
    rollout = fleet.roll_out("digits:2")
    fleet.run(rollout)
    fleet.run(fleet.roll_out("digits:3", selector="id=cam-001"))
    shown = order(fleet, rollout, "rollback", {}).raise_for_status().json()
    assert set(parts(shown)) == set(DEVICES) - {"cam-001"}
    twice = order(fleet, rollout, "rollback", {})
    assert (twice.status_code, shown["id"] in twice.json()["message"]) == (409, True)
    fleet.run(shown["id"])
    done = order(fleet, rollout, "rollback", {})
    assert (done.status_code, "nothing to roll back" in done.json()["message"]) == (409, True)


def test_a_rollback_in_the_middle_takes_what_has_the_release(fleet: Fleet) -> None:
    rollout = fleet.roll_out("digits:2", stages=[{"count": 2}, {"percent": 100}], soak_s=100)
    for _ in range(5):
        fleet.step()
    touched = fleet.running(TWO.digest)
    shown = order(fleet, rollout, "rollback", {}).raise_for_status().json()
    assert fleet.state(rollout) == "aborted"
    assert set(parts(shown)) == touched
    assert fleet.run(shown["id"], step_s=5)["state"] == "succeeded"
    assert fleet.running(ONE.digest) == set(DEVICES)


def test_revoking_says_what_runs_the_release_and_what_brings_it_back(fleet: Fleet) -> None:
    fleet.enrol("new")
    rollout = fleet.roll_out("digits:2")
    fleet.run(rollout)
    fleet.devices["cam-000"].leave()
    shown = fleet.api.post("/v1/releases/digits:2/revoke").raise_for_status().json()
    assert [item["device"] for item in shown["running"]] == [*DEVICES, "new"]
    assert {item["rollout"] for item in shown["running"]} == {rollout}
    before = [item["previous"] for item in shown["running"]]
    assert before == ["digits:1"] * 6 + [None]
    assert [item["online"] for item in shown["running"]] == [False, *[True] * 6]
    assert fleet.api.get("/v1/releases/digits:2").json() == shown
    assert fleet.api.post("/v1/releases/digits:2/revoke").json() == shown
    fleet.devices["cam-000"].connect()
    back = order(fleet, rollout, "rollback", {}).raise_for_status().json()
    fleet.run(back["id"])
    left = fleet.api.get("/v1/releases/digits:2").json()["running"]
    assert [item["device"] for item in left] == ["new"]


def test_revoking_names_rollouts_whose_rollbacks_take_every_device(fleet: Fleet) -> None:
    first = halted(fleet, "cam-002")
    fleet.devices["cam-002"].outcome = "succeeded"
    fleet.step()
    second = order(fleet, first, "retry", {}).raise_for_status().json()["id"]
    assert fleet.run(second)["state"] == "succeeded"
    third = fleet.roll_out("digits:2", selector="id=cam-001")  # the same release once more
    fleet.run(third)
    shown = fleet.api.post("/v1/releases/digits:2/revoke").raise_for_status().json()
    assert all(item["previous"] == "digits:1" for item in shown["running"])
    for rollout in sorted({item["rollout"] for item in shown["running"]}):
        assert rollout != third, "before it, the device had the same release"
        answer = order(fleet, rollout, "rollback", {})
        assert answer.status_code == 201, answer.text
        fleet.run(answer.json()["id"])
    assert fleet.running(ONE.digest) == set(DEVICES)


@pytest.mark.parametrize("ended", ["abort", "rollback"])
def test_resume_does_not_forget_what_a_device_had_before(fleet: Fleet, ended: str) -> None:
    one, other = fleet.devices["cam-000"], fleet.devices["cam-001"]
    one.outcome = other.outcome = "busy"
    one.phase = other.phase = "confirming"
    rollout = fleet.roll_out("digits:2", selector="id in (cam-000,cam-001)")
    fleet.step()
    one.active = TWO.digest
    one.report(one.revision, TWO.digest, "busy")
    one.leave()
    other.report(other.revision, TWO.digest, "failed")
    fleet.step()
    assert parts(fleet.show(rollout)) == {"cam-000": "cancelled", "cam-001": "failed"}
    order(fleet, rollout, "resume").raise_for_status()
    one.outcome = "silent"
    one.connect()  # it runs the second release: its order to go back is on its way
    fleet.step()
    fleet.step()
    assert parts(fleet.show(rollout))["cam-000"] == "assigned"
    one.outcome = "succeeded"
    if ended == "rollback":
        one.report(one.revision + 2, TWO.digest, "succeeded")
        assert fleet.run(rollout)["state"] == "succeeded"
        back = order(fleet, rollout, "rollback", {}).raise_for_status().json()
        assert brought_to(back) == {"cam-000": "digits:1"}
        assert fleet.run(back["id"])["state"] == "succeeded"
    else:
        order(fleet, rollout, "abort").raise_for_status()
        fleet.step(20)
    assert fleet.running(ONE.digest) == set(DEVICES)


def test_another_try_does_not_forget_what_a_device_had_before(fleet: Fleet) -> None:
    device = fleet.devices["cam-002"]
    device.outcome, device.phase = "busy", "confirming"
    rollout = fleet.roll_out("digits:2", max_failures=1, device_deadline_s=5)
    fleet.step()
    device.active = TWO.digest
    device.report(device.revision, TWO.digest, "busy")
    assert fleet.run(rollout)["counts"] == {"succeeded": 5, "failed": 1}
    device.outcome = "silent"
    again = order(fleet, rollout, "retry", {}).raise_for_status().json()["id"]
    fleet.step()
    device.outcome = "succeeded"
    order(fleet, again, "abort").raise_for_status()
    fleet.step(20)
    assert fleet.running(ONE.digest) == {"cam-002"}


def test_a_device_that_had_the_release_already_keeps_it(fleet: Fleet) -> None:
    device = fleet.devices["cam-002"]
    device.outcome = "silent"
    rollout = fleet.roll_out("digits:1", selector="id=cam-002")
    fleet.step()
    device.outcome = "succeeded"
    order(fleet, rollout, "abort").raise_for_status()
    fleet.step(20)
    assert {state.release for state in device.accepted} == {ONE.ref}
    assert device.active == ONE.digest


def test_what_an_order_that_comes_too_late_can_do_instead(fleet: Fleet) -> None:
    rollout = fleet.roll_out("digits:2", approval=True, soak_s=100)
    fleet.step()
    assert "fleet rollout show" in order(fleet, rollout, "resume").json()["remedy"]
    order(fleet, rollout, "pause").raise_for_status()
    twice = order(fleet, rollout, "pause")
    assert (twice.status_code, twice.json()["remedy"]) == (
        409,
        f"`fleet rollout resume {rollout}` lets it go on",
    )
    assert "fleet rollout show" in order(fleet, rollout, "approve").json()["remedy"]
    order(fleet, rollout, "abort").raise_for_status()
    assert "fleet rollout create" in order(fleet, rollout, "abort").json()["remedy"]
    unknown = order(fleet, "nothing", "pause").json()
    assert unknown["remedy"] == "`fleet rollout list` shows all rollouts"
