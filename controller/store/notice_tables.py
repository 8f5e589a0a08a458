"""The table of what webhooks are still to be told about rollouts."""

from __future__ import annotations

from sqlalchemy import ForeignKey, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from controller.store.rollout_tables import RolloutEventRow
from controller.store.tables import Base


class RolloutNoticeRow(Base):
    """An event of a rollout that no webhook has been queued for yet.

    It is written with the row of the rollout's log, in one transaction.
    """

    __tablename__ = "rollout_notice"

    event: Mapped[int] = mapped_column(
        ForeignKey(RolloutEventRow.id), primary_key=True, autoincrement=False
    )
    kind: Mapped[str] = mapped_column(String(32))
    stage: Mapped[int] = mapped_column(Integer)
    """The stage of the rollout then."""
