"""When the gates of a rollout are looked at next."""

from __future__ import annotations

from controller.domain.gates.looks import next_look_s
from controller.domain.states import RolloutState
from controller.store import gates, stages
from controller.store.database import Transaction
from controller.store.rollout_tables import RolloutRow


def soak_s(transaction: Transaction, row: RolloutRow) -> float:
    """Return how long the current stage of a rollout is to stay good."""
    own = stages.of_rollout(transaction, row.id)[row.stage - 1].soak_s
    return row.soak_s if own is None else own


def due_s(transaction: Transaction, row: RolloutRow) -> float:
    """Return when the gates of a rollout are looked at next, by the rollout's own clock."""
    since_s = row.stage_complete_at_s
    if since_s is None:
        since_s = gates.last_look_s(transaction, row.id, before=row.stage) or 0.0
    last_s = gates.last_look_s(transaction, row.id)
    return next_look_s(since_s, last_s, soak_s(transaction, row))


def next_look_in_s(transaction: Transaction, row: RolloutRow) -> float | None:
    """Return in how many seconds the next look comes, at the earliest: devices may be too few yet.

    Args:
        transaction: The transaction.
        row: The rollout.

    Returns:
        0 if it is due; None if none comes: it does not run, or the stage asks no gates.
    """
    asked = (gate.stage for gate in gates.all_gates(transaction, row.id))
    is_asked = any(stage in {None, row.stage} for stage in asked)
    if not is_asked or row.control_released or row.state != RolloutState.RUNNING:
        return None
    return max(due_s(transaction, row) - row.ran_s, 0.0)
