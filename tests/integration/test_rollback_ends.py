"""A rollback that ends before its time: nobody gets back what it takes away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.simulators.controller_fleet import Fleet, names
from tests.simulators.packages import two_variants

pytestmark = pytest.mark.flow

ONE, TWO, THREE = (two_variants(version, best=version) for version in ("1", "2", "3"))
DEVICES = names("cam", 5)


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    """Return a fleet that had the first of three releases, and whose devices run the second."""
    made = Fleet(database_url, tmp_path)
    for package in (ONE, TWO, THREE):
        made.publish(package)
    made.enrol(*DEVICES)
    assert made.run(made.roll_out("digits:1"))["state"] == "succeeded"
    yield made
    made.close()


def order(fleet: Fleet, rollout: str, name: str, **body: object) -> dict[str, Any]:
    answer = fleet.api.post(f"/v1/rollouts/{rollout}/{name}", json=body)
    assert answer.is_success, answer.text
    made: dict[str, Any] = answer.json()
    return made


def wanted(fleet: Fleet) -> dict[str, str]:
    """What each device is to run."""
    found = fleet.api.get("/v1/devices").json()
    return {each["id"]: each["desired_release"] for each in found}


def states(fleet: Fleet, rollout: str) -> dict[str, str]:
    return {part["device"]: part["state"] for part in fleet.show(rollout)["deployments"]}


def reasons(fleet: Fleet, rollout: str, action: str) -> list[str]:
    events = fleet.show(rollout)["events"]
    return [item["reason"] for item in events if item["action"] == action]


def let_all(fleet: Fleet, outcome: Any) -> None:
    for device in fleet.devices.values():
        device.outcome = outcome


def end(fleet: Fleet, device: str, outcome: Any) -> None:
    """Let an install that goes on end."""
    it = fleet.devices[device]
    model = it.documents[-1].models[0]
    assert model.release is not None
    if outcome == "succeeded":
        it.active = model.release.digest
    it.report(model.revision, model.release.digest, outcome, model.name)


def on_the_way_back(fleet: Fleet, **body: object) -> tuple[str, str]:
    """Return a rollout that all devices took, and its rollback, in which four have begun."""
    bad = fleet.roll_out("digits:2", max_in_flight=4)
    assert fleet.run(bad)["state"] == "succeeded"
    let_all(fleet, "busy")
    back = order(fleet, bad, "rollback", **body)["id"]
    fleet.step()
    assert sorted(states(fleet, back).values()) == ["assigned"] * 4 + ["pending"]
    return bad, back


def split(fleet: Fleet, back: str) -> tuple[list[str], str]:
    """Return the devices that have begun, and the one that has not."""
    found = states(fleet, back)
    idle = next(name for name, state in found.items() if state == "pending")
    return [name for name in found if name != idle], idle


@pytest.mark.parametrize("ended", ["halted", "aborted"])
@pytest.mark.parametrize("pace", [{}, {"keep_pace": True}, {"release": "digits:3"}], ids=str)
@pytest.mark.few(4)
def test_who_has_begun_finishes_and_nobody_is_told_the_bad_release(
    fleet: Fleet, ended: str, pace: dict[str, object]
) -> None:
    bad, back = on_the_way_back(fleet, **pace)
    (failing, away, first, last), idle = split(fleet, back)
    target = str(pace.get("release", "digits:1"))
    heard = {name: len(device.accepted) for name, device in fleet.devices.items()}
    fleet.devices[away].leave()
    end(fleet, first, "succeeded")
    end(fleet, failing, "failed")
    if ended == "aborted":
        order(fleet, back, "abort")
    else:
        fleet.step()
    for _ in range(3):
        fleet.step()
    shown = fleet.show(back)
    assert shown["state"] == ended
    assert wanted(fleet) == dict.fromkeys(DEVICES, target) | {idle: "digits:2"}
    assert heard == {name: len(device.accepted) for name, device in fleet.devices.items()}
    assert shown["counts"] == {
        "assigned": 1,
        "cancelled": 1,
        "failed": 1,
        "succeeded": 1,
        "waiting": 1,
    }
    (told,) = reasons(fleet, back, "leave")
    assert told.startswith("2 devices still on the way back, and may finish it: ")
    fleet.kill()
    end(fleet, last, "failed")
    let_all(fleet, "succeeded")
    fleet.devices[away].connect()
    fleet.step()
    assert fleet.show(back)["counts"] == {"cancelled": 1, "failed": 2, "succeeded": 2}
    again = order(fleet, bad, "rollback", **pace)["id"]
    assert fleet.run(again)["state"] == "succeeded"
    assert set(wanted(fleet).values()) == {target}


def test_a_resumed_rollback_goes_on_with_those_that_were_on_their_way(fleet: Fleet) -> None:
    _, back = on_the_way_back(fleet)
    (failing, away, first, last), idle = split(fleet, back)
    fleet.devices[away].leave()
    end(fleet, failing, "failed")
    fleet.step()
    assert fleet.state(back) == "halted"
    shown = order(fleet, back, "resume")
    assert shown["reason"] == "resumed by the operator: 1 failed are acknowledged, 4 go on"
    fleet.step()
    assert states(fleet, back)[idle] == "assigned"
    assert states(fleet, back)[first] == states(fleet, back)[last] == "assigned"
    let_all(fleet, "succeeded")
    fleet.devices[away].connect()
    for device in (first, last, idle):
        end(fleet, device, "succeeded")
    assert fleet.run(back)["counts"] == {"failed": 1, "succeeded": 4}


def test_another_rollout_takes_whom_a_stopped_rollback_left_on_the_way(fleet: Fleet) -> None:
    _, back = on_the_way_back(fleet)
    (failing, away, *_), _ = split(fleet, back)
    fleet.devices[away].leave()
    end(fleet, failing, "failed")
    fleet.step()
    third = fleet.roll_out("digits:3", max_in_flight=5, offline_limit_s=5)
    assert states(fleet, back)[away] == "cancelled"
    fleet.step()
    fleet.devices[away].connect()
    fleet.step()
    assert states(fleet, third)[away] == "assigned"
    order(fleet, third, "abort")
    assert wanted(fleet)[away] == "digits:1", "not what it still reports"


def test_to_undo_a_rollback_brings_the_release_again(fleet: Fleet) -> None:
    """Who orders that wants it: what had the order to go back has it no more."""
    _, back = on_the_way_back(fleet)
    (failing, done, *_), _ = split(fleet, back)
    end(fleet, done, "succeeded")
    end(fleet, failing, "failed")
    fleet.step()
    let_all(fleet, "succeeded")
    forth = order(fleet, back, "rollback")["id"]
    assert fleet.run(forth)["state"] == "succeeded"
    assert set(wanted(fleet).values()) == {"digits:2"} or wanted(fleet)[failing] == "digits:1"
    assert fleet.running(TWO.digest) == set(DEVICES)


def test_a_rollback_of_a_rollback_that_halts_gives_back_what_was_there(fleet: Fleet) -> None:
    bad = fleet.roll_out("digits:2")
    fleet.run(bad)
    back = order(fleet, bad, "rollback")["id"]
    assert fleet.run(back)["state"] == "succeeded"
    let_all(fleet, "busy")
    forth = order(fleet, back, "rollback")["id"]
    fleet.step()
    end(fleet, "cam-002", "failed")
    fleet.step()
    assert fleet.state(forth) == "halted"
    assert wanted(fleet) == dict.fromkeys(DEVICES, "digits:1")


def test_who_goes_back_to_a_release_that_is_revoked_meanwhile_keeps_what_it_has(
    fleet: Fleet,
) -> None:
    _, back = on_the_way_back(fleet)
    fleet.api.post("/v1/releases/digits:1/revoke").raise_for_status()
    shown = fleet.show(back)
    assert (shown["state"], shown["counts"]) == ("halted", {"cancelled": 5})
    for device in fleet.devices.values():
        fleet.step()
        assert device.accepted[-1].release is None or device.active == TWO.digest


def test_who_is_shut_out_on_its_way_back_still_goes_back(fleet: Fleet) -> None:
    _, back = on_the_way_back(fleet)
    (device, *_), _ = split(fleet, back)
    fleet.api.patch(f"/v1/devices/{device}", json={"state": "quarantined"}).raise_for_status()
    assert states(fleet, back)[device] == "cancelled"
    fleet.devices[device].outcome = "succeeded"
    fleet.api.patch(f"/v1/devices/{device}", json={"state": "enrolled"}).raise_for_status()
    fleet.devices[device].connect()
    fleet.step(20.0)
    assert fleet.devices[device].active == ONE.digest


@pytest.mark.parametrize("body", [{"keep_pace": True}, {"release": "digits:1"}], ids=str)
def test_whoever_missed_any_rollback_gets_what_that_brings_when_the_next_release_fails(
    fleet: Fleet, body: dict[str, object]
) -> None:
    bad = fleet.roll_out("digits:2", offline_limit_s=60.0)
    assert fleet.run(bad)["state"] == "succeeded"
    away = fleet.devices["cam-000"]
    away.leave()
    back = order(fleet, bad, "rollback", **body)["id"]
    for _ in range(12):
        fleet.step(20.0)
    assert fleet.state(back) == "succeeded", "it ends without the one that is away"
    away.outcome = "busy"
    third = fleet.roll_out("digits:3", max_in_flight=5)
    fleet.step()
    away.connect()
    fleet.step()
    assert states(fleet, third)["cam-000"] == "assigned"
    order(fleet, third, "abort")
    assert wanted(fleet)["cam-000"] == "digits:1"


@pytest.mark.parametrize("target", ["digits:2", "digits:3"])
@pytest.mark.few(4)
def test_a_second_rollback_of_what_is_gone_goes_back_to_the_good_release(
    fleet: Fleet, target: str
) -> None:
    bad = fleet.roll_out("digits:2")
    fleet.run(bad)
    assert fleet.run(order(fleet, bad, "rollback")["id"])["state"] == "succeeded"
    let_all(fleet, "busy")
    again = order(fleet, bad, "rollback", release=target)["id"]
    fleet.step()
    end(fleet, DEVICES[0], "failed")
    fleet.step()
    assert fleet.state(again) == "halted"
    assert wanted(fleet) == dict.fromkeys(DEVICES, "digits:1")


def test_who_failed_on_the_way_back_gets_the_good_release_from_the_next_rollback(
    fleet: Fleet,
) -> None:
    """It still reports the bad one when the next release comes."""
    bad = fleet.roll_out("digits:2")
    fleet.run(bad)
    fleet.devices[DEVICES[0]].outcome = "failed"
    assert fleet.run(order(fleet, bad, "rollback")["id"])["state"] == "halted"
    fleet.devices[DEVICES[0]].outcome = "succeeded"
    newer = fleet.roll_out("digits:3")
    assert fleet.run(newer)["state"] == "succeeded"
    assert fleet.run(order(fleet, newer, "rollback")["id"])["state"] == "succeeded"
    assert wanted(fleet) == dict.fromkeys(DEVICES, "digits:1")
    assert fleet.running(ONE.digest) == set(DEVICES)


def some_are_rid_of_it(fleet: Fleet, *others: str) -> str:
    """Return a rollout of the second release that some devices still have, as others are back."""
    bad = fleet.roll_out("digits:2")
    fleet.run(bad)
    back = order(fleet, bad, "rollback")["id"]
    order(fleet, back, "exclude", devices=list(others))
    assert fleet.run(back)["state"] == "succeeded"
    assert fleet.running(TWO.digest) == set(others)
    return bad


@pytest.mark.parametrize("outcome", ["busy", "failed"])
def test_who_was_rid_of_the_bad_release_goes_back_when_another_rollback_stops(
    fleet: Fleet, outcome: str
) -> None:
    """Those that still had it keep the order."""
    has_it, away, rid = DEVICES[0], DEVICES[1], DEVICES[2]
    bad = some_are_rid_of_it(fleet, has_it)
    let_all(fleet, "busy")
    again = order(fleet, bad, "rollback", release="digits:3")["id"]
    fleet.step()
    fleet.devices[away].leave()
    fleet.step()
    if outcome == "failed":
        end(fleet, rid, "failed")
        fleet.step()
    else:
        order(fleet, again, "abort")
    fleet.step()
    assert wanted(fleet) == dict.fromkeys(DEVICES, "digits:1") | {has_it: "digits:3"}
    found = states(fleet, again)
    assert found.pop(has_it) == "assigned", "it works at its order"
    assert set(found.values()) <= {"cancelled", "failed"}
    let_all(fleet, "succeeded")
    end(fleet, has_it, "succeeded")
    fleet.devices[away].connect()
    for _ in range(5):
        fleet.step()
    assert fleet.running(THREE.digest) == {has_it}
    assert states(fleet, again)[has_it] == "succeeded"


def test_who_failed_in_a_rollback_that_did_not_concern_it_still_has_what_it_reports(
    fleet: Fleet,
) -> None:
    has_it, failed, last = DEVICES[0], DEVICES[1], DEVICES[2]
    bad = some_are_rid_of_it(fleet, has_it)
    fleet.devices[failed].outcome = "failed"
    again = order(fleet, bad, "rollback", release="digits:3")["id"]
    fleet.run(again)
    let_all(fleet, "succeeded")
    fleet.publish(two_variants("4", best="4"))
    fleet.devices[last].outcome = "failed"
    newer = fleet.roll_out("digits:4", on_halt="revert")
    assert fleet.run(newer)["state"] == "halted"
    let_all(fleet, "succeeded")
    for _ in range(5):
        fleet.step()
    assert wanted(fleet)[failed] == "digits:1"
    assert fleet.devices[failed].active == ONE.digest


def test_a_device_is_skipped_by_what_it_had(fleet: Fleet) -> None:
    has_it, rid = DEVICES[0], DEVICES[1]
    bad = some_are_rid_of_it(fleet, has_it)
    let_all(fleet, "busy")
    again = order(fleet, bad, "rollback", release="digits:3")["id"]
    fleet.step()
    for device in (has_it, rid):
        fleet.api.patch(f"/v1/devices/{device}", json={"state": "quarantined"}).raise_for_status()
        assert states(fleet, again)[device] == "cancelled"
    found = wanted(fleet)
    assert (found[has_it], found[rid]) == ("digits:3", "digits:1")


def test_who_still_reports_the_bad_release_never_goes_back_to_it(fleet: Fleet) -> None:
    """It failed on both ways back, and a later rollout is rolled back."""
    failing = DEVICES[0]
    bad = fleet.roll_out("digits:2", max_failures=3)
    fleet.run(bad)
    fleet.devices[failing].outcome = "failed"
    order_of = {"release": "digits:3"}
    fleet.run(order(fleet, bad, "rollback")["id"])
    fleet.run(order(fleet, bad, "rollback", **order_of)["id"])
    assert fleet.devices[failing].active == TWO.digest
    fleet.publish(two_variants("4", best="4"))
    newer = fleet.roll_out("digits:4", max_failures=3)
    fleet.run(newer)
    let_all(fleet, "succeeded")
    fleet.run(order(fleet, newer, "rollback")["id"])
    assert wanted(fleet)[failing] != "digits:2"


def test_who_was_to_start_again_in_a_resumed_rollback_is_free_when_that_is_aborted(
    fleet: Fleet,
) -> None:
    bad = fleet.roll_out("digits:2")
    fleet.run(bad)
    let_all(fleet, "busy")
    back = order(fleet, bad, "rollback")["id"]
    fleet.step()
    fleet.devices[DEVICES[0]].leave()
    fleet.step()
    end(fleet, DEVICES[1], "failed")
    fleet.step()
    assert fleet.state(back) == "halted"
    other = fleet.roll_out("digits:3")
    fleet.step()
    for rollout, what in ((other, "abort"), (back, "resume"), (back, "abort")):
        fleet.api.post(f"/v1/rollouts/{rollout}/{what}").raise_for_status()
    let_all(fleet, "succeeded")
    fleet.devices[DEVICES[0]].connect()
    for _ in range(3):
        fleet.step()
    assert set(states(fleet, back).values()) <= {"cancelled", "failed", "succeeded"}
    assert fleet.run(fleet.roll_out("digits:3"))["state"] == "succeeded"


def test_who_had_nothing_has_nothing_again_when_a_rollback_to_another_release_stops(
    tmp_path: Path, database_url: str
) -> None:
    """The first rollout of a model failed there, so it is rid of nothing."""
    fleet = Fleet(database_url, tmp_path)
    try:
        for package in (ONE, TWO):
            fleet.publish(package)
        fleet.enrol(*DEVICES)
        empty = DEVICES[0]
        fleet.devices[empty].outcome = "failed"
        bad = fleet.roll_out("digits:1", max_in_flight=5)
        assert fleet.run(bad)["state"] == "halted"
        let_all(fleet, "busy")
        back = order(fleet, bad, "rollback", release="digits:2")["id"]
        fleet.step()
        assert states(fleet, back)[empty] == "assigned"
        fleet.devices[empty].leave()
        fleet.step()
        end(fleet, DEVICES[1], "failed")
        fleet.step()
        assert fleet.state(back) == "halted"
        let_all(fleet, "succeeded")
        fleet.devices[empty].connect()
        for _ in range(5):
            fleet.step()
        assert fleet.devices[empty].active is None
        assert wanted(fleet)[empty] is None
        assert states(fleet, back)[DEVICES[2]] == "assigned", "it has the bad one, and goes on"
    finally:
        fleet.close()


def test_who_was_rid_of_it_by_a_release_that_is_revoked_now_does_not_begin_a_stopped_one(
    fleet: Fleet,
) -> None:
    """It keeps what it has: there is no way back."""
    has_it, away, rid = DEVICES[:3]
    bad = some_are_rid_of_it(fleet, has_it)
    fleet.api.post("/v1/releases/digits:1/revoke").raise_for_status()
    let_all(fleet, "busy")
    again = order(fleet, bad, "rollback", release="digits:3")["id"]
    fleet.step()
    parts = {part["device"]: part for part in fleet.show(again)["deployments"]}
    assert parts[away]["state"] == "assigned"
    fleet.devices[away].leave()
    fleet.step()
    end(fleet, rid, "failed")
    fleet.step()
    assert fleet.state(again) == "halted"
    let_all(fleet, "succeeded")
    fleet.devices[away].connect()
    for _ in range(5):
        fleet.step()
    assert fleet.devices[away].active == ONE.digest
    assert wanted(fleet) == dict.fromkeys(DEVICES, None) | {has_it: "digits:3"}


def test_nobody_is_told_to_take_a_model_from_who_is_to_have_none(
    tmp_path: Path, database_url: str
) -> None:
    """A device tells of what it has to give back until it has done so."""
    fleet = Fleet(database_url, tmp_path)
    try:
        fleet.publish(ONE)
        fleet.enrol(*DEVICES)
        bad = fleet.roll_out("digits:1", soak_s=60.0, max_in_flight=5)
        fleet.step()
        failed = fleet.devices[DEVICES[1]]
        revision = failed.documents[-1].models[0].revision
        let_all(fleet, "silent")
        failed.report(revision, ONE.digest, "failed", "digits")
        fleet.step()
        assert fleet.state(bad) == "halted"
        assert failed.active == ONE.digest
        can = fleet.api.get(f"/v1/rollouts/{bad}/follow-ups").raise_for_status().json()
        assert can["with_release"] == len(DEVICES) - 1
    finally:
        fleet.close()
