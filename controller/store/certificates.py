"""Until when a device may hold a certificate for the broker."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from sqlalchemy import Double, bindparam, case, or_, select, update
from sqlalchemy.orm import Session

from controller.domain.states import DeviceState
from controller.store import devices
from controller.store.database import changed_rows
from controller.store.device_tables import DeviceRow

NAMED_AT_ONCE: Final = 1000


_ENDS: Final = bindparam("ends_at_s", type_=Double)
_ISSUED: Final = (
    update(DeviceRow)
    .where(DeviceRow.id == bindparam("device"), DeviceRow.state == DeviceState.ENROLLED)
    .values(
        certificate_ends_at_s=case(
            (DeviceRow.certificate_ends_at_s > _ENDS, DeviceRow.certificate_ends_at_s), else_=_ENDS
        )
    )
)


def note_issued(session: Session, device: str, *, ends_at_s: float) -> bool:
    """Note that a certificate is being made for a device; return False if it is shut out.

    Args:
        session: The transaction.
        device: Its identifier.
        ends_at_s: When the certificate ends.
    """
    values = {"device": device, "ends_at_s": ends_at_s}
    return changed_rows(session, _ISSUED, values) == 1


def enrolled_key(session: Session, device: str) -> str | None:
    """Return the public key of a device that may get a certificate; None if it may not."""
    row = devices.find(session, device)
    return None if row is None or row.state != DeviceState.ENROLLED else row.public_key


def is_held(row: DeviceRow, *, now_s: float) -> bool:
    """Tell whether a device holds a certificate that is still valid."""
    return row.certificate_ends_at_s is not None and row.certificate_ends_at_s > now_s


def shut_out(session: Session, *, now_s: float, device: str | None = None) -> set[str]:
    """Return the devices that are not enrolled, and hold a certificate that is still valid.

    Args:
        session: The transaction.
        now_s: Wall time.
        device: Only this one; None for all.
    """
    statement = select(DeviceRow.id).where(
        DeviceRow.state != DeviceState.ENROLLED, DeviceRow.certificate_ends_at_s > now_s
    )
    if device is not None:
        statement = statement.where(DeviceRow.id == device)
    return set(session.scalars(statement))


def without_need(session: Session, names: Collection[str], *, before_s: float) -> set[str]:
    """Return the devices that need no account at the broker.

    Args:
        session: The transaction.
        names: Which are asked for.
        before_s: When a certificate must have ended, so that an account no longer keeps it out.

    Returns:
        Those that are enrolled and have had a certificate, and those whose certificate has ended.
    """
    unneeded = or_(
        DeviceRow.state == DeviceState.ENROLLED, DeviceRow.certificate_ends_at_s < before_s
    )
    statement = select(DeviceRow.id).where(DeviceRow.certificate_ends_at_s.is_not(None), unneeded)
    every, found = sorted(names), set[str]()
    for start in range(0, len(every), NAMED_AT_ONCE):
        some = every[start : start + NAMED_AT_ONCE]
        found.update(session.scalars(statement.where(DeviceRow.id.in_(some))))
    return found
