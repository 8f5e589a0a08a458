"""Enrolment tokens, by digest."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import and_, bindparam, or_, select, update
from sqlalchemy.orm import Session

from controller.domain.paging import PageRequest
from controller.domain.states import TokenState
from controller.errors import UnknownTokenError
from controller.store import acting
from controller.store.database import changed_rows, in_batches
from controller.store.paging import Column, paged
from controller.store.token_tables import EnrolmentTokenRow

MAX_SWEEP = 100

# Built once: building a statement takes longer than SQLite takes to answer it.
_IS_VALID = and_(
    EnrolmentTokenRow.sha256 == bindparam("digest"),
    EnrolmentTokenRow.state == TokenState.OPEN,
    EnrolmentTokenRow.expires_at_s > bindparam("now_s"),
)
_VALID = select(EnrolmentTokenRow).where(_IS_VALID)
_USED = (
    update(EnrolmentTokenRow)
    .where(_IS_VALID, EnrolmentTokenRow.uses_left > 0)
    .values(uses_left=EnrolmentTokenRow.uses_left - 1, used_at_s=bindparam("now_s"))
)


def add(
    session: Session,
    *,
    sha256: str,
    username: str,
    uses: int,
    labels: Mapping[str, str],
    accepts: str,
    now_s: float,
    expires_at_s: float,
) -> None:
    """Save a new token."""
    acting.about(username)
    session.add(
        EnrolmentTokenRow(
            sha256=sha256,
            username=username,
            state=TokenState.OPEN,
            uses_left=uses,
            labels=dict(labels),
            accepts=accepts,
            created_at_s=now_s,
            expires_at_s=expires_at_s,
            used_at_s=None,
        )
    )


def find_valid(session: Session, sha256: str, *, now_s: float) -> EnrolmentTokenRow | None:
    """Return a token that has not expired, even if it is used up."""
    return session.scalar(_VALID, {"digest": sha256, "now_s": now_s})


def valid(session: Session, *, now_s: float) -> frozenset[str]:
    """Return the digests of all tokens that have not expired, even of those that are used up."""
    return frozenset(
        session.scalars(
            select(EnrolmentTokenRow.sha256).where(
                EnrolmentTokenRow.state == TokenState.OPEN,
                EnrolmentTokenRow.expires_at_s > now_s,
            )
        )
    )


def use(session: Session, sha256: str, *, now_s: float) -> bool:
    """Take one use from a token; False when none is left or it has expired."""
    return changed_rows(session, _USED, {"digest": sha256, "now_s": now_s}) == 1


def listed(
    session: Session, page: PageRequest, state: TokenState | None
) -> list[EnrolmentTokenRow]:
    """Return a part of the tokens, and one more (`controller.store.paging`).

    Args:
        session: The transaction.
        page: Which part.
        state: Only those in this state; None for all.
    """
    whole = select(EnrolmentTokenRow)
    if state is not None:
        whole = whole.where(EnrolmentTokenRow.state == state)
    columns: dict[str, Column] = {
        "created": EnrolmentTokenRow.created_at_s,
        "expires": EnrolmentTokenRow.expires_at_s,
        "id": EnrolmentTokenRow.username,
    }
    return list(session.scalars(paged(whole, page, columns, EnrolmentTokenRow.username)))


def by_username(session: Session, username: str) -> EnrolmentTokenRow:
    """Return a token by its account.

    Raises:
        UnknownTokenError: There is none.
    """
    found = session.scalar(select(EnrolmentTokenRow).where(EnrolmentTokenRow.username == username))
    if found is None:
        raise UnknownTokenError(
            f"no token {username[:64]!r} is known", remedy="`fleet token list` shows them"
        )
    return found


def rules(session: Session, usernames: Collection[str]) -> dict[str, str]:
    """Return what tokens accept by themselves, by their accounts."""
    found: dict[str, str] = {}
    for batch in in_batches(sorted(usernames)):
        rows = session.execute(
            select(EnrolmentTokenRow.username, EnrolmentTokenRow.accepts).where(
                EnrolmentTokenRow.username.in_(batch)
            )
        )
        found |= dict(rows.all())
    return found


def over(session: Session, *, now_s: float, used_before_s: float) -> list[tuple[str, str]]:
    """Return tokens whose broker account can be removed.

    Args:
        session: The transaction.
        now_s: A token that expired by then is over.
        used_before_s: A used-up token is over if its last use was before; its answer has arrived.

    Returns:
        Digest and user name of each.
    """
    used_up = and_(EnrolmentTokenRow.uses_left == 0, EnrolmentTokenRow.used_at_s <= used_before_s)
    rows = session.execute(
        select(EnrolmentTokenRow.sha256, EnrolmentTokenRow.username)
        .where(
            EnrolmentTokenRow.state == TokenState.OPEN,
            or_(EnrolmentTokenRow.expires_at_s <= now_s, used_up),
        )
        .limit(MAX_SWEEP)
    )
    return [(row[0], row[1]) for row in rows]


def close(session: Session, sha256: str) -> None:
    """Record that the broker account of a token is gone."""
    session.execute(
        update(EnrolmentTokenRow)
        .where(EnrolmentTokenRow.sha256 == sha256, EnrolmentTokenRow.state == TokenState.OPEN)
        .values(state=TokenState.CLOSED)
    )
