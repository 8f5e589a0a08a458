"""The identifiers of series: made once, kept in memory, and checked before rows refer to them.

Rules:
- Series are the fleet's: devices that measure the same share one. The device that brings a new one
  is noted, and brings a bounded number, which is smaller when many series are there.
- A series without rows is deleted (`TelemetryStore.prune`), by any controller of the fleet, and
  SQLite gives its identifier to another. So whoever writes rows first asks `are_current`, in the
  same transaction.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from itertools import groupby

import sqlalchemy as sa

from telemetry.server.ingest import SeriesKey
from telemetry.server.statements import IngestStatements

MAX_SERIES = 30_000
"""Points of further series are refused, so devices that invent names cannot fill the disk. A query
names the identifiers of all series of a metric, and SQLite takes 32,766 of them."""

COMMON_SERIES = 10_000
"""Until there are so many, a device may bring `MAX_SERIES_OF_DEVICE`; the rest is reserved for
devices that brought few. So who wants to keep new series out for the whole fleet needs 85 devices,
not a handful. A release of nine variants has some 150 series: this is room for 66 of them.
Where the packages carry distributions, each variant that serves has up to 64 more."""

MAX_SERIES_OF_DEVICE = 2000
"""The device that gets each release first brings all its series, a dozen releases within the days
for which rows are kept; what it may not bring, the next one does."""

RESERVED_OF_DEVICE = 250
"""What a device may bring in all when the common ones are used up: those of a release and more."""

MAX_REMEMBERED = 20_000
"""Identifiers in memory: their names take 2 KB each at most."""

MOST_NAMED = 3
_log = logging.getLogger(__name__)


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
        self._count = 0
        """How many series there were when somebody looked last."""

    @property
    def needs(self) -> list[str]:
        """What is to be told to people who ask how the controller is; it names no device."""
        if self._count < COMMON_SERIES:
            return []
        used = f"{self._count} of at most {MAX_SERIES}"
        return [f"fewer series of telemetry ({used}): the log names who brought most of them"]

    def look(self, connection: sa.Connection) -> int:
        """Return how many series there are; warn if their number has come near its limit.

        Args:
            connection: In any transaction.

        Returns:
            Their number.
        """
        before, self._count = self._count, connection.execute(self._sql.count_series).scalar_one()
        if before < COMMON_SERIES <= self._count:
            most = connection.execute(self._sql.most_brought, {"limit": MOST_NAMED})
            _log.warning(
                "there are %d series of telemetry, so a device may bring no more than %d, and at "
                "%d new ones are refused; most came from %s: decommission what is not yours, and "
                "its series go when nothing of them is kept any more",
                self._count,
                RESERVED_OF_DEVICE,
                MAX_SERIES,
                ", ".join(f"{device} ({number})" for device, number in most) or "unknown devices",
            )
        return self._count

    def of(self, brought: Iterable[tuple[str, Iterable[SeriesKey]]]) -> dict[SeriesKey, int]:
        """Return the identifiers of series; make missing ones, but none beyond the limits.

        They have a transaction of their own: an identifier that is known must not be rolled back.

        Args:
            brought: Devices, each with the series that it brings.

        Returns:
            Those that there are now.
        """
        found: dict[SeriesKey, int] = {}
        missing: dict[SeriesKey, str] = {}
        with self._lock:
            for device, keys in brought:
                for key in keys:
                    number = self._known.get(key)
                    if number is None:
                        missing.setdefault(key, device)
                    else:
                        found[key] = number
        if not missing:
            return found
        by_device = sorted(missing, key=lambda key: (missing[key], key))
        with self._engine.begin() as connection:
            for device, group in groupby(by_device, missing.__getitem__):
                found |= self._made(connection, device, group)
        with self._lock:
            if len(self._known) + len(found) > MAX_REMEMBERED:
                self._known.clear()
            self._known.update(found)
        return found

    def _made(
        self, connection: sa.Connection, device: str, keys: Iterable[SeriesKey]
    ) -> dict[SeriesKey, int]:
        """Return the identifiers of series; make those for which the device has room."""
        found: dict[SeriesKey, int] = {}
        room = self._room(connection, device)
        for key in keys:
            named = key._asdict()
            number = connection.scalar(self._sql.find_series, named)
            if number is None and room > 0:
                connection.execute(self._sql.make_series, {**named, "brought_by": device})
                number = connection.scalar(self._sql.find_series, named)
                room -= 1
            if number is not None:
                found[key] = number
        return found

    def are_current(self, connection: sa.Connection, ids: Mapping[SeriesKey, int]) -> bool:
        """Tell whether identifiers still mean these series; forget those that do not.

        Args:
            connection: In the transaction that writes the rows.
            ids: As `of` returned them.

        Returns:
            Whether rows may refer to all of them.
        """
        if not ids:
            return True
        wanted = {"of_ids": sorted(ids.values())}
        rows = connection.execute(self._sql.read_series, wanted)
        present = {SeriesKey._make(row[1:]): row.id for row in rows}
        gone = [key for key, number in ids.items() if present.get(key) != number]
        with self._lock:
            for key in gone:
                self._known.pop(key, None)
        return not gone

    def _room(self, connection: sa.Connection, device: str) -> int:
        own = connection.execute(self._sql.count_brought, {"of_device": device}).scalar_one()
        return room_for(self.look(connection), own)


def room_for(every: int, own: int) -> int:
    """Return how many new series a device may bring.

    Args:
        every: How many there are.
        own: How many of them the device brought.

    Returns:
        The number, not below 0.
    """
    common = min(COMMON_SERIES - every, MAX_SERIES_OF_DEVICE - own)
    reserved = min(MAX_SERIES - every, RESERVED_OF_DEVICE - own)
    return max(common, reserved, 0)
