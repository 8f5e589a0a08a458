"""The tables of policies."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from controller.store.tables import NAME_CHARS, Base


class PolicyRow(Base):
    """A policy, and the devices and the model that it is for."""

    __tablename__ = "policy"

    name: Mapped[str] = mapped_column(String(NAME_CHARS), primary_key=True)
    model: Mapped[str | None] = mapped_column(String(NAME_CHARS))
    """None for all models."""

    selector: Mapped[str] = mapped_column(String(1024))
    priority: Mapped[int] = mapped_column(Integer)
    spec: Mapped[dict[str, Any]]
    changed_at_s: Mapped[float]


class PolicySetRow(Base):
    """All policies together: one row, whose generation grows with each change of any of them."""

    __tablename__ = "policy_set"
    __table_args__ = (CheckConstraint("id = 1 AND generation >= 1", name="one"),)

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    generation: Mapped[int] = mapped_column(BigInteger)
