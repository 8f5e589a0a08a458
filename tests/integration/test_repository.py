"""The control state: what the database forbids, and what two writers cannot both do."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import text

from controller.domain.rollout_policy import decide
from controller.domain.states import (
    AUTO,
    DeploymentEvent,
    DeploymentState,
    DeviceState,
    RolloutOrder,
)
from controller.errors import (
    ConflictError,
    DatabaseError,
    IllegalTransitionError,
    UnknownDeviceError,
    UnknownReleaseError,
    UnknownRolloutError,
)
from controller.store import (
    deployment_changes,
    deployments,
    desired,
    devices,
    releases,
    rollout_steps,
    rollouts,
    tokens,
    way_back,
)
from controller.store.database import Database
from tests.simulators.stored_fleet import (
    DIGEST,
    NOW_S,
    OTHER,
    THIRD,
    add_device,
    add_release,
    add_rollout,
    add_told,
)


@pytest.fixture
def busy(database: Database) -> Database:
    """Two devices in a rollout, one of them started."""
    with database.transaction() as session:
        add_device(session, "one")
        add_device(session, "two")
        add_release(session)
        row = add_rollout(session, "r1", ("one", "two"))
        rollout_steps.start(session, row, ["one"], now_s=NOW_S)
    return database


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE device SET state = 'odd'",
        "UPDATE release SET state = 'odd'",
        "UPDATE rollout SET state = 'odd'",
        "UPDATE deployment SET state = 'odd'",
        "UPDATE rollout SET stage = 0",
        "UPDATE rollout SET max_in_flight = 0",
        "UPDATE desired_state SET revision = 0",
        "UPDATE deployment SET state = 'succeeded' WHERE device = 'two'",
        "UPDATE rollout_stage SET count = 3",
        "UPDATE rollout_stage SET percent = NULL",
        "DELETE FROM device",
        "DELETE FROM release",
        "UPDATE desired_model SET release = 'nowhere'",
        "UPDATE desired_model SET removed = TRUE",
    ],
)
def test_the_database_forbids(busy: Database, statement: str) -> None:
    told = pytest.raises(ConflictError, match=r"^(another order has|the database does not)")
    with told, busy.transaction() as session:
        session.execute(text(statement))


def test_a_device_has_one_unfinished_deployment(busy: Database) -> None:
    with pytest.raises(ConflictError), busy.transaction() as session:
        add_rollout(session, "r2", ("two",))
    with busy.transaction() as session:
        row = rollouts.get(session, "r1", lock=True)
        rollout_steps.end(session, row, RolloutOrder.ABORT, reason="x", now_s=NOW_S)
        add_rollout(session, "r2", ("two",))
    again = "UPDATE deployment SET state = 'pending' WHERE rollout = 'r1' AND device = 'two'"
    told = pytest.raises(ConflictError, match=r"^a device joined another unfinished rollout")
    with told, busy.transaction() as session:
        session.execute(text(again))


def test_a_device_has_one_unfinished_deployment_of_each_model(busy: Database) -> None:
    with busy.transaction() as session:
        add_release(session, OTHER, name="faces")
        row = add_rollout(session, "r2", ("one", "two"), OTHER, "faces")
        rollout_steps.start(session, row, ["one"], now_s=NOW_S)
    with pytest.raises(ConflictError), busy.transaction() as session:
        add_rollout(session, "r3", ("two",), OTHER, "faces")
    with busy.reading() as session:
        (document,) = desired.documents(session, ["one"])
    models = [(model.name, model.revision, model.rollout) for model in document.desired.models]
    assert (document.desired.revision, models) == (2, [("digits", 1, "r1"), ("faces", 2, "r2")])


def test_a_failed_transaction_leaves_nothing(database: Database) -> None:
    with pytest.raises(ZeroDivisionError), database.transaction() as session:
        add_device(session, "one")
        raise ZeroDivisionError
    with database.reading() as session, pytest.raises(UnknownDeviceError):
        devices.get(session, "one")


def test_a_broken_statement_is_a_fault_of_ours(database: Database) -> None:
    with pytest.raises(DatabaseError) as caught, database.transaction() as session:
        session.execute(text("SELECT * FROM nowhere"))
    assert "\n" not in str(caught.value)


def test_unknown_names(database: Database) -> None:
    with database.reading() as session:
        with pytest.raises(UnknownReleaseError):
            releases.get(session, "digits:9")
        with pytest.raises(UnknownRolloutError):
            rollouts.get(session, "r9")


def test_a_deployment_moves_only_along_the_table(busy: Database) -> None:
    with pytest.raises(IllegalTransitionError), busy.transaction() as session:
        deployment_changes.move(session, "r1", ["one"], DeploymentEvent.ASSIGN, now_s=NOW_S)
    with pytest.raises(IllegalTransitionError), busy.transaction() as session:
        deployment_changes.move(session, "r1", ["one", "two"], DeploymentEvent.FAIL, now_s=NOW_S)
    with busy.reading() as session:
        counts = deployments.counts(session, "r1")
    assert counts == {DeploymentState.ASSIGNED: 1, DeploymentState.PENDING: 1}


def test_an_ended_rollout_cannot_be_ended_again(busy: Database) -> None:
    with busy.transaction() as session:
        row = rollouts.get(session, "r1", lock=True)
        rollout_steps.end(session, row, RolloutOrder.HALT, reason="x", now_s=NOW_S)
    for order in (RolloutOrder.HALT, RolloutOrder.ABORT, RolloutOrder.PAUSE):
        with pytest.raises(IllegalTransitionError), busy.transaction() as session:
            rollouts.move(session, rollouts.get(session, "r1"), order)


def test_of_two_writers_one_wins(busy: Database) -> None:
    results: list[str] = []

    def abort() -> None:
        try:
            with busy.transaction() as session:
                row = rollouts.get(session, "r1", lock=True)
                rollout_steps.end(session, row, RolloutOrder.ABORT, reason="x", now_s=NOW_S)
            results.append("won")
        except IllegalTransitionError:
            results.append("lost")

    threads = [threading.Thread(target=abort) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["lost", "lost", "lost", "won"]


def test_a_token_is_used_no_more_often_than_it_may(database: Database) -> None:
    with database.transaction() as session:
        tokens.add(
            session,
            sha256=DIGEST,
            username="enrol-1",
            uses=3,
            labels={},
            accepts=AUTO,
            now_s=NOW_S,
            expires_at_s=NOW_S + 10,
        )
    used: list[bool] = []

    def use() -> None:
        with database.transaction() as session:
            used.append(tokens.use(session, DIGEST, now_s=NOW_S))

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(used) == 3


def test_an_expired_token_is_none(database: Database) -> None:
    with database.transaction() as session:
        tokens.add(
            session,
            sha256=DIGEST,
            username="enrol-1",
            uses=3,
            labels={},
            accepts=AUTO,
            now_s=NOW_S,
            expires_at_s=NOW_S + 10,
        )
        assert not tokens.use(session, DIGEST, now_s=NOW_S + 10)
        assert tokens.find_valid(session, DIGEST, now_s=NOW_S + 10) is None
        assert tokens.over(session, now_s=NOW_S + 10, used_before_s=NOW_S)


def test_revisions_only_grow(database: Database) -> None:
    with database.transaction() as session:
        add_device(session, "one")
        add_release(session)
        for wanted in (1, 2, 3):
            issued = desired.issue(session, "digits", {"one": DIGEST}, rollout=None, now_s=NOW_S)
            assert issued == {"one": wanted}
        assert desired.reissue(session, "one", above=40, now_s=NOW_S) == 41
        issued = desired.issue(session, "digits", {"one": None}, rollout=None, now_s=NOW_S)
        assert issued == {"one": 42}


def test_many_devices_at_once(database: Database) -> None:
    members = tuple(f"d{n:04}" for n in range(450))
    with database.transaction() as session:
        for name in members:
            add_device(session, name)
        add_release(session)
        row = add_rollout(session, "r1", members)
        rollout_steps.start(session, row, members, now_s=NOW_S)
    with database.reading() as session:
        assert deployments.counts(session, "r1") == {DeploymentState.ASSIGNED: 450}
        assert len(desired.documents(session, members)) == 450


def test_a_device_that_returns_while_its_rollout_ends_gets_its_order(database: Database) -> None:
    with database.transaction() as session:
        add_device(session, "here").online = True
        away = add_device(session, "away")
        add_release(session)
        row = add_rollout(session, "r1", ("here", "away"))
        rollout_steps.start(session, row, ["here"], now_s=NOW_S)
        done = DeploymentEvent.SUCCEED
        deployment_changes.move(session, "r1", ["here"], done, now_s=NOW_S)
        row.stage_complete_at_s, row.ran_s = 0.0, row.offline_limit_s
        decision = decide(rollouts.view(session, row))
        assert (decision.action, decision.leave) == ("finish", 1)
        away.online = True  # what another transaction commits here is seen on PostgreSQL
        session.flush()
        assert rollout_steps.save_decision(session, row, decision, now_s=NOW_S) == ["away"]
        assert deployments.in_state(session, "r1", DeploymentState.WAITING) == ["away"]


def test_previous_is_what_a_device_was_sent_back_to_or_what_it_says_that_it_runs(
    database: Database,
) -> None:
    with database.transaction() as session:
        add_release(session)
        add_release(session, OTHER, "2")
        back = add_device(session, "sent-back")
        add_told(session, back, OTHER)
        add_device(session, "silent")
        strange = add_device(session, "strange")
        add_told(session, strange, "9" * 64)
        add_device(session, "new")
        add_release(session, THIRD, "3")
        had: dict[str, str | None] = dict.fromkeys(("sent-back", "silent", "strange"), DIGEST)
        desired.issue(session, "digits", had, rollout=None, now_s=NOW_S)
        row = add_rollout(session, "r1", ("sent-back", "silent", "strange", "new"), THIRD)
        wanted = deployments.targets(session, "r1", ["sent-back", "silent", "strange", "new"])
        found = way_back.releases_before(session, row, wanted)
    assert {device: before.release for device, before in found.items()} == {
        "sent-back": DIGEST,
        "silent": DIGEST,
        "strange": DIGEST,
        "new": None,
    }
    assert [device for device, before in found.items() if before.is_nothing] == ["new"]


def test_a_device_reads_only_what_it_is_meant_to_run(database: Database) -> None:
    blob = "c" * 64
    with database.transaction() as session:
        add_device(session, "one")
        add_device(session, "two")
        add_release(session)
        desired.issue(session, "digits", {"one": DIGEST}, rollout=None, now_s=NOW_S)
    with database.transaction() as session:
        asked = [("one", blob), ("two", blob), ("one", OTHER), ("stranger", blob)]
        assert releases.readable_blobs(session, asked) == {("one", blob): 100}
        devices.move(session, "one", DeviceState.QUARANTINED, now_s=NOW_S)
        assert releases.readable_blobs(session, asked) == {}
        devices.move(session, "one", DeviceState.ENROLLED, now_s=NOW_S)
        releases.revoke(session, releases.get(session, DIGEST))
        assert releases.readable_blobs(session, asked) == {}
        (document,) = desired.documents(session, ["one"])
        assert [model.release for model in document.desired.models] == [None]
