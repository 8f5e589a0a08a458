"""The audit log: rows are added at its end, and never changed.

Rules:
- One row is added at a time: SQLite has one writer, and PostgreSQL waits for a lock that lasts to
  the end of the transaction. It is taken last, so two transactions never wait for each other.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from typing import Final

from sqlalchemy import func, select, true
from sqlalchemy.orm import Session

from controller.domain.audit_chain import START, AuditRow
from controller.domain.paging import PageRequest
from controller.store.access_tables import AuditLogRow
from controller.store.acting import Act
from controller.store.paging import Column, paged

LOCK: Final = 0x65666C_10
"""Number of the advisory lock of PostgreSQL, far from those of `controller.store.sole`."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Noted:
    """A row that was added to the log and is not yet committed."""

    act: Act
    sequence: int
    hash: str


def append(session: Session, act: Act, outcome: str) -> Noted:
    """Add a row.

    Args:
        session: The transaction, which does nothing more.
        act: What was done, and by whom.
        outcome: What came of it.

    Returns:
        What to tell once the transaction is committed.
    """
    session.flush()
    if session.get_bind().dialect.name == "postgresql":
        session.execute(select(func.pg_advisory_xact_lock(LOCK)))
    last = session.execute(
        select(AuditLogRow.sequence, AuditLogRow.hash)
        .order_by(AuditLogRow.sequence.desc())
        .limit(1)
    ).first()
    number, before = (0, START) if last is None else (last[0], last[1])
    row = AuditRow(
        sequence=number + 1,
        at_ms=act.at_ms,
        actor=act.actor,
        role=act.role,
        action=act.action,
        subject=act.subject,
        outcome=outcome,
    )
    noted = Noted(act, row.sequence, row.hash_after(before))
    session.add(AuditLogRow(**asdict(row), hash=noted.hash))
    session.flush()
    return noted


def tell(noted: Noted) -> None:
    """Note that a row is committed, and write its hash into the program's log.

    Others may keep that log than who keeps the database: a head that was written down there shows
    an audit log that was cut off.
    """
    noted.act.is_noted = True
    _log.info("audit row %d has the hash %s", noted.sequence, noted.hash)


def after(session: Session, sequence: int, *, limit: int) -> list[AuditLogRow]:
    """Return the rows that follow a number, in order; after 0 also those that have no such number.

    Nobody here gives a row a number below 1: who looks whether the log is whole must see it.
    """
    follows = true() if sequence == 0 else AuditLogRow.sequence > sequence
    return list(
        session.scalars(
            select(AuditLogRow).where(follows).order_by(AuditLogRow.sequence).limit(limit)
        )
    )


def listed(
    session: Session, page: PageRequest, *, since_ms: int, actor: str, subject: str
) -> list[AuditLogRow]:
    """Return a part of the rows that match, and one more (`controller.store.paging`).

    Args:
        session: The transaction.
        page: Which part.
        since_ms: Not those from before.
        actor: Only those of this API token; empty for all.
        subject: Only those whose subject holds this text; empty for all.

    Returns:
        The rows.
    """
    statement = select(AuditLogRow).where(AuditLogRow.at_ms >= since_ms)
    if actor:
        statement = statement.where(AuditLogRow.actor == actor)
    if subject:
        statement = statement.where(AuditLogRow.subject.contains(subject, autoescape=True))
    columns: dict[str, Column] = {"row": AuditLogRow.sequence}
    return list(session.scalars(paged(statement, page, columns, AuditLogRow.hash)))
