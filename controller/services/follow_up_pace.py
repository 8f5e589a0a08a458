"""How fast a rollout that follows another one may go: its stages, its limits and its rate."""

from __future__ import annotations

from dataclasses import dataclass, replace

from controller.domain.rollout_view import Limits, StageSpec
from controller.domain.start_rate import StartRate
from controller.store import rollouts, stages, start_rates
from controller.store.database import Transaction
from controller.store.rollout_tables import RolloutRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What decides how fast a rollout may go."""

    limits: Limits
    stages: tuple[StageSpec, ...]
    rate: StartRate | None


def with_own_pace(transaction: Transaction, row: RolloutRow) -> RolloutRow:
    """Return a rollout, or the one that it hurries to undo: a way back has no pace of its own."""
    while row.is_way_back and row.origin is not None:
        row = rollouts.get(transaction, row.origin)
    return row


def pace_of(transaction: Transaction, first: RolloutRow) -> Pace:
    """Return how fast a rollout may go."""
    return Pace(
        limits=rollouts.limits(first),
        stages=tuple(
            replace(each, shadow=None) for each in stages.of_rollout(transaction, first.id)
        ),
        rate=start_rates.of_rollout(transaction, first.id),
    )


def hurried(pace: Pace) -> Pace:
    """Return the pace of one that neither soaks nor waits for anybody."""
    return Pace(
        limits=replace(pace.limits, soak_s=0.0, approval=False),
        stages=tuple(replace(stage, soak_s=None, approval=None) for stage in pace.stages),
        rate=None,
    )
