"""The tables of gates: what a rollout's release may do, and what each look at that has shown."""

from __future__ import annotations

from sqlalchemy import Boolean, CheckConstraint, ForeignKey, Integer, String
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.sql import false

from controller.domain.gates.states import GateState
from controller.domain.gates.turns import MOMENTS
from controller.store.device_tables import DeviceRow
from controller.store.rollout_tables import RolloutRow
from controller.store.tables import MAX_DETAIL_CHARS, NAME_CHARS, Base

MAX_GATE_CHARS = 512
_STATES = ", ".join(f"'{state}'" for state in GateState)


class GateRow(Base):
    """A gate of a rollout."""

    __tablename__ = "rollout_gate"

    rollout: Mapped[str] = mapped_column(ForeignKey(RolloutRow.id), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    text: Mapped[str] = mapped_column(String(MAX_GATE_CHARS))
    stage: Mapped[int | None] = mapped_column(Integer)
    """The only stage in which it is asked; None for all."""

    is_waived: Mapped[bool] = mapped_column(Boolean, server_default=false())
    """Whether the operator went on although it had failed."""


class GateStageRow(Base):
    """How far the turns of devices in a stage of a rollout with gates are."""

    __tablename__ = "rollout_gate_stage"

    rollout: Mapped[str] = mapped_column(
        String(NAME_CHARS), ForeignKey(RolloutRow.id), primary_key=True
    )
    stage: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    before: Mapped[int] = mapped_column(Integer, server_default="0")
    """How many devices had begun before it did."""

    passed: Mapped[int] = mapped_column(Integer, server_default=str(MOMENTS))
    """How many of its parts are over (`controller.domain.gates.turns`)."""

    began_at_s: Mapped[float] = mapped_column(server_default="0")
    """Wall time when the first of it was noted."""


class GateAwayRow(Base):
    """A device of a rollout that was away at its turn: it could not be chosen by chance."""

    __tablename__ = "rollout_gate_away"

    rollout: Mapped[str] = mapped_column(
        String(NAME_CHARS), ForeignKey(RolloutRow.id), primary_key=True
    )
    device: Mapped[str] = mapped_column(
        String(NAME_CHARS), ForeignKey(DeviceRow.id), primary_key=True
    )
    has_release: Mapped[bool] = mapped_column(Boolean, server_default=false())
    """Whether it had the release by then, from an earlier stage: its silence may be the release's
    doing."""


class GateLookRow(Base):
    """What a look at a gate has shown."""

    __tablename__ = "rollout_gate_look"
    __table_args__ = (
        CheckConstraint(f"state IN ({_STATES})", name="state"),
        CheckConstraint("look >= 1 AND treated >= 0 AND control >= 0", name="counts"),
    )

    rollout: Mapped[str] = mapped_column(
        String(NAME_CHARS), ForeignKey(RolloutRow.id), primary_key=True
    )
    look: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    """From 1; one look is at all gates."""

    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    """Of the gate."""

    stage: Mapped[int] = mapped_column(Integer)
    at_s: Mapped[float]
    clock_s: Mapped[float]
    """By the rollout's own clock."""

    state: Mapped[str] = mapped_column(String(8))
    reason: Mapped[str] = mapped_column(String(MAX_DETAIL_CHARS))
    estimate: Mapped[float | None]
    low: Mapped[float | None]
    high: Mapped[float | None]
    treated: Mapped[int] = mapped_column(Integer)
    control: Mapped[int] = mapped_column(Integer)
    told: Mapped[float] = mapped_column(server_default="0")
    """How many devices with the release told enough."""

    expected: Mapped[float] = mapped_column(server_default="0")
    """How many would have, if as large a part of them did as of the others."""
    unseen: Mapped[float | None]
    """What part of the devices may do otherwise, unseen, when it passed."""
