"""What an operator lets go on by hand: a stage without its shadow, gates that hold, the next stage.

Rules:
- Two people let a stage begin that needs approval: who made the rollout does not approve it.
"""

from __future__ import annotations

from controller.domain.stage_progress import holding, stage_states
from controller.domain.states import ACTIVE_ROLLOUTS
from controller.errors import ConflictError, OwnRolloutError
from controller.store import rollouts, stages
from controller.store.database import Transaction
from controller.store.rollout_tables import RolloutRow


def approve(transaction: Transaction, row: RolloutRow, by: str, *, now_s: float) -> None:
    """Let a stage begin without its shadow, or end despite gates, or let the next one begin.

    Args:
        transaction: The transaction.
        row: The rollout, locked.
        by: The API token of who approves.
        now_s: Wall time.

    Raises:
        OwnRolloutError: That token made the rollout, and it is to be approved by another.
        ConflictError: Nothing waits for approval, for a shadow, or for gates.
    """
    last = row.stage == len(stages.of_rollout(transaction, row.id))
    view = rollouts.view(transaction, row, with_candidates=False)
    if view.waits_for_shadow and row.state in ACTIVE_ROLLOUTS:
        if view.asks_approval:
            _refuse_own(row, by)
        rollouts.begin_by_hand(transaction, row, now_s=now_s)
        return
    now = stage_states(view)[row.stage - 1]
    # Of a stage that nobody is left in, none has finished.
    is_proven = view.finished > 0 or now == "awaiting_approval"
    complete = view.stage_complete_at_s is not None and is_proven
    # While it soaks the gates may still tell by themselves.
    is_held = now == "waiting_for_gates" and row.state in ACTIVE_ROLLOUTS
    if is_held and (held := holding(view)):
        if view.asks_approval:
            _refuse_own(row, by)
        rollouts.pass_by_hand(transaction, row, held, now_s=now_s)
        return
    if not view.approval or last or not complete or row.state not in ACTIVE_ROLLOUTS:
        raise ConflictError(
            f"rollout {row.id} has no stage that waits for approval",
            remedy=f"`fleet rollout show {row.id}` says what it waits for",
        )
    _refuse_own(row, by)
    rollouts.approve(transaction, row, now_s=now_s)


def _refuse_own(row: RolloutRow, by: str) -> None:
    """Refuse an approval by the token that made the rollout.

    Raises:
        OwnRolloutError: It did.
    """
    if row.created_by and row.created_by == by:
        raise OwnRolloutError(
            f"rollout {row.id} was made with the API token {by}: another one must approve it",
            remedy="use another token; an admin makes one with "
            "`fleet access create NAME --role approver`",
        )
