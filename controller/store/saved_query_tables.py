"""The table of the saved queries of the telemetry."""

from __future__ import annotations

from typing import Any

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from controller.domain.saved_queries import MAX_SAVED_BY_CHARS
from controller.store.tables import NAME_CHARS, Base


class SavedQueryRow(Base):
    """A query that all operators can run by its name."""

    __tablename__ = "saved_query"

    name: Mapped[str] = mapped_column(String(NAME_CHARS), primary_key=True)
    query: Mapped[dict[str, Any]]
    """As `controller.query_schemas.TelemetryQuestion`."""

    saved_by: Mapped[str] = mapped_column(String(MAX_SAVED_BY_CHARS))
    saved_at_s: Mapped[float]
