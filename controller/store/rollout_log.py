"""The log of a rollout: each decision about it, and its reason."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from controller.domain.wording import counted
from controller.store import acting, rollout_notices
from controller.store.rollout_tables import RolloutEventRow
from controller.store.tables import MAX_DETAIL_CHARS


def log(session: Session, rollout: str, *, action: str, reason: str, now_s: float) -> None:
    """Write down a decision and why it was made."""
    event = RolloutEventRow(
        rollout=rollout,
        at_s=now_s,
        action=action,
        reason=reason[:MAX_DETAIL_CHARS],
        actor=acting.actor(),
    )
    session.add(event)
    rollout_notices.note(session, event)


def events(session: Session, rollout: str, *, limit: int) -> list[RolloutEventRow]:
    """Return the log of a rollout: its newest entries, the oldest of them first."""
    rows = session.scalars(
        select(RolloutEventRow)
        .where(RolloutEventRow.rollout == rollout)
        .order_by(RolloutEventRow.id.desc())
        .limit(limit)
    )
    return list(rows)[::-1]


def named(devices: Sequence[str], what: str) -> str:
    """Return what happened to devices, with the names of the first of them."""
    shown = ", ".join(devices[:5]) + (", ..." if len(devices) > 5 else "")  # noqa: PLR2004 - what a line holds
    return f"{counted(len(devices))} {what}: {shown}"
