"""The partitions of PostgreSQL's tables of measurements: made when needed, dropped when old.

A partition holds the rows of some days. Its name has its first minute, so that nobody has to note
which there are. SQLite has none; there these functions do nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from telemetry.server import tables

DAY: Final = 1440
WIDTHS: Final = {
    tables.minute.name: DAY,
    tables.hour.name: 10 * DAY,
    tables.day.name: 200 * DAY,
}
"""Minutes in a partition of each table: some ten of each at the default retention."""

LONGEST_WAIT_MS: Final = 500
"""How long a partition that is dropped may hold up all that read and write."""

_LOCK: Final = 0x65666C_02
_LOCK_NOT_AVAILABLE: Final = "55P03"


class Partitions:
    """Makes missing partitions before rows are written.

    Args:
        engine: SQLite or PostgreSQL.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._known: set[tuple[str, int]] = set()

    def cover(self, table: sa.Table, minutes: Iterable[int]) -> None:
        """Make the partitions in which some minutes lie.

        Args:
            table: One of `WIDTHS`.
            minutes: Any; few distinct partitions.
        """
        if self._engine.dialect.name == "sqlite":
            return
        width = WIDTHS[table.name]
        wanted = {(table.name, minute // width * width) for minute in minutes}
        for name, first in sorted(wanted - self._known):
            with self._engine.begin() as connection:
                _make(connection, name, first)
        self._known |= wanted

    def forget(self) -> None:
        """Forget which partitions there are: another controller may have dropped some."""
        self._known.clear()


def make(connection: sa.Connection, table: sa.Table, first: int, last: int) -> None:
    """Make the partitions of a time, where the database has any.

    Args:
        connection: In a transaction that writes.
        table: Any; one that is not partitioned needs none.
        first: A minute.
        last: A later one, inclusive.
    """
    width = WIDTHS.get(table.name)
    if width is None or connection.dialect.name != "postgresql":
        return
    for start in range(first // width * width, last + 1, width):
        _make(connection, table.name, start)


def _make(connection: sa.Connection, table: str, first: int) -> None:
    """Make a partition, if it is missing.

    `CREATE TABLE … PARTITION OF` waits for everybody who reads the table, and everybody who comes
    then waits for it. To attach a table does not.
    """
    # Two at once would both find it missing.
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    name = f"{table}_{first}"
    if connection.scalar(sa.select(sa.func.to_regclass(name))) is not None:
        return
    like = f"(LIKE {table} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)"
    connection.exec_driver_sql(f"CREATE TABLE {name} {like}")
    connection.exec_driver_sql(
        f"ALTER TABLE {table} ATTACH PARTITION {name} "
        f"FOR VALUES FROM ({first}) TO ({first + WIDTHS[table]})"
    )


def drop(engine: sa.Engine, table: sa.Table, before: int) -> None:
    """Drop the partitions that hold nothing newer than a minute.

    Args:
        engine: PostgreSQL.
        table: One of `WIDTHS`.
        before: That minute, exclusive.

    Raises:
        OperationalError: The database failed.
    """
    inherits = (
        "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
        "WHERE i.inhparent = CAST(:table AS regclass)"
    )
    with engine.connect() as connection:
        names = list(connection.scalars(sa.text(inherits), {"table": table.name}))
    for name in names:
        first = int(name.rpartition("_")[2])
        if first + WIDTHS[table.name] <= before:
            # It waits for everybody who reads, and everybody who comes then waits for it: so not
            # for long. The next prune tries again.
            try:
                with engine.begin() as connection:
                    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LONGEST_WAIT_MS}ms'")
                    connection.exec_driver_sql(f"DROP TABLE IF EXISTS {table.name}_{first}")
            except OperationalError as exc:
                if getattr(exc.orig, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
                    raise
