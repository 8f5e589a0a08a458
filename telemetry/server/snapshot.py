"""What there is to read of measurements and events at one moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import sqlalchemy as sa

from telemetry.server import event_log, reading, tables
from telemetry.server.event_log import EventPlace
from telemetry.server.levels import DAYS, HOURS, LEVELS, MINUTES, Kept, Part
from telemetry.server.pruning import Retention, first_minute
from telemetry.server.reading import RowPlace
from telemetry.server.rows import Grain, MinuteColumns, StoredEvent


class Snapshot:
    """Measurements and events at one moment.

    Args:
        connection: In a transaction that reads.
        retention: How long things are kept.
        now_s: Wall time.
    """

    def __init__(self, connection: sa.Connection, retention: Retention, now_s: float) -> None:
        self._connection = connection
        self._retention = retention
        self._now_s = now_s

    @property
    def now_s(self) -> float:
        """Wall time."""
        return self._now_s

    def fleet_first(self) -> int:
        """Return the minute since which there are rows of the whole fleet."""
        row = tables.level.c
        query = sa.select(row.done_minute).where(row.name == tables.FLEET)
        return int(self._connection.execute(query).scalar() or 0)

    def measured_since(self, first: int) -> int:
        """Return the first minute, from one on, of which devices can have measured something.

        Args:
            first: That one, which is returned if anything was measured before it.
        """
        # If rows of the fleet begin later than rows of devices, there were devices before them.
        return first if self.fleet_first() else reading.first_of_all(self._connection, first)

    def kept(self) -> list[Kept]:
        """Return what there is of each level, from fine to coarse."""
        row, late = tables.level.c, tables.late.c
        query = sa.select(row.name, row.done_minute)
        done = {row.name: int(row.done_minute) for row in self._connection.execute(query)}
        stale: dict[str, set[int]] = {level.name: set() for level in LEVELS}
        noted = sa.select(late.level, late.minute).distinct()
        for name, minute in self._connection.execute(noted):
            stale[name].add(minute)
        # A day whose hours are to be made anew is not right either.
        stale[DAYS.name] |= {minute // DAYS.minutes * DAYS.minutes for minute in stale[HOURS.name]}
        return [
            Kept(
                level=level,
                first=first_minute(self._connection, self._retention, level, self._now_s),
                end=2**31 if level is MINUTES else done.get(level.name, 0),
                stale=stale[level.name],
            )
            for level in LEVELS
        ]

    def rows(
        self, part: Part, series: Sequence[int], devices: Sequence[str] | None = None
    ) -> Iterator[MinuteColumns]:
        """Read rows: see `telemetry.server.reading.rows`."""
        return reading.rows(self._connection, part, series, devices)

    def present(self, part: Part, series: Sequence[int]) -> list[int]:
        """Return which series have rows: see `telemetry.server.reading.present`."""
        return reading.present(self._connection, part, series)

    def page(
        self, part: Part, series: Sequence[int], after: RowPlace | None, *, limit: int
    ) -> MinuteColumns:
        """Read the next rows: see `telemetry.server.reading.page`."""
        return reading.page(self._connection, part, series, after, limit=limit)

    def events(
        self, since_s: float, until_s: float, after: EventPlace | None, *, limit: int
    ) -> tuple[list[StoredEvent], EventPlace | None]:
        """Read the next events: see `telemetry.server.event_log.page`."""
        return event_log.page(self._connection, since_s, until_s, after, limit=limit)

    def sums(
        self,
        part: Part,
        series: Sequence[int],
        devices: Sequence[str] | None = None,
        *,
        grain: Grain,
    ) -> Iterator[MinuteColumns]:
        """Let the database add rows up: see `telemetry.server.reading.sums`."""
        return reading.sums(self._connection, part, series, devices, grain=grain)
