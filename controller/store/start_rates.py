"""How fast the devices of rollouts start: what the operator set, and what is left of it now."""

from __future__ import annotations

from sqlalchemy.orm import Session

from controller.domain.start_rate import Bucket, StartRate
from controller.store.rate_tables import StartRateRow
from controller.store.rollout_tables import RolloutRow


def add(session: Session, rollout: str, rate: StartRate | None) -> None:
    """Save the rate of a new rollout, if it has one."""
    if rate is not None:
        empty = Bucket()
        session.add(
            StartRateRow(
                rollout=rollout,
                per_minute=rate.per_minute,
                factor=rate.factor,
                after=rate.after,
                max_per_minute=rate.max_per_minute,
                room=empty.room,
                at_s=empty.at_s,
            )
        )


def of_rollout(session: Session, rollout: str) -> StartRate | None:
    """Return the rate of a rollout; None if it has none."""
    found = session.get(StartRateRow, rollout)
    if found is None:
        return None
    return StartRate(
        per_minute=found.per_minute,
        factor=found.factor,
        after=found.after,
        max_per_minute=found.max_per_minute,
    )


def may_start(session: Session, row: RolloutRow, succeeded: int) -> int | None:
    """Return how many devices of a rollout may start now; None for any number.

    Args:
        session: The transaction.
        row: The rollout.
        succeeded: How many of its devices have succeeded.
    """
    rate, found = of_rollout(session, row.id), session.get(StartRateRow, row.id)
    if rate is None or found is None:
        return None
    last = Bucket(room=found.room, at_s=found.at_s)
    return int(last.filled(rate.at(succeeded), row.ran_s).room)


def spend(session: Session, row: RolloutRow, succeeded: int, count: int) -> None:
    """Note that devices of a rollout have started.

    Args:
        session: The transaction.
        row: The rollout, locked.
        succeeded: How many of its devices had succeeded.
        count: How many start.
    """
    rate, found = of_rollout(session, row.id), session.get(StartRateRow, row.id)
    if rate is None or found is None:
        return
    now = Bucket(room=found.room, at_s=found.at_s).filled(rate.at(succeeded), row.ran_s)
    found.room, found.at_s = now.room - count, now.at_s
