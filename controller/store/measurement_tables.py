"""The table of the measurements on devices of the fleet."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, CheckConstraint, ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from controller.domain.measuring import MeasurementState
from controller.store.device_tables import DeviceRow
from controller.store.release_tables import ReleaseRow
from controller.store.tables import MAX_DETAIL_CHARS, NAME_CHARS, Base

_STATES = ", ".join(f"'{state}'" for state in MeasurementState)


class MeasurementRow(Base):
    """A request to one device to measure a release, and its answer."""

    __tablename__ = "measurement"
    __table_args__ = (
        CheckConstraint(f"state IN ({_STATES})", name="state"),
        CheckConstraint("state = 'asked' OR answered_at_s IS NOT NULL", name="answered"),
        Index(None, "device", "state"),
        Index(None, "release"),
        Index(None, "asked_at_s"),
    )

    id: Mapped[str] = mapped_column(String(NAME_CHARS), primary_key=True)
    """Of the request; devices that were asked together have the same."""

    device: Mapped[str] = mapped_column(ForeignKey(DeviceRow.id), primary_key=True)
    release: Mapped[str] = mapped_column(ForeignKey(ReleaseRow.digest))
    profile: Mapped[str] = mapped_column(String(NAME_CHARS))
    """Of the device when it was asked: its figures are of that kind of device."""

    state: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(String(MAX_DETAIL_CHARS))
    figures: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """What the device answered, as `wire.measuring.Measured`; null before."""

    asked_at_s: Mapped[float]
    expires_at_s: Mapped[float]
    answered_at_s: Mapped[float | None]
    """Also when its time was over."""
