"""The audit log: what was done with the API, with which token, and what came of it.

Rules:
- A request that changes the database commits its row with its first transaction
  (`controller.store.database`). For any other one the row is written before the answer goes out.
- The log holds no body of a request, no query and no secret.
"""

from __future__ import annotations

from controller.access_schemas import AuditEntry
from controller.domain.paging import PageRequest, Part, cut
from controller.services import sorts
from controller.store import audit
from controller.store.access_tables import AuditLogRow
from controller.store.acting import Act
from controller.store.database import Database

_FIELDS = ("sequence", "at_ms", "actor", "role", "action", "subject", "outcome", "hash")


class AuditLog:
    """The log.

    Args:
        database: The control state.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def write(self, act: Act, status: int) -> None:
        """Add a row about the answer to a request.

        Args:
            act: The request.
            status: Of the answer.

        Raises:
            DatabaseError: The database does not answer.
        """
        act.is_noted = True  # or this transaction would add a row of its own
        with self._database.transaction() as transaction:
            noted = audit.append(transaction, act, str(status))
        audit.tell(noted)

    def after(self, sequence: int, *, limit: int) -> list[AuditEntry]:
        """Return the rows that follow a number, in order.

        Args:
            sequence: 0 for all.
            limit: The greatest number.

        Raises:
            DatabaseError: The database does not answer.
        """
        with self._database.reading() as transaction:
            return [_shown(row) for row in audit.after(transaction, sequence, limit=limit)]

    def listed(
        self, page: PageRequest, *, since_s: float, actor: str, subject: str
    ) -> Part[AuditEntry]:
        """Return a part of the rows that match.

        Args:
            page: Which part.
            since_s: Not those from before.
            actor: Only those of this API token; empty for all.
            subject: Only those whose subject holds this text; empty for all.

        Returns:
            The rows.

        Raises:
            DatabaseError: The database does not answer.
        """
        with self._database.reading() as transaction:
            rows = audit.listed(
                transaction, page, since_ms=int(since_s * 1000), actor=actor, subject=subject
            )
        return cut([_shown(row) for row in rows], page, sorts.AUDIT)


def _shown(row: AuditLogRow) -> AuditEntry:
    return AuditEntry(**{name: getattr(row, name) for name in _FIELDS})
