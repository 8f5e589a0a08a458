"""Rollouts: their rows, stages and log, and the steps that a rollout is made of.

Rules:
- A step returns the devices that have a new desired state. The caller publishes them after the
  transaction.
- A device that goes back gets a new desired state, because a revision never goes down.
- A decision, its effects and its reason are saved in one transaction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from controller.domain.rollout_policy import Decision, Limits, RolloutView, StageSpec, counted
from controller.domain.selectors import parse_selector
from controller.domain.states import (
    ACTIVE_ROLLOUTS,
    ROLLOUT_TRANSITIONS,
    DeploymentEvent,
    DeploymentState,
    RolloutOrder,
    RolloutState,
    outcome,
    sources,
)
from controller.errors import IllegalTransitionError, UnknownRolloutError
from controller.store import deployments, desired
from controller.store.database import changed_rows
from controller.store.deployments import Verdict
from controller.store.tables import MAX_DETAIL_CHARS, RolloutEventRow, RolloutRow, RolloutStageRow

MAX_CANDIDATES = 1000
"""The greatest number of devices that one tick starts."""

MAX_NEWCOMERS = 1000
"""The greatest number of devices that join in one tick."""

_SILENT = Verdict(error_code="controller.deadline", detail="sent no report before its deadline")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRollout:
    """A rollout as it begins."""

    id: str
    release: str
    """The digest."""

    selector: str
    limits: Limits
    stages: tuple[StageSpec, ...]
    rollback_of: str | None = None
    created_at_s: float


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


def begin(session: Session, new: NewRollout, devices: Sequence[str]) -> None:
    """Save a new rollout with its stages and its devices."""
    limits = new.limits
    session.add(
        RolloutRow(
            id=new.id,
            release=new.release,
            rollback_of=new.rollback_of,
            selector=new.selector,
            state=RolloutState.RUNNING,
            reason="",
            max_in_flight=limits.max_in_flight,
            soak_s=limits.soak_s,
            device_deadline_s=limits.device_deadline_s,
            max_failures=limits.max_failures,
            max_failure_percent=limits.max_failure_percent,
            min_finished=limits.min_finished,
            approval=limits.approval,
            initial_devices=len(devices),
            stage=1,
            approved_stage=1,
            created_at_s=new.created_at_s,
        )
    )
    session.flush()
    session.add_all(
        RolloutStageRow(rollout=new.id, number=number, count=spec.count, percent=spec.percent)
        for number, spec in enumerate(new.stages, start=1)
    )
    _take_in(session, new.id, devices)
    what = "made" if new.rollback_of is None else f"made to roll back {new.rollback_of}"
    reason = f"{what} for {counted(len(devices))} in {len(new.stages)} stages"
    log(session, new.id, action="create", reason=reason, now_s=new.created_at_s)


def limits(row: RolloutRow) -> Limits:
    """Return the limits that the operator set."""
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
    """Return everything that a decision about a rollout needs."""
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
        raise IllegalTransitionError(f"rollout {row.id} is {row.state}: it cannot {order}")


def approve(session: Session, row: RolloutRow, *, now_s: float) -> None:
    """Let the stage after the current one begin."""
    row.approved_stage = row.stage + 1
    reason = f"stage {row.approved_stage} was approved by the operator"
    log(session, row.id, action="approve", reason=reason, now_s=now_s)


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


def join_newcomers(session: Session, row: RolloutRow, *, now_s: float) -> None:
    """Let devices that enrolled since the beginning take part in the last stage of a rollout."""
    selector = parse_selector(row.selector)
    found = deployments.newcomers(session, row.id, selector, limit=MAX_NEWCOMERS)
    if found:
        _take_in(session, row.id, found)
        reason = _named(found, "joined late")
        log(session, row.id, action="join", reason=reason, now_s=now_s)


def save_decision(
    session: Session, row: RolloutRow, decision: Decision, *, now_s: float
) -> list[str]:
    """Save a decision, its reason and its effects.

    Args:
        session: The transaction.
        row: The rollout, locked.
        decision: What was decided.
        now_s: Wall time.

    Returns:
        The devices that have a new desired state.

    Raises:
        IllegalTransitionError: A device or the rollout has changed its state in the meantime.
    """
    if expired := decision.expired:
        deployments.move(
            session, row.id, expired, DeploymentEvent.FAIL, now_s=now_s, verdict=_SILENT
        )
        reason = _named(expired, _SILENT.detail)
        log(session, row.id, action="expire", reason=reason, now_s=now_s)
    row.stage_complete_at_s = decision.stage_complete_at_s
    match decision.action:
        case "halt":
            return end(session, row, RolloutOrder.HALT, reason=decision.reason, now_s=now_s)
        case "finish":
            return end(session, row, RolloutOrder.FINISH, reason=decision.reason, now_s=now_s)
        case "advance":
            row.stage += 1
        case "hold":
            pass
    if row.reason != decision.reason:
        row.reason = decision.reason
        log(session, row.id, action=decision.action, reason=decision.reason, now_s=now_s)
    return start(session, row, decision.start, now_s=now_s)


def start(session: Session, row: RolloutRow, devices: Sequence[str], *, now_s: float) -> list[str]:
    """Give devices the release of a rollout.

    Args:
        session: The transaction.
        row: The rollout.
        devices: Devices whose deployments are pending.
        now_s: Wall time.

    Returns:
        The devices, which have a new desired state.

    Raises:
        IllegalTransitionError: A deployment is no longer pending.
    """
    if not devices:
        return []
    before = deployments.releases_before(session, devices)
    revisions = desired.issue(
        session, dict.fromkeys(devices, row.release), rollout=row.id, now_s=now_s
    )
    deployments.start(session, row.id, revisions, before, stage=row.stage, now_s=now_s)
    reason = _named(devices, f"for stage {row.stage}")
    log(session, row.id, action="start", reason=reason, now_s=now_s)
    return list(devices)


def end(
    session: Session, row: RolloutRow, order: RolloutOrder, *, reason: str, now_s: float
) -> list[str]:
    """End a rollout: none of its devices starts any more.

    Args:
        session: The transaction.
        row: The rollout.
        order: `HALT`, `ABORT` or `FINISH`.
        reason: Why.
        now_s: Wall time.

    Returns:
        The devices that go back, with a new desired state; none when the rollout finished.

    Raises:
        IllegalTransitionError: It has ended already.
    """
    move(session, row, order)
    row.finished_at_s = now_s
    row.reason = reason[:MAX_DETAIL_CHARS]
    log(session, row.id, action=order, reason=reason, now_s=now_s)
    back: list[str] = []
    if order is not RolloutOrder.FINISH:
        back = _send_back(session, row, now_s=now_s)
    left = deployments.unfinished_of(session, row.id)
    verdict = Verdict(error_code=f"controller.{order}", detail=reason[:MAX_DETAIL_CHARS])
    deployments.move(session, row.id, left, DeploymentEvent.CANCEL, now_s=now_s, verdict=verdict)
    return back


def skip_device(session: Session, device: str, *, reason: str, now_s: float) -> None:
    """Take a device out of the rollout that it takes part in, if any, and let it go back.

    Args:
        session: The transaction.
        device: The device.
        reason: Why.
        now_s: Wall time.

    Raises:
        IllegalTransitionError: Its deployment has finished in the meantime.
    """
    for row in deployments.unfinished(session, [device]):
        verdict = Verdict(error_code="controller.skipped", detail=reason)
        if row.state == DeploymentState.ASSIGNED:
            back = deployments.to_restore(session, row.rollout)
            mine = {name: item for name, item in back.items() if name == device}
            desired.issue(session, mine, rollout=row.rollout, now_s=now_s)
        deployments.move(
            session, row.rollout, [device], DeploymentEvent.CANCEL, now_s=now_s, verdict=verdict
        )
        log(session, row.rollout, action="skip", reason=f"{device}: {reason}", now_s=now_s)


def _take_in(session: Session, rollout: str, devices: Sequence[str]) -> None:
    deployments.add(session, rollout, [(name, _position(rollout, name)) for name in devices])


def _position(rollout: str, device: str) -> int:
    """Return the place of a device in the order of starting: the same shuffle in every process."""
    return int.from_bytes(hashlib.sha256(f"{rollout}/{device}".encode()).digest()[:3])


def _send_back(session: Session, row: RolloutRow, *, now_s: float) -> list[str]:
    back = deployments.to_restore(session, row.id)
    if not back:
        return []
    desired.issue(session, back, rollout=row.id, now_s=now_s)
    names = sorted(back)
    reason = _named(names, "back to what was there before")
    log(session, row.id, action="restore", reason=reason, now_s=now_s)
    return names


def _named(devices: Sequence[str], what: str) -> str:
    shown = ", ".join(devices[:5]) + (", ..." if len(devices) > 5 else "")  # noqa: PLR2004 - what a line holds
    return f"{counted(len(devices))} {what}: {shown}"
