"""The table of the releases that run as shadows."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from controller.store.release_tables import ReleaseRow
from controller.store.tables import NAME_CHARS, Base


class ShadowRow(Base):
    """The release that runs as the shadow of a model."""

    __tablename__ = "shadow"

    model: Mapped[str] = mapped_column(String(NAME_CHARS), primary_key=True)
    release: Mapped[str] = mapped_column(ForeignKey(ReleaseRow.digest))
    selector: Mapped[str] = mapped_column(String(1024))
    rule: Mapped[dict[str, Any]]
    """As `wire.shadow.ShadowRule`."""

    started_at_s: Mapped[float]
    rollout: Mapped[str | None] = mapped_column(String(NAME_CHARS))
    """The rollout that started it, and stops it; None for one that was started by hand."""
