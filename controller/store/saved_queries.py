"""Saved queries of the telemetry."""

from __future__ import annotations

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from controller.domain.names import which_there_are
from controller.domain.saved_queries import MAX_QUERIES
from controller.errors import ConflictError, UnknownSavedQueryError
from controller.store.saved_query_tables import SavedQueryRow


def all_rows(session: Session) -> list[SavedQueryRow]:
    """Return the saved queries by name."""
    return list(session.scalars(select(SavedQueryRow).order_by(SavedQueryRow.name)))


def get(session: Session, name: str) -> SavedQueryRow:
    """Return a saved query.

    Args:
        session: The transaction.
        name: Its name.

    Returns:
        The row.

    Raises:
        UnknownSavedQueryError: There is none of that name.
    """
    row = session.get(SavedQueryRow, name)
    if row is None:
        known = session.scalars(select(SavedQueryRow.name).order_by(SavedQueryRow.name)).all()
        raise UnknownSavedQueryError(
            f"there is no saved query {name!r}",
            remedy=which_there_are(
                name, known, what="saved queries", none="make one with `fleet telemetry save`"
            ),
        )
    return row


def put(session: Session, row: SavedQueryRow, *, replace: bool) -> bool:
    """Save a query.

    Args:
        session: The transaction.
        row: The query, which belongs to no session yet.
        replace: Whether it may take the place of another one of that name.

    Returns:
        False when the same query was there before.

    Raises:
        ConflictError: Another query has that name, or there are too many.
    """
    known = session.get(SavedQueryRow, row.name)
    if known is None:
        # Two controllers that save at the same moment may make one more; that does no harm.
        count = session.scalar(select(func.count()).select_from(SavedQueryRow)) or 0
        if count >= MAX_QUERIES:
            raise ConflictError(
                f"there are {MAX_QUERIES} saved queries, which is the greatest number",
                remedy="take one away: fleet telemetry forget NAME",
            )
        session.add(row)
        return True
    if known.query == row.query:
        return False
    if not replace:
        who = f", saved by {known.saved_by}" if known.saved_by else ""
        raise ConflictError(
            f"there is another saved query {row.name!r}{who}",
            remedy="choose another name, or add --replace to put this one in its place",
        )
    session.merge(row)
    return True


def remove(session: Session, name: str) -> None:
    """Remove a saved query.

    Args:
        session: The transaction.
        name: Its name.
    """
    session.execute(delete(SavedQueryRow).where(SavedQueryRow.name == name))
