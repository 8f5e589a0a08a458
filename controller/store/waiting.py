"""Devices that wait to be let in."""

from __future__ import annotations

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from controller.errors import UnknownDeviceError
from controller.store.waiting_tables import WaitingDeviceRow


def find(session: Session, device: str) -> WaitingDeviceRow | None:
    """Return the device that waits under an identifier, locked; None if none does."""
    return session.get(WaitingDeviceRow, device, with_for_update=True)


def get(session: Session, device: str) -> WaitingDeviceRow:
    """Return the device that waits under an identifier, locked.

    Raises:
        UnknownDeviceError: None does.
    """
    row = find(session, device)
    if row is None:
        raise UnknownDeviceError(
            f"no device {device[:64]!r} waits", remedy="`fleet device waiting` shows those that do"
        )
    return row


def count(session: Session) -> int:
    """Return how many devices are in the queue, those that were refused included."""
    return session.scalar(select(func.count()).select_from(WaitingDeviceRow)) or 0


def all_rows(session: Session) -> list[WaitingDeviceRow]:
    """Return the queue: who asked first is first."""
    return list(
        session.scalars(
            select(WaitingDeviceRow).order_by(WaitingDeviceRow.asked_at_s, WaitingDeviceRow.id)
        )
    )


def is_any(session: Session, *, before_s: float) -> bool:
    """Tell whether a device has not asked since a time."""
    stale = select(WaitingDeviceRow.id).where(WaitingDeviceRow.last_asked_at_s < before_s)
    return session.scalar(stale.limit(1)) is not None


def forget(session: Session, *, before_s: float) -> None:
    """Remove the devices that have not asked since a time."""
    session.execute(delete(WaitingDeviceRow).where(WaitingDeviceRow.last_asked_at_s < before_s))
