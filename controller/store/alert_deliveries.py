"""What is to be posted to webhooks: kept until a receiver has it, or too many tries have failed."""

from __future__ import annotations

from collections.abc import Callable, Collection

from sqlalchemy import ColumnElement, delete, func, select, update
from sqlalchemy.orm import Session

from controller.domain.alert_posts import MAX_WAITING, DeliveryState
from controller.domain.device_text import clean
from controller.store.alert_tables import AlertDeliveryRow
from controller.store.database import changed_rows
from controller.store.tables import MAX_DETAIL_CHARS

_OF = AlertDeliveryRow


def add(
    session: Session, *, identifier: str, webhook: str, body: str, alerts: int, now_s: float
) -> None:
    """Save a post that is due now.

    Args:
        session: The transaction.
        identifier: Of the post.
        webhook: The name of the receiver.
        body: What is posted.
        alerts: How many alerts it tells.
        now_s: Wall time.
    """
    session.add(
        AlertDeliveryRow(
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
    )


def claim(
    session: Session, webhook: str, *, now_s: float, wait_s: Callable[[int], float]
) -> AlertDeliveryRow | None:
    """Return the first post that is due, and count a try of it before it is made.

    Args:
        session: The transaction.
        webhook: The name of the receiver.
        now_s: Wall time.
        wait_s: From the number of tries: how long to wait after one that fails.

    Returns:
        The post; None if none is due.
    """
    row = session.scalar(
        select(_OF)
        .where(_OF.webhook == webhook, _OF.state == DeliveryState.WAITING, _OF.next_at_s <= now_s)
        .order_by(_OF.number)
        .limit(1)
        .with_for_update()
    )
    if row is not None:
        row.tries += 1
        row.next_at_s = now_s + wait_s(row.tries)
    return row


def is_due(session: Session, webhooks: Collection[str], *, now_s: float) -> bool:
    """Tell whether a post to any of some receivers is due."""
    found = session.scalar(
        select(_OF.number)
        .where(
            _OF.webhook.in_(webhooks), _OF.state == DeliveryState.WAITING, _OF.next_at_s <= now_s
        )
        .limit(1)
    )
    return found is not None


def end(session: Session, number: int, state: DeliveryState, fault: str, *, now_s: float) -> None:
    """Save that a post was delivered, or is given up."""
    session.execute(
        update(_OF)
        .where(_OF.number == number, _OF.state == DeliveryState.WAITING)
        .values(state=state, fault=clean(fault, MAX_DETAIL_CHARS), ended_at_s=now_s)
    )


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
        .where(_OF.webhook == webhook, _OF.state == DeliveryState.WAITING, _OF.next_at_s < until_s)
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
    return _give_up(session, waiting & (_OF.number < first_kept), "too many wait", now_s)


def give_up_strangers(session: Session, webhooks: Collection[str], *, now_s: float) -> int:
    """Give up what is for receivers that the settings no longer name; return how much."""
    where = _OF.webhook.not_in(webhooks) & (_OF.state == DeliveryState.WAITING)
    return _give_up(session, where, "the settings name no such webhook", now_s)


def waiting(session: Session) -> dict[str, int]:
    """Return how many posts wait for each receiver."""
    rows = session.execute(
        select(_OF.webhook, func.count())
        .where(_OF.state == DeliveryState.WAITING)
        .group_by(_OF.webhook)
    )
    return {webhook: number for webhook, number in rows}  # noqa: C416 - rows are no pairs


def prune(session: Session, *, before_s: float) -> None:
    """Delete what ended before a wall time."""
    session.execute(
        delete(_OF).where(_OF.state != DeliveryState.WAITING, _OF.ended_at_s < before_s)
    )


def _give_up(session: Session, where: ColumnElement[bool], why: str, now_s: float) -> int:
    return changed_rows(
        session,
        update(_OF).where(where).values(state=DeliveryState.GIVEN_UP, fault=why, ended_at_s=now_s),
    )
