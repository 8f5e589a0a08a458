"""Which rollouts could follow a rollout now: what its rollback and another try would take."""

from __future__ import annotations

from collections.abc import Callable

from controller.rollout_schemas import PossibleFollowUps, PossibleOrder
from controller.services import follow_ups
from controller.services.follow_ups import FollowUp
from controller.store import way_back
from controller.store.database import Transaction
from controller.store.rollout_tables import RolloutRow
from wire.errors import FleetError


def possible(transaction: Transaction, row: RolloutRow) -> PossibleFollowUps:
    """Return what could follow a rollout; this decides as the orders do, and changes nothing.

    Args:
        transaction: The transaction; it may be one that only reads.
        row: The rollout.
    """
    return PossibleFollowUps(
        rollout=row.id,
        with_release=len(way_back.still_on(transaction, row.id)),
        rollback=_asked(lambda: follow_ups.rollback(transaction, row, None)),
        retry=_asked(lambda: follow_ups.another_try(transaction, row, only_failed=False)),
        retry_failed=_asked(lambda: follow_ups.another_try(transaction, row, only_failed=True)),
    )


def _asked(decide: Callable[[], FollowUp]) -> PossibleOrder:
    try:
        return PossibleOrder(devices=len(decide().wanted))
    except FleetError as exc:
        return PossibleOrder(devices=0, refused=exc.message, remedy=exc.remedy or "")
