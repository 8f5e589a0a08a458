"""Transactions of PostgreSQL that wait for each other."""

from __future__ import annotations

import sqlalchemy as sa

from controller.store.database import Database
from tests.simulators.patience import until

_WAITING = sa.text(
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE wait_event_type = 'Lock' AND datname = current_database()"
)


def wait_for_a_lock(database: Database) -> None:
    """Wait until somebody waits for a lock."""

    def waiting() -> bool:
        with database.reading_engine.connect() as connection:
            return bool(connection.scalar(_WAITING))

    until(waiting, "somebody who waits for a lock")
