"""Until when a device may hold a certificate for the broker."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from controller.domain.states import DeviceState
from controller.store import devices
from controller.store.tables import DeviceRow


def note_issued(session: Session, device: str, *, ends_at_s: float) -> bool:
    """Note that a certificate is being made for a device; return False if it is shut out.

    Args:
        session: The transaction.
        device: Its identifier.
        ends_at_s: When the certificate ends.
    """
    row = devices.find(session, device, lock=True)
    if row is None or row.state != DeviceState.ENROLLED:
        return False
    row.certificate_ends_at_s = max(ends_at_s, row.certificate_ends_at_s or 0.0)
    return True


def enrolled_key(session: Session, device: str) -> str | None:
    """Return the public key of a device that may get a certificate; None if it may not."""
    row = devices.find(session, device)
    return None if row is None or row.state != DeviceState.ENROLLED else row.public_key


def is_held(row: DeviceRow, *, now_s: float) -> bool:
    """Tell whether a device holds a certificate that is still valid."""
    return row.certificate_ends_at_s is not None and row.certificate_ends_at_s > now_s


def shut_out(session: Session, *, now_s: float) -> tuple[set[str], set[str]]:
    """Return the devices that had a certificate and are not enrolled.

    Args:
        session: The transaction.
        now_s: Wall time.

    Returns:
        Those whose certificate is still valid, and those whose certificate has ended.
    """
    statement = select(DeviceRow.id, DeviceRow.certificate_ends_at_s).where(
        DeviceRow.state != DeviceState.ENROLLED, DeviceRow.certificate_ends_at_s.is_not(None)
    )
    ends_at_s = {name: end_s or 0.0 for name, end_s in session.execute(statement)}
    held = {name for name, end_s in ends_at_s.items() if end_s > now_s}
    return held, ends_at_s.keys() - held
