"""The stages of rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy import select
from sqlalchemy.orm import Session

from controller.domain.rollout_view import StageSpec
from controller.domain.stage_shadow import ShadowNeed
from controller.store.rollout_tables import RolloutStageRow


def add(session: Session, rollout: str, stages: Sequence[StageSpec]) -> None:
    """Save the stages of a new rollout."""
    session.add_all(
        RolloutStageRow(
            rollout=rollout,
            number=number,
            count=stage.count,
            percent=stage.percent,
            selector=stage.selector,
            soak_s=stage.soak_s,
            approval=stage.approval,
            asks_gates=stage.asks_gates,
            shadow=asdict(stage.shadow) if stage.shadow else None,
        )
        for number, stage in enumerate(stages, start=1)
    )


def of_rollout(session: Session, rollout: str) -> tuple[StageSpec, ...]:
    """Return the stages of a rollout in order."""
    rows = session.scalars(
        select(RolloutStageRow)
        .where(RolloutStageRow.rollout == rollout)
        .order_by(RolloutStageRow.number)
    )
    return tuple(
        StageSpec(
            count=row.count,
            percent=row.percent,
            selector=row.selector,
            soak_s=row.soak_s,
            approval=row.approval,
            asks_gates=row.asks_gates,
            shadow=ShadowNeed(**row.shadow) if row.shadow else None,
        )
        for row in rows
    )
