"""Hands events of rollouts on to webhooks.

Rules:
- An event is noted in the transaction that decides it, and queued for each webhook in the one that
  takes the note away. So a kill loses none, and queues none twice.
"""

from __future__ import annotations

from typing import Final

from controller.services.webhooks import Webhooks
from controller.store import rollout_notices
from controller.store.database import Database

AT_ONCE: Final = 100
"""Events in one transaction."""


class RolloutNotices:
    """The events that are to be told.

    Args:
        database: The control state.
        webhooks: Who is told.
    """

    def __init__(self, database: Database, webhooks: Webhooks) -> None:
        self._database = database
        self._webhooks = webhooks

    def tick(self) -> None:
        """Queue what has happened since the last time.

        Raises:
            DatabaseError: The database does not answer.
        """
        while self._queue() == AT_ONCE:
            pass

    def _queue(self) -> int:
        with self._database.reading() as transaction:
            if not rollout_notices.is_there(transaction):
                return 0  # without holding up who writes
        with self._database.transaction() as transaction:
            notices = rollout_notices.take(transaction, limit=AT_ONCE)
            for notice in notices:
                self._webhooks.queue_rollout(transaction, notice)
        return len(notices)
