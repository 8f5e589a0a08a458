"""The table of how fast the devices of rollouts start; rollouts without a rate are not in it."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, ForeignKey, Integer
from sqlalchemy.orm import Mapped, mapped_column

from controller.store.rollout_tables import RolloutRow
from controller.store.tables import Base


class StartRateRow(Base):
    """The rate of a rollout, and how many devices it lets start."""

    __tablename__ = "rollout_rate"
    __table_args__ = (
        CheckConstraint("per_minute > 0 AND factor >= 1 AND after >= 1", name="growth"),
    )

    rollout: Mapped[str] = mapped_column(ForeignKey(RolloutRow.id), primary_key=True)
    per_minute: Mapped[float]
    factor: Mapped[float]
    after: Mapped[int] = mapped_column(Integer)
    max_per_minute: Mapped[float]
    room: Mapped[float]
    """How many devices could start when one last did."""

    at_s: Mapped[float]
    """When that was, by the rollout's own clock."""
