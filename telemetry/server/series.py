"""The identifiers of series: made once, kept in memory, and checked before rows refer to them.

Rules:
- Series are the fleet's: devices that measure the same share one. The device that brings a new one
  is noted, and brings a bounded number.
- A series without rows is deleted (`TelemetryStore.prune`), by any controller of the fleet, and
  SQLite gives its identifier to another. So whoever writes rows first asks `are_current`, in the
  same transaction.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

import sqlalchemy as sa

from telemetry.server.ingest import SeriesKey
from telemetry.server.statements import IngestStatements

MAX_SERIES = 20_000
"""Points of further series are refused, so devices that invent names cannot fill the disk."""

MAX_SERIES_OF_DEVICE = 2000
"""New series that one device may bring: a tenth of all, so one alone cannot use them up. A release
of nine variants has some 150 series. The device that gets each release first brings them all, a
dozen releases within the days for which rows are kept; what it may not bring, the next one does."""


class SeriesIds:
    """The identifiers of series.

    Args:
        engine: SQLite or PostgreSQL.
        statements: For its dialect.
    """

    def __init__(self, engine: sa.Engine, statements: IngestStatements) -> None:
        self._engine = engine
        self._sql = statements
        self._lock = threading.Lock()
        self._known: dict[SeriesKey, int] = {}

    def of(self, keys: Iterable[SeriesKey], device: str) -> dict[SeriesKey, int]:
        """Return the identifiers of series; make missing ones, but none beyond the limits.

        They have a transaction of their own: an identifier that is known must not be rolled back.

        Args:
            keys: The series.
            device: The device that brings them.

        Returns:
            Those that there are now.
        """
        wanted = set(keys)
        with self._lock:
            found = {key: self._known[key] for key in wanted if key in self._known}
        missing = sorted(wanted - found.keys())
        if not missing:
            return found
        with self._engine.begin() as connection:
            room = self._room(connection, device)
            for key in missing:
                named = key._asdict()
                number = connection.scalar(self._sql.find_series, named)
                if number is None and room > 0:
                    connection.execute(self._sql.make_series, {**named, "brought_by": device})
                    number = connection.scalar(self._sql.find_series, named)
                    room -= 1
                if number is not None:
                    found[key] = number
        with self._lock:
            self._known.update(found)
        return found

    def are_current(self, connection: sa.Connection, ids: Mapping[SeriesKey, int]) -> bool:
        """Tell whether identifiers still mean these series; forget those that do not.

        Args:
            connection: In the transaction that writes the rows.
            ids: As `of` returned them.

        Returns:
            Whether rows may refer to all of them.
        """
        wanted = {"of_ids": sorted(ids.values())}
        rows = connection.execute(self._sql.read_series, wanted)
        present = {SeriesKey._make(row[1:]): row.id for row in rows}
        gone = [key for key, number in ids.items() if present.get(key) != number]
        with self._lock:
            for key in gone:
                self._known.pop(key, None)
        return not gone

    def _room(self, connection: sa.Connection, device: str) -> int:
        every = connection.execute(self._sql.count_series).scalar_one()
        own = connection.execute(self._sql.count_brought, {"of_device": device}).scalar_one()
        return int(min(MAX_SERIES - every, MAX_SERIES_OF_DEVICE - own))
