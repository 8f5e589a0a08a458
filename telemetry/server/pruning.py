"""Deletes what is older than it is kept.

Rules:
- Minutes go only when their hours are made, hours when their days are.
- Each transaction is short: SQLite deletes the rows of some series and an hour at a time, which lie
  together, and PostgreSQL drops partitions.
- How far rows were deleted is noted in the transaction before, and never falls. What is before it
  is taken for deleted, also by a clock or a setting that would keep it: its hours are not made
  anew, nothing is counted for it, and no answer comes from what is left of it.
- While wall time is not believed (`SteadyTime`), nothing is deleted.
- A series of which no row is left goes as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from telemetry.server import partitions, tables
from telemetry.server.levels import DAYS, HOURS, LEVELS, MINUTES, Level
from telemetry.server.series import SeriesIds
from wire.clock import Clock

SECONDS_PER_MINUTE: Final = 60
_COARSER: Final = {MINUTES: HOURS, HOURS: DAYS}
_OF_LEVEL: Final = (tables.DEVICES, tables.FLEETS)
ROWS_AT_ONCE: Final = 100_000
"""How many are deleted in a transaction at most, but for one series of a fleet that is larger."""

ROWS_OF_SERIES: Final = 60
"""Of each device, in a transaction: an hour of minutes."""

STEP_S: Final = 600.0
"""By so much wall time and steady time may differ between two prunes: none drifts as fast."""

STEADY_S: Final = 3600.0
"""So long wall time must have gone on without a step before it is believed. A machine that starts
with a wrong clock gets the time within minutes, if it gets it at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long things are kept, in seconds."""

    minutes_s: float
    hours_s: float
    days_s: float
    events_s: float

    def of(self, level: Level) -> float:
        """Return how long the rows of a level are kept."""
        return {MINUTES: self.minutes_s, HOURS: self.hours_s, DAYS: self.days_s}[level]

    @staticmethod
    def before(kept_s: float, now_s: float) -> int:
        """Return the minute before which everything that is kept so long is too old.

        It is the first that an ingest still takes (`telemetry.server.ingest.span_at`).
        """
        return math.floor(max(now_s - kept_s, 0.0) / SECONDS_PER_MINUTE)


def first_minute(
    connection: sa.Connection, retention: Retention, level: Level, now_s: float
) -> int:
    """Return the first minute of which a level has all rows: what is before it may be deleted.

    That is a whole row of the level above, which is made and not to be made anew.

    Args:
        connection: In any transaction.
        retention: How long things are kept.
        level: Of which.
        now_s: Wall time.
    """
    before = Retention.before(retention.of(level), now_s)
    coarser = _COARSER.get(level)
    if coarser is None:
        first = -(-before // level.minutes) * level.minutes
        return max(first, pruned_minute(connection, level))
    row, late = tables.level.c, tables.late.c
    done = connection.scalar(sa.select(row.done_minute).where(row.name == coarser.name)) or 0
    # What came late for an hour may be noted for its hour alone: its day needs its hours as well.
    noted = connection.scalar(
        sa.select(sa.func.min(late.minute)).where(
            late.level.in_([coarser.name] if level is MINUTES else [HOURS.name, coarser.name])
        )
    )
    first = min(before, done, before if noted is None else noted) // coarser.minutes
    return max(first * coarser.minutes, pruned_minute(connection, level))


def pruned_minute(connection: sa.Connection, level: Level) -> int:
    """Return the minute before which rows of a level were deleted; 0 if none ever was.

    Args:
        connection: In any transaction.
        level: Of which.
    """
    row = tables.level.c
    return connection.scalar(sa.select(row.pruned_minute).where(row.name == level.name)) or 0


class SteadyTime:
    """Tells whether wall time is believed: it has gone on as steady time did, for long enough.

    A step deletes nothing that way if it is taken back within `STEADY_S`, and a fleet that is
    silent is pruned all the same.

    Args:
        clock: Wall time and durations.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_s = clock.monotonic_s()
        self._apart_s = clock.now_s() - self._since_s

    def is_believed(self) -> bool:
        """Look at both times; tell whether there was no step for long enough."""
        steady_s = self._clock.monotonic_s()
        apart_s = self._clock.now_s() - steady_s
        if abs(apart_s - self._apart_s) > STEP_S:
            self._since_s = steady_s
        self._apart_s = apart_s
        return steady_s - self._since_s >= STEADY_S


class Pruning:
    """Deletes old rows.

    Args:
        engine: SQLite or PostgreSQL.
        reading_engine: The same for transactions that only read.
        series: Forgets series that are gone.
        retention: How long things are kept.
        clock: Wall time, and whether it is believed.
    """

    def __init__(
        self,
        engine: sa.Engine,
        reading_engine: sa.Engine,
        series: SeriesIds,
        retention: Retention,
        clock: Clock,
    ) -> None:
        self._engine = engine
        self._reading = reading_engine
        self._series = series
        self._retention = retention
        self._clock = clock
        self._steady = SteadyTime(clock)

    def prune(self) -> int:
        """Delete what is too old.

        Returns:
            How many rows of measurements and events were deleted; on PostgreSQL, where partitions
            are dropped, those of events and of the fleet.
        """
        if not self._steady.is_believed():
            return 0
        now_s = self._clock.now_s()
        gone = sum(self._prune_level(level, now_s) for level in LEVELS)
        with self._engine.begin() as connection:
            gone += connection.execute(
                _older(tables.event, "at_s", now_s - self._retention.events_s)
            ).rowcount
            connection.execute(_older(tables.dead_letter, "at_s", now_s - self._retention.events_s))
            # What comes again must be known, or too old: whatever time a clock shows then.
            counted_until = pruned_minute(connection, MINUTES)
            connection.execute(_older(tables.batch, "minute", counted_until))
        with self._engine.begin() as connection:
            used = [
                sa.exists().where(table.c.series_id == tables.series.c.id)
                for level in LEVELS
                for table in (tables.DEVICES[level.name], tables.FLEETS[level.name])
            ]
            # An ingest may be writing the first rows of a series. Whoever locks the series waits
            # for it, and the next statement sees its rows; what the first one saw is older.
            unused = sa.select(tables.series.c.id).where(~sa.or_(*used)).order_by("id")
            ids = list(connection.scalars(unused.with_for_update()))
            connection.execute(
                sa.delete(tables.series).where(tables.series.c.id.in_(ids), ~sa.or_(*used))
            )
            self._series.look(connection)
        return gone

    def _prune_level(self, level: Level, now_s: float) -> int:
        before = self._noted(level, now_s)
        if before <= 0:
            return 0
        if self._engine.dialect.name == "sqlite":
            with self._reading.connect() as connection:
                query = sa.select(sa.func.count()).select_from(tables.device)
                number = connection.scalar(query) or 1
            gone = self._delete(
                tables.DEVICES[level.name], before, each=level.minutes, devices=number
            )
        else:
            partitions.drop(self._engine, tables.DEVICES[level.name], before)
            gone = 0
        fleet = tables.FLEETS[level.name]
        return gone + self._delete(fleet, before, each=level.minutes, devices=1)

    def _noted(self, level: Level, now_s: float) -> int:
        """Note how far a level's rows are deleted now; return the first minute that stays."""
        row = tables.level
        with self._engine.begin() as connection:
            # Whoever ingests holds this row until its end: what it notes as late is seen here, or
            # is noted after what is deleted is known.
            lock = sa.select(row.c.name).where(row.c.name == HOURS.name).with_for_update()
            connection.execute(lock).first()
            before = first_minute(connection, self._retention, level, now_s)
            # Not what nobody measured: a clock that was ahead must not keep out what comes next.
            tops = (_newest(connection, table[level.name], before) for table in _OF_LEVEL)
            size = _COARSER.get(level, level).minutes
            pruned = (max(tops) // size + 1) * size
            connection.execute(
                sa.update(row)
                .where(row.c.name == level.name, row.c.pruned_minute < pruned)
                .values(pruned_minute=pruned)
            )
        return before

    def _delete(self, table: sa.Table, before: int, *, each: int, devices: int) -> int:
        """Delete old rows: those of some series and of some time in each transaction.

        Args:
            table: Of a level.
            before: The first minute that stays.
            each: How many minutes a row is about.
            devices: How many rows there may be of a series and a time.
        """
        oldest = (
            sa.select(sa.func.min(table.c.minute))
            .where(table.c.series_id == tables.series.c.id, table.c.minute < before)
            .correlate(tables.series)
            .scalar_subquery()
        )
        window = ROWS_OF_SERIES * each
        at_once = max(1, ROWS_AT_ONCE // (ROWS_OF_SERIES * devices))
        gone = 0
        while True:
            with self._reading.connect() as connection:
                found = connection.execute(sa.select(tables.series.c.id, oldest))
                first = {series: minute for series, minute in found if minute is not None}
            if not first:
                return gone
            end = min(min(first.values()) + window, before)
            series = [one for one, minute in first.items() if minute < end]
            for start in range(0, len(series), at_once):
                statement = sa.delete(table).where(
                    table.c.series_id.in_(series[start : start + at_once]), table.c.minute < end
                )
                with self._engine.begin() as connection:
                    gone += connection.execute(statement).rowcount


def _newest(connection: sa.Connection, table: sa.Table, before: int) -> int:
    """Return the newest minute of a table before another one; -1 for none."""
    newest = (
        sa.select(sa.func.max(table.c.minute))
        .where(table.c.series_id == tables.series.c.id, table.c.minute < before)
        .correlate(tables.series)
    )
    every = sa.select(sa.func.max(newest.scalar_subquery())).select_from(tables.series)
    found = connection.scalar(every)
    return -1 if found is None else int(found)


def _older(table: sa.Table, column: str, before: float) -> sa.Delete:
    condition: sa.ColumnElement[Any] = table.c[column] < before
    return sa.delete(table).where(condition)
