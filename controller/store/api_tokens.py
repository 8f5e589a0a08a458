"""API tokens, by name and by digest."""

from __future__ import annotations

from sqlalchemy import and_, func, or_, select, update
from sqlalchemy.orm import Session

from controller.domain.names import which_there_are
from controller.errors import ConflictError, UnknownApiTokenError
from controller.store.access_tables import ApiTokenRow

MAX_TOKENS = 1000
"""Tokens that can be used at one time."""

MAX_SHOWN = 10_000


def add(session: Session, row: ApiTokenRow, *, now_s: float) -> None:
    """Save a new token.

    Args:
        session: The transaction.
        row: The token.
        now_s: Wall time.

    Raises:
        ConflictError: There is or was one of that name, or there are too many.
    """
    if session.get(ApiTokenRow, row.name) is not None:
        raise ConflictError(
            f"there is or was an API token {row.name!r}, and the audit log names it",
            remedy="choose another name, or give that one a new secret: fleet access rotate",
        )
    live = and_(ApiTokenRow.revoked_at_s.is_(None), ApiTokenRow.expires_at_s > now_s)
    count = session.scalar(select(func.count()).select_from(ApiTokenRow).where(live)) or 0
    if count >= MAX_TOKENS:
        raise ConflictError(
            f"there are {MAX_TOKENS} API tokens, which is the greatest number",
            remedy="end one that nobody needs: fleet access revoke NAME",
        )
    session.add(row)


def get(session: Session, name: str, *, lock: bool = False) -> ApiTokenRow:
    """Return a token by its name.

    Args:
        session: The transaction.
        name: Its name.
        lock: Whether to keep others from changing it until the transaction ends.

    Returns:
        The row.

    Raises:
        UnknownApiTokenError: There is none of that name.
    """
    row = session.get(ApiTokenRow, name, with_for_update=lock or None)
    if row is None:
        known = session.scalars(select(ApiTokenRow.name).order_by(ApiTokenRow.name)).all()
        raise UnknownApiTokenError(
            f"there is no API token {name!r}",
            remedy=which_there_are(
                name, known, what="API tokens", none="make one with `fleet access create`"
            ),
        )
    return row


def everyone(session: Session) -> list[ApiTokenRow]:
    """Return the tokens by name, also those that have ended."""
    return list(session.scalars(select(ApiTokenRow).order_by(ApiTokenRow.name).limit(MAX_SHOWN)))


def ended_after(session: Session, ended_s: float) -> list[ApiTokenRow]:
    """Return the tokens that can be used, and those that ended after a time."""
    return list(
        session.scalars(
            select(ApiTokenRow).where(
                ApiTokenRow.expires_at_s > ended_s,
                or_(ApiTokenRow.revoked_at_s.is_(None), ApiTokenRow.revoked_at_s > ended_s),
            )
        )
    )


def note_use(session: Session, name: str, *, now_s: float) -> None:
    """Write down that a token was used."""
    session.execute(update(ApiTokenRow).where(ApiTokenRow.name == name).values(used_at_s=now_s))
