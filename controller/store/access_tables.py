"""The tables of API tokens and of the audit log."""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from controller.domain.audit_chain import (
    MAX_ACTION_CHARS,
    MAX_ACTOR_CHARS,
    MAX_OUTCOME_CHARS,
    MAX_ROLE_CHARS,
    MAX_SUBJECT_CHARS,
)
from controller.domain.roles import Role
from controller.store.tables import DIGEST_CHARS, NAME_CHARS, Base, one_of


class ApiTokenRow(Base):
    """An API token, by its name; the token itself is kept nowhere."""

    __tablename__ = "api_token"
    __table_args__ = (
        one_of("role", Role),
        CheckConstraint("rate_per_s > 0", name="rate_per_s"),
        UniqueConstraint("sha256"),
    )

    name: Mapped[str] = mapped_column(String(NAME_CHARS), primary_key=True)
    role: Mapped[str] = mapped_column(String(MAX_ROLE_CHARS))
    sha256: Mapped[str] = mapped_column(String(DIGEST_CHARS))
    old_sha256: Mapped[str | None] = mapped_column(String(DIGEST_CHARS))
    """The token before the last rotation; null if there is none."""

    old_until_s: Mapped[float | None]
    """Until when that one counts, too."""

    rate_per_s: Mapped[float]
    created_by: Mapped[str] = mapped_column(String(NAME_CHARS))
    created_at_s: Mapped[float]
    expires_at_s: Mapped[float]
    used_at_s: Mapped[float | None]
    """About when it was used last; it is written seldom."""

    revoked_at_s: Mapped[float | None]


class AuditLogRow(Base):
    """A row of the audit log. Triggers refuse to change it and to take it out."""

    __tablename__ = "audit"

    sequence: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    at_ms: Mapped[int] = mapped_column(BigInteger)
    actor: Mapped[str] = mapped_column(String(MAX_ACTOR_CHARS))
    role: Mapped[str] = mapped_column(String(MAX_ROLE_CHARS))
    action: Mapped[str] = mapped_column(String(MAX_ACTION_CHARS))
    subject: Mapped[str] = mapped_column(String(MAX_SUBJECT_CHARS))
    outcome: Mapped[str] = mapped_column(String(MAX_OUTCOME_CHARS))
    hash: Mapped[str] = mapped_column(String(DIGEST_CHARS))
