"""What webhooks are still to be told about rollouts: noted with the log, taken to be queued."""

from __future__ import annotations

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from controller.domain.rollout_notices import RolloutNotice, kind_of
from controller.store.notice_tables import RolloutNoticeRow
from controller.store.release_tables import ReleaseRow
from controller.store.rollout_tables import RolloutEventRow, RolloutRow


def note(session: Session, event: RolloutEventRow) -> None:
    """Note that webhooks are to be told of a row of the log, if they are.

    Args:
        session: The transaction that adds the row.
        event: The row.
    """
    kind = kind_of(event.action, event.reason)
    if kind is None:
        return
    session.flush()  # gives it its number
    row = session.get_one(RolloutRow, event.rollout)
    session.add(RolloutNoticeRow(event=event.id, kind=kind, stage=row.stage))


def is_there(session: Session) -> bool:
    """Tell whether webhooks are to be told of anything."""
    return session.scalar(select(RolloutNoticeRow.event).limit(1)) is not None


def take(session: Session, *, limit: int) -> list[RolloutNotice]:
    """Take out the oldest events that webhooks are to be told of, in their order.

    Args:
        session: The transaction, which also queues them.
        limit: The greatest number.
    """
    rows = list(
        session.scalars(
            select(RolloutNoticeRow).order_by(RolloutNoticeRow.event).limit(limit).with_for_update()
        )
    )
    if not rows:
        return []
    numbers = [row.event for row in rows]
    known = session.execute(
        select(RolloutEventRow, RolloutRow.model, ReleaseRow.name, ReleaseRow.version)
        .join(RolloutRow, RolloutRow.id == RolloutEventRow.rollout)
        .join(ReleaseRow, ReleaseRow.digest == RolloutRow.release)
        .where(RolloutEventRow.id.in_(numbers))
    )
    found = {event.id: (event, model, f"{name}:{version}") for event, model, name, version in known}
    session.execute(delete(RolloutNoticeRow).where(RolloutNoticeRow.event.in_(numbers)))
    return [_notice(row, *found[row.event]) for row in rows]


def _notice(
    row: RolloutNoticeRow, event: RolloutEventRow, model: str, release: str
) -> RolloutNotice:
    return RolloutNotice(
        number=event.id,
        rollout=event.rollout,
        event=row.kind,
        model=model,
        release=release,
        stage=row.stage,
        reason=event.reason,
        actor=event.actor,
        at_s=event.at_s,
    )
