"""Whether this controller alone does something in its database.

Rules:
- Whoever asks first has it until it ends, also by a kill: then PostgreSQL ends its session.
- An SQLite file belongs to one controller, which locks its directory.
"""

from __future__ import annotations

import contextlib
from enum import IntEnum

import sqlalchemy
from sqlalchemy.exc import SQLAlchemyError

from controller.errors import DatabaseError
from controller.store.database import Database


class Work(IntEnum):
    """What one controller does at a time: the number of an advisory lock of PostgreSQL.

    `telemetry.server` has more of them.
    """

    ALERTS = 0x65666C_03
    COUNTING = 0x65666C_04
    """Of telemetry, for Prometheus."""

    COUNTING_BY_DEVICE = 0x65666C_05
    OTLP = 0x65666C_06
    LEAD = 0x65666C_07
    """Of controllers that share the messages of devices: `controller.app.lead`."""


_WHICH = """
SELECT system_identifier || '/' || pg_database.oid FROM pg_control_system(), pg_database
WHERE datname = current_database()
"""


def identity(database: Database) -> str:
    """Return what tells a database of PostgreSQL from all others: its server and its number there.

    Raises:
        DatabaseError: The database does not answer, or may not tell it.
    """
    try:
        with database.engine.connect() as connection:
            return str(connection.exec_driver_sql(_WHICH).scalar_one())
    except SQLAlchemyError as exc:
        raise DatabaseError(
            "the database does not tell which one it is",
            remedy="grant the controller's user EXECUTE on the function pg_control_system()",
        ) from exc


class Sole:
    """Keeps other controllers from doing some work.

    Args:
        database: Which they share.
        work: What they do.
    """

    def __init__(self, database: Database, work: Work) -> None:
        self._engine = database.engine
        self._work = work
        self._connection: sqlalchemy.Connection | None = None

    def is_ours(self) -> bool:
        """Tell whether no other controller does it, and keep it so; ask before each time.

        Raises:
            DatabaseError: The database does not answer.
        """
        if self._engine.dialect.name == "sqlite":
            return True
        try:
            if self._connection is not None:
                self._connection.execute(sqlalchemy.select(1))
                return True
            return self._take()
        except SQLAlchemyError as exc:
            self.close()  # the lock went with the session
            raise DatabaseError("the database failed while it was asked for a lock") from exc

    def close(self) -> None:
        """Leave it to others."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(SQLAlchemyError):
                connection.invalidate()  # a session that went back to the pool would keep the lock
            connection.close()

    def _take(self) -> bool:
        connection = self._engine.connect()
        try:
            connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            lock = sqlalchemy.func.pg_try_advisory_lock(int(self._work))
            if connection.execute(sqlalchemy.select(lock)).scalar():
                self._connection = connection
        finally:
            if self._connection is None:
                connection.close()
        return self._connection is not None
