"""The table of the shadows for which stages of rollouts wait."""

from __future__ import annotations

from sqlalchemy import Boolean, CheckConstraint, ForeignKey, Integer, String
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.sql import false

from controller.domain.gates.states import GateState
from controller.store.rollout_tables import RolloutRow
from controller.store.tables import MAX_DETAIL_CHARS, NAME_CHARS, Base

_STATES = ", ".join(f"'{state}'" for state in GateState)


class StageShadowRow(Base):
    """How far a stage is that waits for a shadow, or has waited."""

    __tablename__ = "rollout_stage_shadow"
    __table_args__ = (
        CheckConstraint(f"state IN ({_STATES})", name="state"),
        CheckConstraint("looks >= 0", name="looks"),
    )

    rollout: Mapped[str] = mapped_column(
        String(NAME_CHARS), ForeignKey(RolloutRow.id), primary_key=True
    )
    stage: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    began_at_s: Mapped[float]
    """Since when it waits: what devices tell counts from then on."""

    began_clock_s: Mapped[float] = mapped_column(server_default="0")
    """The same by the rollout's own clock, by which it is told how long the shadow has run."""

    looked_clock_s: Mapped[float | None]
    """When it was looked at last, by that clock; None if never."""

    looks: Mapped[int] = mapped_column(Integer)
    """How often there was enough to decide by."""

    state: Mapped[str] = mapped_column(String(8))
    reason: Mapped[str] = mapped_column(String(MAX_DETAIL_CHARS))
    is_waived: Mapped[bool] = mapped_column(Boolean, server_default=false())
    """Whether the operator began the stage all the same."""
