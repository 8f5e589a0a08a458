"""Rollouts as a whole: finds them, shows them to decisions, and changes their state.

`controller.store.new_rollouts` begins them, and `controller.store.rollout_steps` moves them on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlalchemy import func, or_, select, update
from sqlalchemy.orm import Session

from controller.domain.rollout_policy import wanted
from controller.domain.rollout_view import GateView, Limits, RolloutView
from controller.domain.stages import reach
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
from controller.store import (
    control_group,
    deployments,
    free_devices,
    gates,
    stage_shadows,
    stages,
    start_rates,
)
from controller.store.database import changed_rows
from controller.store.rollout_log import log
from controller.store.rollout_tables import DeploymentRow, RolloutRow
from controller.store.work_tables import RolloutWorkRow

MAX_CANDIDATES = 200
"""The greatest number of devices that one tick starts."""

_REMEDIES: Mapping[str, str] = {
    RolloutState.RUNNING: "it goes on by itself; `fleet rollout show {id}` says how far it is",
    RolloutState.PAUSED: "`fleet rollout resume {id}` lets it go on",
    RolloutState.HALTED: "`fleet rollout resume {id}` goes on without the devices that failed, "
    "`fleet rollout explain {id}` says what else can follow",
    RolloutState.SUCCEEDED: "it has ended; make a new one with `fleet rollout create`",
    RolloutState.ABORTED: "it has ended; make a new one with `fleet rollout create`; "
    "`fleet rollout explain {id}` says what else can follow",
}
"""What to do instead of an order that the state of a rollout does not allow."""


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
        raise UnknownRolloutError(
            f"there is no rollout {rollout[:64]!r}",
            remedy="`fleet rollout list` shows all rollouts",
        )
    return row


def is_there(session: Session, rollout: str) -> bool:
    """Tell whether there is a rollout of a name."""
    return session.get(RolloutRow, rollout) is not None


def active_ids(session: Session) -> list[str]:
    """Return the rollouts that have not ended and have all their devices, the oldest first."""
    return list(
        session.scalars(
            select(RolloutRow.id)
            .where(
                RolloutRow.state.in_(ACTIVE_ROLLOUTS),
                RolloutRow.id.not_in(select(RolloutWorkRow.rollout)),
            )
            .order_by(RolloutRow.created_at_s, RolloutRow.id)
        )
    )


def count_by_state(session: Session) -> dict[str, int]:
    """Return how many rollouts there are, by state."""
    statement = select(RolloutRow.state, func.count()).group_by(RolloutRow.state)
    return {row[0]: row[1] for row in session.execute(statement)}


def active_for_release(session: Session, release: str) -> list[RolloutRow]:
    """Return the rollouts that bring a release and have not ended, locked."""
    own = select(DeploymentRow.rollout).where(DeploymentRow.release == release)
    return list(
        session.scalars(
            select(RolloutRow)
            .where(
                RolloutRow.state.in_(ACTIVE_ROLLOUTS),
                or_(RolloutRow.release == release, RolloutRow.id.in_(own)),
            )
            .order_by(RolloutRow.id)
            .with_for_update()
        )
    )


def rollback_of(session: Session, rollout: str) -> str | None:
    """Return the newest rollout that rolled another one back, or None."""
    return session.scalar(
        select(RolloutRow.id)
        .where(RolloutRow.origin == rollout, RolloutRow.is_retry.is_(False))
        .order_by(RolloutRow.created_at_s.desc(), RolloutRow.id)
        .limit(1)
    )


def retries_of(session: Session, rollout: str) -> list[str]:
    """Return the rollouts that tried devices of another one again, the oldest first."""
    return list(
        session.scalars(
            select(RolloutRow.id)
            .where(RolloutRow.origin == rollout, RolloutRow.is_retry.is_(True))
            .order_by(RolloutRow.created_at_s, RolloutRow.id)
        )
    )


def limits(row: RolloutRow) -> Limits:
    """Return the limits that the operator set."""
    return Limits(
        max_in_flight=row.max_in_flight,
        soak_s=row.soak_s,
        device_deadline_s=row.device_deadline_s,
        offline_limit_s=row.offline_limit_s,
        max_failures=row.max_failures,
        max_failure_percent=row.max_failure_percent,
        min_finished=row.min_finished,
        approval=row.approval,
        max_refused=row.max_refused,
        max_timed_out=row.max_timed_out,
        worst_case=row.worst_case,
    )


def view(session: Session, row: RolloutRow, *, with_candidates: bool = True) -> RolloutView:
    """Return everything that a decision about a rollout needs.

    Args:
        session: The transaction.
        row: The rollout.
        with_candidates: Whether to look for the devices that start next.
    """
    counts = deployments.counts(session, row.id)
    # Without a gate there is no control group, and afterwards nothing to compare with.
    gate_views = () if row.control_released else gates.views(session, row)
    control = control_group.count(session, row.id) if gate_views else 0
    waiting = counts[DeploymentState.WAITING]
    specs = stages.of_rollout(session, row.id)
    below = reach(specs, row.stage)
    kinds = deployments.failure_counts(session, row.id)
    known = RolloutView(
        now_s=row.ran_s,
        state=RolloutState(row.state),
        limits=limits(row),
        is_way_back=row.is_way_back,
        stages=specs,
        stage=row.stage,
        stage_complete_at_s=row.stage_complete_at_s,
        approved_stage=row.approved_stage,
        initial_devices=row.initial_devices,
        succeeded=counts[DeploymentState.SUCCEEDED],
        failed=counts[DeploymentState.FAILED],
        refused=kinds.refused,
        timed_out=kinds.timed_out,
        acknowledged=deployments.count_acknowledged(session, row.id),
        in_flight=deployments.in_flight(session, row.id, clock_s=row.ran_s),
        waiting=waiting,
        returned=deployments.returned(session, row.id, limit=MAX_CANDIDATES) if waiting else (),
        pending=counts[DeploymentState.PENDING] - control,
        control=control,
        reachable=deployments.count_below(session, row.id, below) if below is not None else None,
        may_start=start_rates.may_start(session, row, counts[DeploymentState.SUCCEEDED]),
        gates=gate_views,
        superseded_by=row.superseded_by or "",
        awaits=free_devices.awaited(session, row.id),
        gates_passed_by_hand=row.gates_passed_by_hand,
        shadow=stage_shadows.view(session, row),
    )
    if not with_candidates or not known.pending:
        return known
    room = min(wanted(known), MAX_CANDIDATES)
    found = deployments.candidates(
        session, row.id, limit=room, with_control=not control, below=below
    )
    return replace(known, candidates=found)


def move(session: Session, row: RolloutRow, order: RolloutOrder) -> None:
    """Change the state of a rollout.

    Args:
        session: The transaction.
        row: The rollout.
        order: What happens to it.

    Raises:
        IllegalTransitionError: Its state does not allow that order.
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
        raise IllegalTransitionError(
            f"rollout {row.id} is {row.state}: it cannot {order}",
            remedy=_REMEDIES.get(row.state, "").format(id=row.id),
        )


def approve(session: Session, row: RolloutRow, *, now_s: float) -> None:
    """Let the stage after the current one begin."""
    row.approved_stage = row.stage + 1
    reason = f"stage {row.approved_stage} was approved"
    log(session, row.id, action="approve", reason=reason, now_s=now_s)


def pass_by_hand(
    session: Session, row: RolloutRow, held: Sequence[GateView], *, now_s: float
) -> None:
    """Let the current stage end despite gates that hold it."""
    row.gates_passed_by_hand = row.stage
    names = ", ".join(gate.text for gate in held)
    reason = f"stage {row.stage} may end without {names}: approved by hand"
    log(session, row.id, action="approve", reason=reason, now_s=now_s)


def begin_by_hand(session: Session, row: RolloutRow, *, now_s: float) -> None:
    """Let the current stage begin without the shadow that holds it."""
    stage_shadows.waive(session, row, now_s=now_s)
    reason = f"stage {row.stage} may begin without its shadow: approved by hand"
    log(session, row.id, action="approve", reason=reason, now_s=now_s)
