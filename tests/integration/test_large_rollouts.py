"""What a rollout does with many devices costs no more statements than with few."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from controller.domain.rollout_policy import Decision, decide
from controller.domain.states import DeploymentEvent, DeploymentState, RolloutOrder, RolloutState
from controller.errors import ConflictError
from controller.rollout_schemas import RolloutRequest
from controller.services.pace import Pace
from controller.store import (
    deployment_changes,
    deployments,
    rollout_steps,
    rollout_work,
    rollouts,
)
from controller.store.database import Database
from tests.simulators.controller_fleet import Fleet
from tests.simulators.packages import two_variants
from tests.simulators.stored_fleet import NOW_S, add_device, add_release, add_rollout


@contextmanager
def counted(database: Database) -> Iterator[list[str]]:
    """Collect the statements of the `with` block."""
    sent: list[str] = []

    def note(*arguments: object) -> None:
        sent.append(str(arguments[2]))

    sa.event.listen(database.engine, "before_cursor_execute", note)
    yield sent
    sa.event.remove(database.engine, "before_cursor_execute", note)


def started(session: Session, rollout: str, first: int, count: int) -> None:
    """Make a rollout of so many devices, of which one is in flight."""
    members = tuple(f"d{n:04}" for n in range(first, first + count))
    for name in members:
        add_device(session, name).online = True
    row = add_rollout(session, rollout, members)
    rollout_steps.start(session, row, members[:1], now_s=NOW_S)


def test_a_tick_and_an_end_send_as_many_statements_whatever_the_fleet(database: Database) -> None:
    sizes, sent = {"small": 5, "large": 450}, {}
    with database.transaction() as session:
        add_release(session)
        for at, (name, size) in enumerate(sizes.items()):
            started(session, name, at * 2000, size)
    for name, size in sizes.items():
        with counted(database) as statements, database.transaction() as session:
            row = rollouts.get(session, name, lock=True)
            rollout_steps.look(session, row, elapsed_s=1.0)
            decision = decide(rollouts.view(session, row))
            assert len(decision.start) == min(size, row.max_in_flight) - 1
            rollout_steps.end(session, row, RolloutOrder.HALT, reason="x", now_s=NOW_S)
        sent[name] = len(statements)
        with database.reading() as session:
            assert deployments.counts(session, name) == {DeploymentState.CANCELLED: size}
    assert sent["small"] == sent["large"]


def test_a_change_finds_its_devices_and_does_not_read_their_rollout(database: Database) -> None:
    if database.engine.name != "sqlite":
        pytest.skip("PostgreSQL plans by what it knows of the rows")
    with database.transaction() as session:
        add_release(session)
        started(session, "r1", 0, 2)
        fail = DeploymentEvent.FAIL
        with counted(database) as statements:
            deployment_changes.move(session, "r1", ["d0000"], fail, now_s=NOW_S)
        statement = statements[-1]
        plan = session.connection().exec_driver_sql(
            f"EXPLAIN QUERY PLAN {statement}", ("",) * statement.count("?")
        )
        assert [row[3] for row in plan] == [
            "SEARCH deployment USING INDEX ix_deployment_device_revision (device=?)"
        ]


def test_a_rollout_leaves_its_release_to_many_devices_in_steps(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout_steps, "MAX_LEFT", 2)
    waiting = DeploymentState.WAITING
    left = []
    with database.transaction() as session:
        add_release(session)
        started(session, "r1", 0, 6)
        done = DeploymentEvent.SUCCEED
        deployment_changes.move(session, "r1", ["d0000"], done, now_s=NOW_S)
        session.execute(sa.text("UPDATE device SET online = FALSE"))
        row = rollouts.get(session, "r1")
        row.stage_complete_at_s, row.ran_s = 0.0, row.offline_limit_s
        decision: Decision | None = None
        while row.state == RolloutState.RUNNING:
            decision = decide(rollouts.view(session, row))
            rollout_steps.save_decision(session, row, decision, now_s=NOW_S)
            session.refresh(row)
            left.append(len(deployments.in_state(session, "r1", waiting)))
        assert decision is not None
    assert (decision.action, left) == ("finish", [2, 4, 5])
    assert (
        decision.reason == "1 of 6 devices installed it; 5 devices are offline and get it on return"
    )


@pytest.mark.flow
def test_a_rollout_does_not_end_before_somebody_has_looked_for_newcomers(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(database_url, tmp_path)
    fleet.publish(two_variants("1", best="one"))
    fleet.enrol("cam-1")
    fleet.devices["cam-1"].outcome = "busy"
    rollout = fleet.roll_out("digits:1")
    fleet.step()
    monkeypatch.setattr(Pace, "is_due", lambda _self: False)
    fleet.enrol("late")
    fleet.step()
    assert fleet.show(rollout)["counts"] == {"assigned": 1}
    cam = fleet.devices["cam-1"]
    cam.outcome = "succeeded"
    cam.connect()
    assert fleet.run(rollout)["counts"] == {"succeeded": 2}
    fleet.close()


def test_of_two_that_make_rollouts_at_once_one_is_refused_and_leaves_nothing(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout_work, "AT_ONCE", 2)
    fleet = Fleet(database_url, tmp_path)
    fleet.publish(two_variants("1", best="one"))
    fleet.enrol("cam-1", "cam-2", "cam-3")
    service = fleet.controller.app.state.services.rollouts
    made: list[str] = []
    refused: list[ConflictError] = []
    together = threading.Barrier(2)

    def make() -> None:
        together.wait()
        try:
            made.append(service.create(RolloutRequest(release="digits:1")))
        except ConflictError as exc:
            refused.append(exc)

    threads = [threading.Thread(target=make) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(made), len(refused)) == (1, 1)
    shown = fleet.api.get("/v1/rollouts").raise_for_status().json()
    assert [(each["id"], each["counts"]) for each in shown] == [(made[0], {"pending": 3})]
    fleet.close()
