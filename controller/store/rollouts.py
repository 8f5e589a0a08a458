"""Rollouts, their stages and their log."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from controller.domain.rollout_policy import Limits, RolloutView, StageSpec
from controller.domain.states import (
    ACTIVE_ROLLOUTS,
    ROLLOUT_TRANSITIONS,
    DeploymentState,
    RolloutOrder,
    RolloutState,
    outcome,
    sources,
)
from controller.errors import IllegalTransitionError, UnknownRolloutError
from controller.store import deployments
from controller.store.statements import changed_rows
from controller.store.tables import MAX_DETAIL_CHARS, RolloutEventRow, RolloutRow, RolloutStageRow

MAX_CANDIDATES = 1000
"""Devices that one tick may start."""


def get(session: Session, rollout: str, *, lock: bool = False) -> RolloutRow:
    """Return a rollout.

    Args:
        session: The transaction.
        rollout: Its identifier.
        lock: Keep other transactions from changing it.

    Returns:
        The row.

    Raises:
        UnknownRolloutError: There is none of that name.
    """
    row = session.get(RolloutRow, rollout, with_for_update=lock or None)
    if row is None:
        raise UnknownRolloutError(f"there is no rollout {rollout[:64]!r}")
    return row


def active_ids(session: Session) -> list[str]:
    """Return the rollouts that have not ended, the oldest first."""
    return list(
        session.scalars(
            select(RolloutRow.id)
            .where(RolloutRow.state.in_(ACTIVE_ROLLOUTS))
            .order_by(RolloutRow.created_at_s, RolloutRow.id)
        )
    )


def active_for_release(session: Session, release: str) -> list[RolloutRow]:
    """Return the rollouts of a release that have not ended, locked."""
    return list(
        session.scalars(
            select(RolloutRow)
            .where(RolloutRow.state.in_(ACTIVE_ROLLOUTS), RolloutRow.release == release)
            .order_by(RolloutRow.id)
            .with_for_update()
        )
    )


def newest(session: Session, *, limit: int) -> list[RolloutRow]:
    """Return rollouts, the newest first."""
    statement = select(RolloutRow).order_by(RolloutRow.created_at_s.desc(), RolloutRow.id)
    return list(session.scalars(statement.limit(limit)))


def stages(session: Session, rollout: str) -> tuple[StageSpec, ...]:
    """Return the stages of a rollout in order."""
    rows = session.scalars(
        select(RolloutStageRow)
        .where(RolloutStageRow.rollout == rollout)
        .order_by(RolloutStageRow.number)
    )
    return tuple(StageSpec(count=row.count, percent=row.percent) for row in rows)


def add(session: Session, row: RolloutRow, specs: Sequence[StageSpec]) -> None:
    """Keep a new rollout and its stages."""
    session.add(row)
    session.flush()
    session.add_all(
        RolloutStageRow(rollout=row.id, number=number, count=spec.count, percent=spec.percent)
        for number, spec in enumerate(specs, start=1)
    )


def limits(row: RolloutRow) -> Limits:
    """Return what the operator set."""
    return Limits(
        max_in_flight=row.max_in_flight,
        soak_s=row.soak_s,
        device_deadline_s=row.device_deadline_s,
        max_failures=row.max_failures,
        max_failure_percent=row.max_failure_percent,
        min_finished=row.min_finished,
        approval=row.approval,
    )


def view(session: Session, row: RolloutRow, *, now_s: float) -> RolloutView:
    """Return all that a decision about a rollout looks at."""
    counts = deployments.counts(session, row.id)
    room = min(row.max_in_flight, MAX_CANDIDATES)
    return RolloutView(
        now_s=now_s,
        state=RolloutState(row.state),
        limits=limits(row),
        stages=stages(session, row.id),
        stage=row.stage,
        stage_complete_at_s=row.stage_complete_at_s,
        approved_stage=row.approved_stage,
        initial_devices=row.initial_devices,
        succeeded=counts.get(DeploymentState.SUCCEEDED, 0),
        failed=counts.get(DeploymentState.FAILED, 0),
        in_flight=deployments.in_flight(session, row.id),
        waiting=counts.get(DeploymentState.PENDING, 0),
        candidates=deployments.candidates(session, row.id, limit=room),
    )


def move(session: Session, row: RolloutRow, order: RolloutOrder) -> None:
    """Change the state of a rollout.

    Args:
        session: The transaction.
        row: The rollout.
        order: What happens to it.

    Raises:
        IllegalTransitionError: It is in a state from which that leads nowhere.
    """
    target = outcome(ROLLOUT_TRANSITIONS, order)
    session.flush()
    changed = changed_rows(
        session,
        update(RolloutRow)
        .where(
            RolloutRow.id == row.id,
            RolloutRow.state.in_(sources(ROLLOUT_TRANSITIONS, order)),
        )
        .values(state=target),
    )
    if changed != 1:
        raise IllegalTransitionError(f"rollout {row.id} is {row.state}: it cannot {order}")


def log(session: Session, rollout: str, *, action: str, reason: str, now_s: float) -> None:
    """Write down a decision and why it was made."""
    session.add(
        RolloutEventRow(
            rollout=rollout, at_s=now_s, action=action, reason=reason[:MAX_DETAIL_CHARS]
        )
    )


def events(session: Session, rollout: str, *, limit: int) -> list[RolloutEventRow]:
    """Return the log of a rollout: its newest entries, the oldest of them first."""
    rows = session.scalars(
        select(RolloutEventRow)
        .where(RolloutEventRow.rollout == rollout)
        .order_by(RolloutEventRow.id.desc())
        .limit(limit)
    )
    return list(rows)[::-1]
