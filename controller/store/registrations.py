"""Devices that may enrol by themselves, by serial number."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session

from controller.store.database import in_batches
from controller.store.registration_tables import RegistrationRow

_OF_DEVICE = select(RegistrationRow).where(RegistrationRow.device == bindparam("device"))


def find(session: Session, serial: str) -> RegistrationRow | None:
    """Return what is registered for a serial number, locked; None if nothing is."""
    return session.get(RegistrationRow, serial, with_for_update=True) if serial else None


def of_device(session: Session, device: str) -> RegistrationRow | None:
    """Return what is registered for an identifier; None if nothing is."""
    return session.scalar(_OF_DEVICE, {"device": device})


def fitting(session: Session, device: str, serial: str) -> RegistrationRow | None:
    """Return what is registered for a device that asks to enrol; None if it may not by itself.

    Args:
        session: The transaction.
        device: The identifier for which it asks.
        serial: The serial number that it says; empty for none.
    """
    row = find(session, serial)
    if row is None or row.device not in {None, device} or row.claimed_by not in {None, device}:
        return None
    return row


def is_for_another(session: Session, device: str, serial: str) -> bool:
    """Tell whether an identifier is registered with another serial number than a device says."""
    row = of_device(session, device)
    return row is not None and row.serial != serial


def serials_of(session: Session, devices: Sequence[str]) -> dict[str, str]:
    """Return the serial numbers with which identifiers are registered, those that are."""
    found: dict[str, str] = {}
    for batch in in_batches(devices):
        rows = session.execute(
            select(RegistrationRow.device, RegistrationRow.serial).where(
                RegistrationRow.device.in_(batch)
            )
        )
        found |= {device: serial for device, serial in rows if device is not None}
    return found


def count(session: Session) -> int:
    """Return how many devices are registered."""
    return session.scalar(select(func.count()).select_from(RegistrationRow)) or 0


def page(session: Session, *, after: str, limit: int) -> list[RegistrationRow]:
    """Return registrations by serial number, from after one on."""
    return list(
        session.scalars(
            select(RegistrationRow)
            .where(RegistrationRow.serial > after)
            .order_by(RegistrationRow.serial)
            .limit(limit)
        )
    )
