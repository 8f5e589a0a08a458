"""What devices had before a rollout, and to what they go back."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from controller.domain.states import DeploymentState, ReleaseState
from controller.store import devices as device_rows
from controller.store.statements import in_batches
from controller.store.tables import DeploymentRow, DesiredStateRow, DeviceRow, ReleaseRow


def previous_of(session: Session, devices: Sequence[str]) -> dict[str, str | None]:
    """Return what devices have now, so that they can go back to it.

    What a device says that it runs counts before what it was meant to run; what is no published
    release cannot be gone back to.

    Args:
        session: The transaction.
        devices: Which devices.

    Returns:
        Device to digest, or None.
    """
    found: dict[str, str | None] = {}
    for batch in in_batches(devices):
        rows = session.execute(
            select(DeviceRow.id, DeviceRow.reported_release, DesiredStateRow.release)
            .outerjoin(DesiredStateRow, DesiredStateRow.device == DeviceRow.id)
            .where(DeviceRow.id.in_(batch))
        ).all()
        known = device_rows.releases_by_digest(
            session, {digest for row in rows for digest in (row[1], row[2]) if digest}
        )
        for device, reported, desired in rows:
            wishes = (reported, desired)
            found[device] = next((item for item in wishes if _is_usable(known, item)), None)
    return found


def to_restore(session: Session, rollout: str) -> dict[str, str | None]:
    """Return the devices of a rollout that failed or have not finished, and what they had before.

    Args:
        session: The transaction.
        rollout: The rollout.

    Returns:
        Device to digest or None; without devices that were given something else meanwhile.
    """
    rows = session.execute(
        select(DeploymentRow.device, DeploymentRow.previous, ReleaseRow.state)
        .join(
            DesiredStateRow,
            (DesiredStateRow.device == DeploymentRow.device)
            & (DesiredStateRow.release_revision == DeploymentRow.revision),
        )
        .outerjoin(ReleaseRow, ReleaseRow.digest == DeploymentRow.previous)
        .where(
            DeploymentRow.rollout == rollout,
            DeploymentRow.state.in_((DeploymentState.ASSIGNED, DeploymentState.FAILED)),
        )
    )
    return {
        device: previous if state == ReleaseState.PUBLISHED else None
        for device, previous, state in rows
    }


def _is_usable(known: dict[str, ReleaseRow], digest: str | None) -> bool:
    row = known.get(digest or "")
    return row is not None and row.state == ReleaseState.PUBLISHED
