"""Rollouts: their rows, stages and log.

This module makes, finds and shows them; `controller.store.rollout_steps` moves them on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from sqlalchemy import func, or_, select, update
from sqlalchemy.orm import Session

from controller.domain.rollout_policy import wanted
from controller.domain.rollout_view import GateView, Limits, OnHalt, RolloutView, StageSpec
from controller.domain.stages import reach, resolved
from controller.domain.start_rate import StartRate
from controller.domain.starting_order import group_of
from controller.domain.states import (
    ACTIVE_ROLLOUTS,
    ROLLOUT_TRANSITIONS,
    DeploymentState,
    RolloutOrder,
    RolloutState,
    WorkKind,
    outcome,
    sources,
)
from controller.domain.wording import counted
from controller.errors import ConflictError, IllegalTransitionError, UnknownRolloutError
from controller.store import (
    acting,
    deployments,
    free_devices,
    gates,
    new_deployments,
    rollout_notices,
    rollout_work,
    stage_shadows,
    stages,
    start_rates,
)
from controller.store.database import changed_rows
from controller.store.new_deployments import Intake
from controller.store.rollout_tables import DeploymentRow, RolloutEventRow, RolloutRow
from controller.store.tables import MAX_DETAIL_CHARS
from controller.store.work_tables import RolloutWorkRow

MAX_CANDIDATES = 200
"""The greatest number of devices that one tick starts."""

LOST = "not taken in: gone, or in this or another rollout, since the order"

_REMEDIES: Mapping[str, str] = {
    RolloutState.RUNNING: "it goes on by itself; `fleet rollout show {id}` says how far it is",
    RolloutState.PAUSED: "`fleet rollout resume {id}` lets it go on",
    RolloutState.HALTED: "`fleet rollout resume {id}` goes on without the devices that failed, "
    "`fleet rollout retry {id}` tries them again",
    RolloutState.SUCCEEDED: "it has ended; make a new one with `fleet rollout create`",
    RolloutState.ABORTED: "it has ended; make a new one with `fleet rollout create`, "
    "or `fleet rollout retry {id}`",
}
"""What to do instead of an order that the state of a rollout does not allow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRollout:
    """A rollout as it begins."""

    id: str
    release: str
    """The digest."""

    model: str
    """The name of the release."""

    selector: str
    limits: Limits
    stages: tuple[StageSpec, ...]
    origin: str | None = None
    """The rollout whose devices it takes."""

    is_retry: bool = False
    """Whether it tries the release of its origin again, and does not roll it back."""

    created_at_s: float
    releases: Mapping[str, str] = field(default_factory=dict)
    """Device to the release that it is brought to, where that is another one."""

    gates: tuple[str, ...] = ()
    stage_gates: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """By the number of the only stage in which they are asked."""

    spread: str = ""
    """The label over which the order of starting is spread."""

    rate: StartRate | None = None
    control: frozenset[str] = frozenset()
    """The devices that are held out, to compare the others with."""

    on_halt: OnHalt = "keep"
    is_way_back: bool = False
    """Whether it brings devices back to what they had, as fast as it can."""

    priority: int = 0
    windows: tuple[str, ...] = ()


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


def begin(session: Session, new: NewRollout, found: Intake) -> None:
    """Save a new rollout with its stages, and take its devices in, as many as now can be.

    What is left is saved, and the rollout begins when it is done.

    Args:
        session: The transaction.
        new: The rollout.
        found: Its devices.

    Raises:
        ConflictError: All of them are gone, or in another rollout, since it was decided.
    """
    limits, placed = new.limits, found.placed
    session.add(
        RolloutRow(
            id=new.id,
            release=new.release,
            model=new.model,
            origin=new.origin,
            is_retry=new.is_retry,
            selector=new.selector,
            spread=new.spread,
            state=RolloutState.RUNNING,
            reason="",
            max_in_flight=limits.max_in_flight,
            soak_s=limits.soak_s,
            device_deadline_s=limits.device_deadline_s,
            offline_limit_s=limits.offline_limit_s,
            max_failures=limits.max_failures,
            max_failure_percent=limits.max_failure_percent,
            min_finished=limits.min_finished,
            approval=limits.approval,
            max_refused=limits.max_refused,
            max_timed_out=limits.max_timed_out,
            worst_case=limits.worst_case,
            on_halt=new.on_halt,
            is_way_back=new.is_way_back,
            gate_ends_left=len(new.stages),
            priority=new.priority,
            windows=list(new.windows) or None,
            initial_devices=len(placed),
            stage=1,
            approved_stage=1,
            ran_s=0.0,
            created_at_s=new.created_at_s,
            created_by=acting.actor(),
        )
    )
    acting.about(new.id)
    session.flush()
    start_rates.add(session, new.id, new.rate)
    gates.add(session, new.id, new.gates, new.stage_gates)
    every = (group_of(place) for place in placed.values())  # read where stages choose devices
    held = (group_of(placed[device]) for device in new.control)
    stages.add(session, new.id, resolved(new.stages, every, held))
    lost = new_deployments.take_in_first(session, new.id, new.model, found, now_s=new.created_at_s)
    what = "made"
    if new.origin is not None:
        what = f"made to {'try again' if new.is_retry else 'roll back'} {new.origin}"
    steps = "1 stage" if len(new.stages) == 1 else f"{len(new.stages)} stages"
    reason = f"{what} for {counted(len(placed))} in {steps}"
    if new.control:
        reason += f"; {len(new.control)} of them keep the old release until the gates have passed"
    log(session, new.id, action="create", reason=reason, now_s=new.created_at_s)
    if len(lost) == len(placed):
        raise ConflictError(
            f"device {lost[0]} is gone or joined another rollout just now", remedy="try again"
        )
    if lost:
        why = named(lost, LOST)
        log(session, new.id, action="skip", reason=why, now_s=new.created_at_s)


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
    control = deployments.count_control(session, row.id) if gate_views else 0
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
    reason = f"stage {row.approved_stage} was approved by the operator"
    log(session, row.id, action="approve", reason=reason, now_s=now_s)


def pass_by_hand(
    session: Session, row: RolloutRow, held: Sequence[GateView], *, now_s: float
) -> None:
    """Let the current stage end despite gates that hold it."""
    row.gates_passed_by_hand = row.stage
    names = ", ".join(gate.text for gate in held)
    reason = f"stage {row.stage} may end without {names}: approved by the operator"
    log(session, row.id, action="approve", reason=reason, now_s=now_s)


def begin_by_hand(session: Session, row: RolloutRow, *, now_s: float) -> None:
    """Let the current stage begin without the shadow that holds it."""
    stage_shadows.waive(session, row, now_s=now_s)
    reason = f"stage {row.stage} may begin without its shadow: approved by the operator"
    log(session, row.id, action="approve", reason=reason, now_s=now_s)


def log(session: Session, rollout: str, *, action: str, reason: str, now_s: float) -> None:
    """Write down a decision and why it was made."""
    event = RolloutEventRow(
        rollout=rollout,
        at_s=now_s,
        action=action,
        reason=reason[:MAX_DETAIL_CHARS],
        actor=acting.actor(),
    )
    session.add(event)
    rollout_notices.note(session, event)


def events(session: Session, rollout: str, *, limit: int) -> list[RolloutEventRow]:
    """Return the log of a rollout: its newest entries, the oldest of them first."""
    rows = session.scalars(
        select(RolloutEventRow)
        .where(RolloutEventRow.rollout == rollout)
        .order_by(RolloutEventRow.id.desc())
        .limit(limit)
    )
    return list(rows)[::-1]


def leave_out(
    session: Session, rollout: str, model: str, unfit: Mapping[str, str], *, now_s: float
) -> None:
    """Record devices that a rollout leaves out because they cannot take its release.

    Args:
        session: The transaction.
        rollout: The rollout.
        model: Its model.
        unfit: Each such device with its reason; none of them takes part yet.
        now_s: Wall time.
    """
    if unfit:
        room = rollout_work.AT_ONCE
        first, rest = dict(islice(unfit.items(), room)), dict(islice(unfit.items(), room, None))
        new_deployments.leave_out(session, rollout, model, first, now_s=now_s)
        rollout_work.save(session, rollout, WorkKind.LEAVE_OUT, rest)
        reason = named(list(unfit), "left out: cannot take the release")
        log(session, rollout, action="skip", reason=reason, now_s=now_s)


def named(devices: Sequence[str], what: str) -> str:
    """Return what happened to devices, with the names of the first of them."""
    shown = ", ".join(devices[:5]) + (", ..." if len(devices) > 5 else "")  # noqa: PLR2004 - what a line holds
    return f"{counted(len(devices))} {what}: {shown}"
