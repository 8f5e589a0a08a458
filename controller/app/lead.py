"""Which of several controllers of one fleet does what only one may do at a time.

Rules:
- The first that asks leads until it ends, also by a kill; then another one does within a tick.
- One that loses its connection with the database leads no more: another one may lead meanwhile.
  Both may then do the same for one tick, which the row locks of the database make harmless.
"""

from __future__ import annotations

import logging

from controller.errors import DatabaseError
from controller.store.database import Database
from controller.store.sole import Sole, Work, identity

_log = logging.getLogger(__name__)


class Lead:
    """Whether this controller leads.

    Args:
        database: Which they share.
        share: The group of controllers; None for one that is alone, which always leads.

    Raises:
        DatabaseError: The database does not answer.
    """

    def __init__(self, database: Database, share: str | None) -> None:
        self._sole = None if share is None else Sole(database, Work.LEAD)
        self.group = None if share is None else f"{share}@{identity(database)}"
        """Who else may be there: those of the same name with the same database."""

        self._is_told = False
        self.is_ours = self._sole is None
        """What was found when it was last asked; any thread may read it."""

    def look(self) -> None:
        """Ask whether this controller leads, and keep others from it if it does.

        Raises:
            DatabaseError: The database does not answer; it does not lead.
        """
        if self._sole is None:
            return
        was_ours = self.is_ours
        try:
            self.is_ours = self._sole.is_ours()
        except DatabaseError:
            self.is_ours = False
            raise
        if self.is_ours and not was_ours:
            _log.info("this controller leads from now on")
        elif not self.is_ours and not self._is_told:
            _log.info("another controller leads; this one takes messages and answers the API")
        self._is_told = not self.is_ours

    def close(self) -> None:
        """Leave it to others."""
        if self._sole is not None:
            self.is_ours = False
            self._sole.close()
