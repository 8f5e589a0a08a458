"""The table of devices that are, or were, held out of rollouts."""

from __future__ import annotations

from sqlalchemy import Boolean, ColumnElement, ForeignKey, String, exists
from sqlalchemy.orm import Mapped, mapped_column

from controller.store.device_tables import DeviceRow
from controller.store.tables import MAX_DETAIL_CHARS, Base


class DevicePenaltyRow(Base):
    """The last time that a device was held out of rollouts, because its installs failed."""

    __tablename__ = "device_penalty"

    device: Mapped[str] = mapped_column(ForeignKey(DeviceRow.id), primary_key=True)
    held_out: Mapped[bool] = mapped_column(Boolean)
    """Whether it still is. It then takes part in no rollout that begins."""

    reason: Mapped[str] = mapped_column(String(MAX_DETAIL_CHARS))
    from_s: Mapped[float]
    until_s: Mapped[float]
    """When it ends, or ended: what failed before does not count again."""


def is_held_out() -> ColumnElement[bool]:
    """Return the condition, on `DeviceRow`, that a device is held out of rollouts."""
    return exists().where(
        DevicePenaltyRow.device == DeviceRow.id, DevicePenaltyRow.held_out.is_(True)
    )
