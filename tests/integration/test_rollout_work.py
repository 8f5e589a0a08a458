"""Orders about rollouts in several transactions: none is lost, and nothing starts between."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from controller.services import rollout_engine
from controller.services import rollout_work as order_work
from controller.store import members, rollout_work, taking_out
from controller.store import rollouts as rollout_rows
from controller.store.database import migrate
from controller.store.rollout_tables import DeploymentRow, RolloutRow
from controller.store.work_tables import RolloutWorkRow
from tests.simulators.controller_fleet import Fleet, names
from tests.simulators.packages import two_variants

pytestmark = pytest.mark.flow

ONE, TWO = two_variants("1", best="one"), two_variants("2", best="two")
DEVICES = names("cam", 7)
UNFINISHED = {"pending", "assigned", "waiting"}


@pytest.fixture
def fleet(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    """Seven devices with a release; an order and a tick carry out one small part each."""
    made = Fleet(database_url, tmp_path)
    made.publish(ONE)
    made.publish(TWO)
    made.enrol(*DEVICES)
    assert made.run(made.roll_out("digits:1"))["state"] == "succeeded"
    monkeypatch.setattr(rollout_work, "AT_ONCE", 2)
    monkeypatch.setattr(taking_out, "BACK_AT_ONCE", 1)
    monkeypatch.setattr(order_work, "ANSWER_S", -1.0)
    monkeypatch.setattr(rollout_engine, "TICK_S", -1.0)
    yield made
    made.close()


def busy(fleet: Fleet, count: int) -> str:
    """Make a rollout in which so many devices install, and the others have not begun."""
    for device in fleet.devices.values():
        device.outcome = "busy"
    rollout = fleet.roll_out("digits:2", max_in_flight=count)
    settle(fleet)
    fleet.step()
    return rollout


def settle(fleet: Fleet) -> None:
    """Tick until no part is left, with a kill after each."""
    while left(fleet):
        fleet.step()
        fleet.kill()


def left(fleet: Fleet) -> int:
    return int(rows(fleet, sa.select(sa.func.count()).select_from(RolloutWorkRow))[0][0])


def work(fleet: Fleet, rollout: str) -> int:
    """How many parts are left of orders about a rollout."""
    mine = RolloutWorkRow.rollout == rollout
    return int(rows(fleet, sa.select(sa.func.count()).where(mine))[0][0])


def rows(fleet: Fleet, statement: sa.Select[Any]) -> list[Any]:
    with fleet.controller._database.reading() as transaction:
        return list(transaction.execute(statement).all())


def order(fleet: Fleet, rollout: str, what: str, **body: object) -> dict[str, Any]:
    answer = fleet.api.post(f"/v1/rollouts/{rollout}/{what}", json=body)
    assert answer.is_success, answer.text
    made: dict[str, Any] = answer.json()
    return made


def started(fleet: Fleet, rollout: str) -> int:
    """How many devices of a rollout have got their order."""
    mine = sa.select(sa.func.count()).where(
        DeploymentRow.rollout == rollout, DeploymentRow.revision.is_not(None)
    )
    return int(rows(fleet, mine)[0][0])


def succeed(fleet: Fleet) -> None:
    """Let every install end well."""
    for device in fleet.devices.values():
        device.outcome = "succeeded"
        device.connect()


def test_a_rollout_that_is_being_made_survives_kills_and_starts_nothing(fleet: Fleet) -> None:
    rollout = fleet.roll_out("digits:2")
    seen = []
    while (shown := fleet.show(rollout))["preparing"]:
        seen.append((shown["state"], shown["preparing"], shown["counts"]))
        assert fleet.running(TWO.digest) == set()
        fleet.step()
        fleet.kill()
    assert seen == [("running", 3, {"pending": 4}), ("running", 1, {"pending": 6})]
    assert fleet.run(rollout)["counts"] == {"succeeded": 7}


def test_a_control_group_and_devices_left_out_are_taken_in_part_by_part(fleet: Fleet) -> None:
    fleet.enrol(*names("old", 5))
    fleet.step()
    gates = {"gates": ["p95(inference_latency_ms) <= +10%"], "control_percent": 25}
    rollout = fleet.roll_out("digits:2", selector="", unfit="exclude", **gates)
    settle(fleet)
    shown = fleet.show(rollout)
    assert shown["counts"] == {"pending": 5, "succeeded": 7}
    assert (shown["control"], shown["preparing"]) == (5, 0)


def test_nothing_starts_after_an_end_and_all_go_back_despite_kills(fleet: Fleet) -> None:
    rollout = busy(fleet, 4)
    begun = started(fleet, rollout)
    shown = order(fleet, rollout, "abort")
    assert (shown["state"], begun) == ("aborted", 4)
    assert UNFINISHED & set(shown["counts"]), "a part is left"
    settle(fleet)
    assert (fleet.show(rollout)["counts"], started(fleet, rollout)) == ({"cancelled": 7}, begun)
    succeed(fleet)
    fleet.step()
    assert fleet.running(ONE.digest) == set(DEVICES)


def test_a_halt_and_a_resume_lose_no_device(fleet: Fleet) -> None:
    rollout = busy(fleet, 3)
    fleet.devices[next(iter(fleet.running(ONE.digest)))].outcome = "busy"
    first = rows(fleet, sa.select(DeploymentRow.device).where(DeploymentRow.state == "assigned"))
    fleet.devices[first[0][0]].outcome = "failed"
    fleet.devices[first[0][0]].connect()
    fleet.step()
    assert fleet.state(rollout) == "halted"
    shown = order(fleet, rollout, "resume")  # which waits until all are taken out
    assert shown["preparing"] > 0
    begun = started(fleet, rollout)
    while left(fleet):
        fleet.step()
        fleet.kill()
        assert started(fleet, rollout) == begun or not left(fleet)
    succeed(fleet)
    assert fleet.run(rollout)["counts"] == {"failed": 1, "succeeded": 6}


def test_a_rollback_takes_devices_in_once_the_first_rollout_has_let_them_go(fleet: Fleet) -> None:
    first = fleet.roll_out("digits:2", stages=[{"count": 5}, {"percent": 100}], approval=True)
    settle(fleet)
    for _ in range(3):
        fleet.step()
    assert len(fleet.running(TWO.digest)) == 5
    back = order(fleet, first, "rollback")
    assert (fleet.state(first), back["state"]) == ("aborted", "running")
    assert back["preparing"] + sum(back["counts"].values()) == 5
    settle(fleet)
    assert fleet.run(back["id"])["counts"] == {"succeeded": 5}
    assert fleet.running(ONE.digest) == set(DEVICES)


def test_devices_that_a_stopped_rollback_leaves_are_free_after_going_down_and_up(
    fleet: Fleet, database_url: str
) -> None:
    """The older controller knows no such work: it lets them all finish."""
    fleet.publish(two_variants("3", best="three"))
    bad = fleet.roll_out("digits:2")
    settle(fleet)
    fleet.run(bad)
    back = order(fleet, bad, "rollback")["id"]
    settle(fleet)
    fleet.run(back)
    for device in fleet.devices.values():
        device.outcome = "busy"
    again = order(fleet, bad, "rollback", release="digits:3")["id"]
    settle(fleet)
    for _ in range(7):
        fleet.step()
    assert fleet.show(again)["counts"] == {"assigned": 7}
    order(fleet, again, "abort")
    assert work(fleet, again), "some are still to go back"
    for version in ("0044", "head"):
        migrate(database_url, version)
    settle(fleet)
    newer = fleet.roll_out("digits:1")
    settle(fleet)
    succeed(fleet)
    assert fleet.run(newer)["counts"] == {"succeeded": 7}


def test_a_refused_rollback_ends_nothing(fleet: Fleet) -> None:
    rollout = busy(fleet, 2)
    refused = fleet.api.post(f"/v1/rollouts/{rollout}/rollback", json={})
    assert refused.status_code == 409
    assert fleet.state(rollout) == "running"


def test_another_try_takes_all_that_an_abort_was_still_taking_out(fleet: Fleet) -> None:
    first = busy(fleet, 2)
    order(fleet, first, "abort")
    succeed(fleet)
    again = order(fleet, first, "retry", only_failed=False)
    settle(fleet)
    assert fleet.run(again["id"])["counts"] == {"succeeded": 7}


def test_a_second_rollout_is_refused_while_one_is_made_and_leaves_nothing(fleet: Fleet) -> None:
    first = fleet.roll_out("digits:2")
    before = rows(fleet, sa.select(RolloutRow.id))
    refused = fleet.api.post("/v1/rollouts", json={"release": "digits:1"})
    assert refused.status_code == 409
    why = f"rollout {first} of model digits is still being made"
    assert why in refused.text
    assert why in fleet.api.post("/v1/rollouts/plan", json={"release": "digits:1"}).text
    assert rows(fleet, sa.select(RolloutRow.id)) == before
    assert order(fleet, first, "abort")["state"] == "aborted"
    second = fleet.roll_out("digits:2")  # it waits for the devices of the first
    settle(fleet)
    assert fleet.run(second)["counts"] == {"succeeded": 7}
    assert fleet.show(first)["preparing"] == 0


def test_a_release_that_is_revoked_meanwhile_ends_a_rollout_that_is_being_made(
    fleet: Fleet,
) -> None:
    rollout = fleet.roll_out("digits:2")
    fleet.api.post("/v1/releases/digits:2/revoke").raise_for_status()
    settle(fleet)
    shown = fleet.show(rollout)
    assert (shown["state"], set(shown["counts"])) == ("aborted", {"cancelled"})


def test_devices_move_to_another_rollout_part_by_part_and_are_in_one_at_any_time(
    fleet: Fleet,
) -> None:
    older = busy(fleet, 2)
    newer = fleet.roll_out("digits:1", supersede=True)
    seen = []
    while left(fleet):
        shown = fleet.show(newer)
        seen.append((fleet.show(older)["counts"], shown["counts"], shown["preparing"]))
        assert (started(fleet, older), started(fleet, newer)) == (2, 0)
        refused = fleet.api.post(f"/v1/rollouts/{older}/exclude", json={"devices": [DEVICES[0]]})
        assert "is still being carried out" in refused.text or not work(fleet, older)
        fleet.step()
        fleet.kill()
    assert seen == [
        ({"assigned": 2, "cancelled": 4, "pending": 1}, {}, 5),
        ({"assigned": 2, "cancelled": 5}, {}, 5),
        ({"assigned": 2, "cancelled": 5}, {"pending": 2}, 3),
        ({"assigned": 2, "cancelled": 5}, {"pending": 4}, 1),
    ]
    succeed(fleet)
    assert fleet.run(newer)["counts"] == {"succeeded": 7}
    assert fleet.show(older)["counts"] == {"succeeded": 2, "cancelled": 5}


def test_an_abort_of_either_rollout_while_devices_move_leaves_none_between(fleet: Fleet) -> None:
    for ended in ("older", "newer"):
        older = busy(fleet, 2)
        newer = fleet.roll_out("digits:1", supersede=True)
        order(fleet, {"older": older, "newer": newer}[ended], "abort")
        settle(fleet)
        succeed(fleet)
        for rollout in (older, newer):
            assert not UNFINISHED & set(fleet.run(rollout)["counts"])
        counts = {"older": {"succeeded": 7}, "newer": {}}
        assert fleet.show(newer)["counts"] == counts[ended]


def test_devices_join_and_leave_part_by_part_and_an_ended_rollout_holds_up_nobody(
    fleet: Fleet,
) -> None:
    ended = busy(fleet, 3)
    fleet.enrol("cam-new")
    fleet.devices["cam-new"].outcome = "busy"
    rollout = fleet.roll_out("digits:2", selector="id=cam-new", max_in_flight=1)
    settle(fleet)
    fleet.step()
    order(fleet, ended, "abort")
    assert work(fleet, ended)
    asked = order(fleet, rollout, "add", devices=DEVICES)
    held = {device for device, why in asked["unchanged"].items() if ended in why}
    assert held
    assert held | set(asked["changed"]) == set(DEVICES)
    fleet.devices["cam-new"].connect()
    settle(fleet)
    asked = order(fleet, rollout, "add", devices=sorted(held))
    assert (asked["changed"], asked["unchanged"]) == (sorted(held), {})
    assert fleet.show(rollout)["preparing"]
    settle(fleet)
    gone = order(fleet, rollout, "exclude", selector="")
    assert (gone["changed"], set(gone["unchanged"])) == ([*DEVICES], {"cam-new"})
    assert work(fleet, rollout)
    settle(fleet)
    succeed(fleet)
    assert fleet.run(rollout)["counts"] == {"cancelled": 7, "succeeded": 1}


def test_a_device_that_joined_meanwhile_holds_up_no_part_of_an_addition(fleet: Fleet) -> None:
    for device in fleet.devices.values():
        device.outcome = "busy"
    rollout = fleet.roll_out("digits:2", selector="id=cam-000", max_in_flight=1)
    settle(fleet)
    late = [*DEVICES[1:]]
    with fleet.controller._database.transaction() as transaction:
        row = rollout_rows.get(transaction, rollout, lock=True)
        joining = members.at_tail(transaction, row, late)
        members.join(transaction, row, joining, now_s=1.0)
        # As one that was decided before the first was saved.
        assert members.join(transaction, row, joining, now_s=2.0) == late[:2]
    settle(fleet)
    assert fleet.show(rollout)["preparing"] == 0
    skipped = [each["reason"] for each in fleet.show(rollout)["events"] if each["action"] == "skip"]
    assert [reason[:22] for reason in skipped] == ["2 devices not taken in"] * 2, skipped
    succeed(fleet)
    assert fleet.run(rollout)["counts"] == {"succeeded": 7}


def test_who_was_excluded_stays_so_when_the_rollout_ends_before_its_part(fleet: Fleet) -> None:
    rollout = busy(fleet, 1)
    gone = order(fleet, rollout, "exclude", selector="")["changed"]
    assert len(gone) == len(DEVICES) - 1
    order(fleet, rollout, "abort")
    settle(fleet)
    again = order(fleet, rollout, "retry")["id"]
    settle(fleet)
    assert not {each["device"] for each in fleet.show(again)["deployments"]} & {*gone}


def test_a_halt_that_reverts_is_carried_out_part_by_part_and_reverts_once(fleet: Fleet) -> None:
    rollout = fleet.roll_out("digits:2", max_in_flight=3, on_halt="revert")
    settle(fleet)
    while len(fleet.running(TWO.digest)) < 3:
        fleet.step()
    for device in fleet.devices.values():
        device.outcome = "busy"
    fleet.step()
    failing = rows(fleet, sa.select(DeploymentRow.device).where(DeploymentRow.state == "assigned"))
    fleet.devices[failing[0][0]].outcome = "failed"
    fleet.devices[failing[0][0]].connect()
    fleet.step()
    assert (fleet.state(rollout), len(fleet.running(TWO.digest))) == ("halted", 3)
    (back,) = [one for one in fleet.api.get("/v1/rollouts").json() if one["rollback_of"] == rollout]
    assert (back["preparing"], back["counts"]) == (3, {})
    settle(fleet)
    succeed(fleet)
    assert fleet.run(back["id"])["counts"] == {"succeeded": 3}
    assert not UNFINISHED & set(fleet.show(rollout)["counts"])
    assert fleet.running(ONE.digest) == set(DEVICES)


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_ordered_a_device_has_one_outcome_in_each_rollout(
    fleet: Fleet, seed: int
) -> None:
    """Orders, ticks and kills in any order; at the end nothing is left or unfinished."""
    chance = random.Random(seed)
    known: list[str] = []
    for _ in range(25):
        what = chance.choice(["create", "tick", "kill", "abort", "resume", "rollback", "retry"])
        if what == "create":
            release = chance.choice(["digits:1", "digits:2"])
            answer = fleet.api.post("/v1/rollouts", json={"release": release, "max_in_flight": 3})
        elif what == "tick":
            fleet.devices[chance.choice(DEVICES)].outcome = chance.choice(
                ["succeeded", "failed", "busy"]
            )
            fleet.step()
            continue
        elif what == "kill":
            fleet.kill()
            continue
        elif not known:
            continue
        else:
            body = {"rollback": {}, "retry": {"only_failed": False}}.get(what)
            answer = fleet.api.post(f"/v1/rollouts/{chance.choice(known)}/{what}", json=body)
        assert answer.status_code in {200, 201, 409}, answer.text
        if answer.status_code == 201:
            known.append(answer.json()["id"])
        twice = sa.select(DeploymentRow.device).where(DeploymentRow.state.in_(UNFINISHED))
        devices = [row[0] for row in rows(fleet, twice)]
        assert len(devices) == len(set(devices))
    settle(fleet)
    succeed(fleet)
    for rollout in known:
        fleet.run(rollout)
    settle(fleet)
    for rollout in known:
        shown = fleet.show(rollout)
        assert shown["state"] in {"succeeded", "aborted", "halted"}, shown
        assert not UNFINISHED & set(shown["counts"]), shown
