"""The table of groups: selectors with a name."""

from __future__ import annotations

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from controller.domain.selector_parser import MAX_SELECTOR_CHARS
from controller.store.tables import NAME_CHARS, Base


class DeviceGroupRow(Base):
    """A selector that other selectors name."""

    __tablename__ = "device_group"

    name: Mapped[str] = mapped_column(String(NAME_CHARS), primary_key=True)
    selector: Mapped[str] = mapped_column(String(MAX_SELECTOR_CHARS))
    changed_at_s: Mapped[float]
