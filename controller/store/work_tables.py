"""The table of what is left to do of orders that take several transactions."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from controller.domain.states import WorkKind
from controller.store.rollout_tables import RolloutRow
from controller.store.tables import MAX_CODE_CHARS, MAX_DETAIL_CHARS, Base, one_of


class RolloutWorkRow(Base):
    """One part of such an order: its row goes in the transaction that carries it out."""

    __tablename__ = "rollout_work"
    __table_args__ = (one_of("kind", WorkKind), Index(None, "rollout"))

    id: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True
    )
    rollout: Mapped[str] = mapped_column(ForeignKey(RolloutRow.id))
    kind: Mapped[str] = mapped_column(String(16))
    count: Mapped[int] = mapped_column(Integer)
    """How many devices it names."""

    devices: Mapped[dict[str, Any]]
    """Each device with its place in the order of starting and its release, if that is not the
    rollout's, or with why it is left out. None for what is taken out of an ended rollout: that is
    all that is found in it."""

    error_code: Mapped[str] = mapped_column(String(MAX_CODE_CHARS))
    """Of what is taken out, as `detail`."""

    detail: Mapped[str] = mapped_column(String(MAX_DETAIL_CHARS))
