"""Devices that are held out of rollouts for a time, because their installs failed."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, func, or_, select, update
from sqlalchemy.orm import Session

from controller.domain.states import DeploymentEvent, DeploymentState, DeviceState
from controller.store import deployment_changes, deployments
from controller.store.database import MANY, in_batches
from controller.store.deployment_changes import Verdict
from controller.store.device_tables import DeviceRow
from controller.store.penalty_tables import DevicePenaltyRow
from controller.store.rollout_log import log
from controller.store.rollout_tables import DeploymentRow, RolloutRow

MAX_AT_ONCE = 500


def failing(session: Session, *, failures: int, since_s: float) -> dict[str, int]:
    """Return the devices that failed often and are not held out, and how often.

    Args:
        session: The transaction.
        failures: How often, at least, since they were held out last.
        since_s: What failed before does not count, nor do rollouts that ended before.
    """
    count = func.count()
    statement = (
        select(DeploymentRow.device, count)
        .join(RolloutRow, RolloutRow.id == DeploymentRow.rollout)
        .join(DeviceRow, DeviceRow.id == DeploymentRow.device)
        .outerjoin(DevicePenaltyRow, DevicePenaltyRow.device == DeploymentRow.device)
        .where(
            or_(RolloutRow.finished_at_s.is_(None), RolloutRow.finished_at_s >= since_s),
            DeploymentRow.state == DeploymentState.FAILED,
            DeploymentRow.finished_at_s >= since_s,
            DeploymentRow.finished_at_s >= DeviceRow.enrolled_at_s,
            or_(
                DevicePenaltyRow.device.is_(None),
                DevicePenaltyRow.held_out.is_(False)
                & (DeploymentRow.finished_at_s > DevicePenaltyRow.until_s),
            ),
            DeviceRow.state == DeviceState.ENROLLED,
        )
        .group_by(DeploymentRow.device)
        .having(count >= failures)
        .order_by(DeploymentRow.device)
        .limit(MAX_AT_ONCE)
    )
    rows = session.execute(statement)
    return {device: times for device, times in rows}  # noqa: C416 - rows are no pairs


def hold_out(session: Session, device: str, *, reason: str, now_s: float, until_s: float) -> None:
    """Hold a device out of rollouts; where it has not started yet, it is taken out.

    Rollbacks and retries name their devices, and take it all the same.

    Args:
        session: The transaction.
        device: The device.
        reason: Why.
        now_s: Wall time.
        until_s: When it takes part again.
    """
    row = DevicePenaltyRow(
        device=device, held_out=True, reason=reason, from_s=now_s, until_s=until_s
    )
    session.merge(row)
    verdict = Verdict(error_code="controller.held_out", detail=reason)
    for part in deployments.unfinished(session, device):
        if part.state == DeploymentState.PENDING and not _names_its_devices(session, part.rollout):
            event = DeploymentEvent.CANCEL
            deployment_changes.move(
                session, part.rollout, [device], event, now_s=now_s, verdict=verdict
            )
            why = f"{device}: held out, {reason}"
            log(session, part.rollout, action="skip", reason=why, now_s=now_s)


def _names_its_devices(session: Session, rollout: str) -> bool:
    """Tell whether a rollout is a rollback or a retry."""
    return session.get_one(RolloutRow, rollout).origin is not None


def count_over(session: Session, *, now_s: float) -> int:
    """Return how many devices have been held out for long enough."""
    return session.scalar(select(func.count()).where(*_over(now_s))) or 0


def end_over(session: Session, *, now_s: float) -> None:
    """Let devices take part again that have been held out for long enough."""
    session.execute(update(DevicePenaltyRow).where(*_over(now_s)).values(held_out=False))


def end(session: Session, device: str, *, now_s: float) -> None:
    """Let a device take part again now, if it is held out."""
    session.execute(
        update(DevicePenaltyRow)
        .where(DevicePenaltyRow.device == device, DevicePenaltyRow.held_out.is_(True))
        .values(held_out=False, until_s=now_s)
    )


def held_out_among(session: Session, devices: Sequence[str]) -> dict[str, DevicePenaltyRow]:
    """Return those of some devices that are held out."""
    held = select(DevicePenaltyRow).where(DevicePenaltyRow.held_out.is_(True))
    if len(devices) > MANY:  # hardly any device is
        among = frozenset(devices)
        return {row.device: row for row in session.scalars(held) if row.device in among}
    found: dict[str, DevicePenaltyRow] = {}
    for batch in in_batches(devices):
        rows = session.scalars(held.where(DevicePenaltyRow.device.in_(batch)))
        found |= {row.device: row for row in rows}
    return found


def _over(now_s: float) -> tuple[ColumnElement[bool], ...]:
    return DevicePenaltyRow.held_out.is_(True), DevicePenaltyRow.until_s <= now_s
