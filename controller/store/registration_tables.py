"""The table of devices that may enrol by themselves."""

from __future__ import annotations

from typing import Any

from sqlalchemy import String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from controller.domain.acceptance import MAX_SERIAL_CHARS
from controller.store.tables import NAME_CHARS, Base


class RegistrationRow(Base):
    """A device that an operator registered by its serial number before it enrols."""

    __tablename__ = "registration"
    __table_args__ = (UniqueConstraint("device"),)

    serial: Mapped[str] = mapped_column(String(MAX_SERIAL_CHARS), primary_key=True)
    device: Mapped[str | None] = mapped_column(String(NAME_CHARS))
    """The identifier with which it must enrol; null for any."""

    labels: Mapped[dict[str, Any]]
    registered_at_s: Mapped[float]
    claimed_by: Mapped[str | None] = mapped_column(String(NAME_CHARS))
    """The device that has enrolled with the serial number; no other one does."""

    claimed_at_s: Mapped[float | None]
