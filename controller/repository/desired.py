"""Desired states: one per device, with a revision that only grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import and_, func, or_, select
from sqlalchemy.orm import Session

from controller.models import DeploymentRow, DesiredStateRow, DeviceRow, ReleaseRow
from controller.repository.statements import in_batches
from controller.rollout_states import DeploymentState, DeviceState, ReleaseState
from wire.messages import DesiredState, ReleaseRef

REPORT_LOST_AFTER_S = 10.0
"""A device at work that said nothing for this long is asked again: its last report may be lost, as
when the controller was down. Asking costs one message, and the answer is the report again."""


def issue(
    session: Session,
    releases: Mapping[str, str | None],
    *,
    rollout: str | None,
    now_s: float,
    above: int = 0,
) -> dict[str, int]:
    """Give devices a new desired state each.

    Args:
        session: The transaction.
        releases: Device to digest, or to None for nothing.
        rollout: For which rollout.
        now_s: Wall time.
        above: The new revisions are greater than this, too.

    Returns:
        Device to new revision.
    """
    revisions: dict[str, int] = {}
    for batch in in_batches(sorted(releases)):
        rows = session.scalars(
            select(DesiredStateRow).where(DesiredStateRow.device.in_(batch)).with_for_update()
        )
        known = {row.device: row for row in rows}
        for device in batch:
            row = known.get(device)
            if row is None:
                row = DesiredStateRow(device=device, revision=0)
                session.add(row)
            row.revision = max(row.revision, above) + 1
            row.release = releases[device]
            row.rollout = rollout
            row.issued_at_s = now_s
            revisions[device] = row.revision
    session.flush()
    return revisions


def find(session: Session, device: str) -> DesiredStateRow | None:
    """Return the desired state of a device, or None."""
    return session.get(DesiredStateRow, device)


def documents(session: Session, devices: Sequence[str]) -> list[DesiredState]:
    """Return the desired states of some devices as they are to be handed out.

    Args:
        session: The transaction.
        devices: Which devices.

    Returns:
        Those of enrolled devices whose release has not been revoked.
    """
    found: list[DesiredState] = []
    for batch in in_batches(devices):
        rows = session.execute(
            select(DesiredStateRow, ReleaseRow)
            .join(DeviceRow, DeviceRow.id == DesiredStateRow.device)
            .outerjoin(ReleaseRow, ReleaseRow.digest == DesiredStateRow.release)
            .where(
                DesiredStateRow.device.in_(batch),
                DeviceRow.state == DeviceState.ENROLLED,
                or_(
                    DesiredStateRow.release.is_(None),
                    ReleaseRow.state == ReleaseState.PUBLISHED,
                ),
            )
        )
        found.extend(_document(desired, release) for desired, release in rows)
    return found


def lagging(session: Session, *, now_s: float) -> list[str]:
    """Return online devices that have not accepted, or not answered for, what can be handed out."""
    unanswered = and_(
        func.coalesce(DeploymentRow.reported_at_s, DeploymentRow.started_at_s)
        < now_s - REPORT_LOST_AFTER_S,
        DeploymentRow.state == DeploymentState.ASSIGNED,
    )
    statement = (
        select(DeviceRow.id)
        .join(DesiredStateRow, DesiredStateRow.device == DeviceRow.id)
        .outerjoin(
            DeploymentRow,
            and_(
                DeploymentRow.device == DeviceRow.id,
                DeploymentRow.revision == DesiredStateRow.revision,
            ),
        )
        .outerjoin(ReleaseRow, ReleaseRow.digest == DesiredStateRow.release)
        .where(
            or_(DesiredStateRow.release.is_(None), ReleaseRow.state == ReleaseState.PUBLISHED),
            DeviceRow.online.is_(True),
            DeviceRow.state == DeviceState.ENROLLED,
            or_(DeviceRow.reported_revision < DesiredStateRow.revision, unanswered),
        )
    )
    return list(session.scalars(statement))


def _document(desired: DesiredStateRow, release: ReleaseRow | None) -> DesiredState:
    ref = None
    if release is not None:
        ref = ReleaseRef(
            name=release.name,
            version=release.version,
            digest=release.digest,
            envelope_sha256=release.envelope_sha256,
            envelope_size_bytes=release.envelope_size_bytes,
        )
    return DesiredState(
        device=desired.device,
        revision=desired.revision,
        issued_at_s=desired.issued_at_s,
        release=ref,
        rollout=desired.rollout,
    )
