"""The table of enrolment tokens."""

from __future__ import annotations

from typing import Any

from sqlalchemy import CheckConstraint, Integer, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from controller.domain.selector_parser import MAX_SELECTOR_CHARS
from controller.domain.states import AUTO, TokenState
from controller.store.tables import DIGEST_CHARS, NAME_CHARS, Base, one_of


class EnrolmentTokenRow(Base):
    """An enrolment token, by digest."""

    __tablename__ = "enrolment_token"
    __table_args__ = (
        one_of("state", TokenState),
        CheckConstraint("uses_left >= 0", name="uses_left"),
        UniqueConstraint("username"),
    )

    sha256: Mapped[str] = mapped_column(String(DIGEST_CHARS), primary_key=True)
    username: Mapped[str] = mapped_column(String(NAME_CHARS))
    state: Mapped[str] = mapped_column(String(16))
    uses_left: Mapped[int] = mapped_column(Integer)
    labels: Mapped[dict[str, Any]]
    accepts: Mapped[str] = mapped_column(String(MAX_SELECTOR_CHARS), server_default=AUTO)
    """Which devices it lets in by itself (`controller.domain.acceptance`)."""

    created_at_s: Mapped[float]
    expires_at_s: Mapped[float]
    used_at_s: Mapped[float | None]
