"""What is to be posted to webhooks: kept until a receiver has it, or too many tries have failed."""

from __future__ import annotations

from collections.abc import Callable, Collection

from sqlalchemy import ColumnElement, and_, delete, exists, func, select, update
from sqlalchemy.orm import Session, aliased

from controller.domain.alert_posts import MAX_WAITING, DeliveryState, longest_wait_s
from controller.domain.device_text import clean
from controller.store.alert_tables import AlertDeliveryGroupRow, AlertDeliveryRow
from controller.store.database import changed_rows
from controller.store.tables import MAX_DETAIL_CHARS

_OF = AlertDeliveryRow
_GROUP = AlertDeliveryGroupRow


def add(
    session: Session,
    *,
    identifier: str,
    webhook: str,
    body: str,
    alerts: int,
    groups: Collection[str],
    now_s: float,
) -> None:
    """Save a post that is due now.

    Args:
        session: The transaction.
        identifier: Of the post.
        webhook: The name of the receiver.
        body: What is posted.
        alerts: How many alerts it tells.
        groups: Of which groups (`controller.domain.alert_posts.group_key`).
        now_s: Wall time.
    """
    row = AlertDeliveryRow(
        id=identifier,
        webhook=webhook,
        body=body,
        alerts=alerts,
        state=DeliveryState.WAITING,
        tries=0,
        created_at_s=now_s,
        next_at_s=now_s,
        ended_at_s=None,
        fault="",
    )
    session.add(row)
    session.flush()  # gives it its number
    session.add_all(
        AlertDeliveryGroupRow(webhook=webhook, group_key=key, number=row.number) for key in groups
    )


def claim(
    session: Session, webhook: str, *, now_s: float, wait_s: Callable[[int], float]
) -> AlertDeliveryRow | None:
    """Return the first post whose turn it is, and count a try of it before it is made.

    Args:
        session: The transaction.
        webhook: The name of the receiver.
        now_s: Wall time.
        wait_s: From the number of tries: how long to wait after one that fails.

    Returns:
        The post; None if it is the turn of none.
    """
    row = session.scalar(
        select(_OF)
        .where(_OF.webhook == webhook, _turn(now_s))
        .order_by(_OF.number)
        .limit(1)
        .with_for_update()
    )
    if row is not None:
        row.tries += 1
        row.next_at_s = now_s + wait_s(row.tries)
    return row


def is_due(session: Session, webhook: str, *, now_s: float) -> bool:
    """Tell whether it is the turn of a post to a receiver."""
    statement = select(_OF.number).where(_OF.webhook == webhook, _turn(now_s)).limit(1)
    return session.scalar(statement) is not None


def end(session: Session, number: int, state: DeliveryState, fault: str, *, now_s: float) -> None:
    """Save that a post was delivered, or is given up."""
    where = (_OF.number == number) & (_OF.state == DeliveryState.WAITING)
    _end(session, where, state, clean(fault, MAX_DETAIL_CHARS), now_s)


def note_fault(session: Session, number: int, fault: str) -> None:
    """Save why a try failed."""
    session.execute(
        update(_OF).where(_OF.number == number).values(fault=clean(fault, MAX_DETAIL_CHARS))
    )


def postpone(session: Session, webhook: str, *, until_s: float) -> None:
    """Try nothing at a receiver before a time.

    Args:
        session: The transaction.
        webhook: Its name.
        until_s: Wall time.
    """
    session.execute(
        update(_OF)
        .where(
            _OF.webhook == webhook,
            _OF.state == DeliveryState.WAITING,
            (_OF.next_at_s < until_s) | (_OF.next_at_s > until_s + longest_wait_s()),
        )
        .values(next_at_s=until_s)
    )


def give_up_surplus(session: Session, webhook: str, *, now_s: float) -> int:
    """Give up the oldest posts to a receiver for which too many wait; return how many."""
    waiting = (_OF.webhook == webhook) & (_OF.state == DeliveryState.WAITING)
    first_kept = session.scalar(
        select(_OF.number)
        .where(waiting)
        .order_by(_OF.number.desc())
        .offset(MAX_WAITING - 1)
        .limit(1)
    )
    if first_kept is None:
        return 0
    surplus = waiting & (_OF.number < first_kept)
    return _end(session, surplus, DeliveryState.GIVEN_UP, "too many wait", now_s)


def give_up_strangers(session: Session, webhooks: Collection[str], *, now_s: float) -> int:
    """Give up what is for receivers that the settings no longer name; return how much."""
    where = _OF.webhook.not_in(webhooks) & (_OF.state == DeliveryState.WAITING)
    why = "the settings name no such webhook"
    return _end(session, where, DeliveryState.GIVEN_UP, why, now_s)


def waiting(session: Session) -> dict[str, int]:
    """Return how many posts wait for each receiver."""
    rows = session.execute(
        select(_OF.webhook, func.count())
        .where(_OF.state == DeliveryState.WAITING)
        .group_by(_OF.webhook)
    )
    return {webhook: number for webhook, number in rows}  # noqa: C416 - rows are no pairs


def prune(session: Session, *, before_s: float, after_s: float) -> None:
    """Delete what ended long ago, or so late as nothing can have: the clock was set back.

    Args:
        session: The transaction.
        before_s: Wall time; what ended earlier goes.
        after_s: Wall time; what ended later goes.
    """
    is_old = (_OF.ended_at_s < before_s) | (_OF.ended_at_s > after_s)
    session.execute(delete(_OF).where(_OF.state != DeliveryState.WAITING, is_old))


def _turn(now_s: float) -> ColumnElement[bool]:
    """Return the condition that a post may be tried now.

    It waits for a time, but no longer than any wait lasts: the clock may have been set back. And it
    waits for earlier posts of its groups, which are tried again, perhaps because the controller was
    killed in the middle of one.
    """
    mine, earlier = aliased(_GROUP), aliased(_GROUP)
    is_behind = (
        exists()
        .where(
            mine.number == _OF.number,
            earlier.webhook == mine.webhook,
            earlier.group_key == mine.group_key,
            earlier.number < mine.number,
        )
        .correlate(_OF)
    )
    is_time = (_OF.next_at_s <= now_s) | (_OF.next_at_s > now_s + longest_wait_s())
    return and_(_OF.state == DeliveryState.WAITING, is_time, ~is_behind)


def _end(
    session: Session, where: ColumnElement[bool], state: DeliveryState, fault: str, now_s: float
) -> int:
    """End posts that wait: nothing waits for them any more, and their bodies go."""
    session.execute(delete(_GROUP).where(_GROUP.number.in_(select(_OF.number).where(where))))
    return changed_rows(
        session,
        update(_OF).where(where).values(state=state, fault=fault, ended_at_s=now_s, body=""),
    )
