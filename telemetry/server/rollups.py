"""Makes hours out of minutes and days out of hours, by merging their rows.

The row `hour` of `telemetry_level` says how far that is done. An hour is first closed: from then on
every ingest notes what comes late for it, in the transaction that stores it. Then it is made. So an
hour whose late notes are done holds all its minutes, whenever they came.

Rules:
- A row is always made of all the finer rows; never is something added to it. So everything here may
  be repeated, and a controller that was killed goes on where it was.
- No row is made of a time of which finer rows were deleted: it would lack them.
- Rows are read and merged outside the write lock, and written a bounded number at once. What is in
  memory is bounded by the size of their histograms as well: devices choose it.
- One controller of a fleet does this at a time.
- The cost follows the rows that are new or late, not those that are kept.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import numpy as np
import sqlalchemy as sa

from telemetry.server import bulk, reading, tables
from telemetry.server.aggregate import Aggregate
from telemetry.server.counting import MARK_BITS, NO_DEVICE
from telemetry.server.levels import DAYS, HOURS, MINUTES, Level, Part
from telemetry.server.partitions import Partitions
from telemetry.server.pruning import pruned_minute
from telemetry.server.rows import MinuteColumns
from wire.clock import Clock

GRACE_MINUTES: Final = 10
"""Devices report every minute, so what comes later than this is seldom."""

GROUPS_AT_ONCE: Final = 40_000
"""Rows that are made at once: some 100 buckets of 16 bytes each."""

BUCKETS_AT_ONCE: Final = 4_000_000
"""If their histograms have more, they are made in two parts."""

ROWS_IN_A_TRANSACTION: Final = 2000
LATE_AT_ONCE: Final = 500
FEW_DEVICES: Final = 50
"""If more of an hour's devices were late, all of the hour is made anew."""

_LOCK: Final = 0x65666C_01
"""The advisory lock of PostgreSQL that whoever makes roll-ups holds."""

_FINER: Final = {HOURS.name: MINUTES, DAYS.name: HOURS}


class RollUps:
    """Keeps hours and days up to date.

    Args:
        engine: SQLite or PostgreSQL.
        reading_engine: The same for transactions that only read.
        partitions: Makes those that are missing.
        clock: Wall time, and how long a call takes.
    """

    def __init__(
        self,
        engine: sa.Engine,
        reading_engine: sa.Engine,
        partitions: Partitions,
        clock: Clock,
    ) -> None:
        self._engine = engine
        self._reading = reading_engine
        self._partitions = partitions
        self._clock = clock

    def make(self, limit_s: float) -> bool:
        """Make what is missing.

        Args:
            limit_s: After so long, the rest is left to the next call.

        Returns:
            Whether there is a rest.
        """
        until_s = self._clock.monotonic_s() + limit_s
        with self._alone() as alone:
            if not alone:
                return False
            for level in (HOURS, DAYS):
                for _ in self._pieces(level):
                    if self._clock.monotonic_s() >= until_s:
                        return True
        return False

    def _pieces(self, level: Level) -> Iterator[None]:
        """Do the work of one level; it may end after each piece."""
        done, closed = self._close(level)
        while done < closed:
            with self._reading.connect() as connection:
                done = self._next(connection, level, done, closed)
            if done < closed:
                self._remake(level, done, None)
                done += level.minutes
            with self._engine.begin() as connection:
                self._move(connection, level, done_minute=done)
            yield
        # Last, and each note once: devices that always send something late must not keep the
        # hours that are over from being made.
        last: tuple[int, str] | None = (-1, NO_DEVICE)
        while last is not None and (last := self._make_late(level, last)):
            yield

    def _close(self, level: Level) -> tuple[int, int]:
        """Close what is over; return up to where the level is done, and closed."""
        now = int(self._clock.now_s() // 60) - GRACE_MINUTES
        with self._engine.begin() as connection:
            # Whoever ingests holds this row until its end: what it stored is seen by what follows.
            done, closed = self._level(connection, level)
            end = now // level.minutes * level.minutes
            if level is DAYS:
                finer, _ = self._level(connection, HOURS)
                end = min(end, finer // level.minutes * level.minutes)
            if end <= closed:
                return done, closed
            self._move(connection, level, closed_minute=end)
        return done, end

    @staticmethod
    def _next(connection: sa.Connection, level: Level, since: int, end: int) -> int:
        """Return where the first row begins that can be made, at most the end."""
        table = tables.DEVICES[_FINER[level.name].name].c
        first = (
            sa.select(sa.func.min(table.minute))
            .where(table.series_id == tables.series.c.id, table.minute >= since)
            .correlate(tables.series)
        )
        every = sa.select(sa.func.min(first.scalar_subquery())).select_from(tables.series)
        found = connection.execute(every).scalar()
        return end if found is None else min(found // level.minutes * level.minutes, end)

    def _make_late(self, level: Level, after: tuple[int, str]) -> tuple[int, str] | None:
        """Make anew what something came late for.

        Args:
            level: Which rows.
            after: The minute and the device of the last note that this call has seen.

        Returns:
            The next such place; None if there was no note behind it.
        """
        late = tables.late.c
        with self._reading.connect() as connection:
            done, _ = self._level(connection, level)
            query = (
                sa.select(late.minute, late.device, late.mark)
                .where(late.level == level.name, late.minute < done)
                .where(sa.tuple_(late.minute, late.device) > sa.tuple_(*after))
                .order_by(late.minute, late.device)
                .limit(LATE_AT_ONCE)
            )
            notes = [tuple(row) for row in connection.execute(query)]
        for minute, group in groupby(notes, itemgetter(0)):
            noted = list(group)
            devices = [device for _, device, _ in noted if device != NO_DEVICE]
            few = devices if len(noted) <= FEW_DEVICES else None
            self._remake(level, minute, few)
            with self._engine.begin() as connection:
                self._forget(connection, level, noted)
        return (notes[-1][0], notes[-1][1]) if notes else None

    def _forget(
        self, connection: sa.Connection, level: Level, noted: Sequence[tuple[int, str, int]]
    ) -> None:
        """Delete notes of which nothing came since; the days of their hours are to be made anew."""
        late = tables.late.c
        if level is HOURS:
            _, closed = self._level(connection, DAYS)
            day, mark = noted[0][0] // DAYS.minutes * DAYS.minutes, secrets.randbits(MARK_BITS)
            if day < closed:
                rows = [(DAYS.name, day, device, mark) for _, device, _ in noted]
                bulk.upsert(connection, tables.late, rows)
        statement = sa.delete(tables.late).where(
            late.level == level.name,
            late.minute == sa.bindparam("of_minute"),
            late.device == sa.bindparam("of_device"),
            late.mark == sa.bindparam("of_mark"),
        )
        connection.execute(
            statement,
            [
                {"of_minute": minute, "of_device": device, "of_mark": mark}
                for minute, device, mark in noted
            ],
        )

    def _remake(self, level: Level, minute: int, devices: Sequence[str] | None) -> None:
        """Make the rows of one hour or day: of some devices or of all, and of the fleet."""
        part = Part(_FINER[level.name], minute, minute + level.minutes)
        with self._reading.connect() as connection:
            if minute < pruned_minute(connection, part.level):
                return
            series = list(connection.scalars(sa.select(tables.series.c.id).order_by("id")))
            number = connection.scalar(sa.select(sa.func.count()).select_from(tables.device)) or 1
        if devices is None or devices:
            at_once = max(1, GROUPS_AT_ONCE // (number if devices is None else len(devices)))
            for start in range(0, len(series), at_once):
                self._merge(part, level, series[start : start + at_once], devices)
        part = part._replace(of_fleet=True)
        for start in range(0, len(series), GROUPS_AT_ONCE):
            self._merge(part, level, series[start : start + GROUPS_AT_ONCE], None)

    def _merge(
        self,
        part: Part,
        level: Level,
        series: Sequence[int],
        devices: Sequence[str] | None,
    ) -> None:
        with self._reading.connect() as connection:
            found = reading.rows(connection, part, series, devices)
            made = _merged(found, part.first, BUCKETS_AT_ONCE if len(series) > 1 else None)
        if made is None:
            half = len(series) // 2
            self._merge(part, level, series[:half], devices)
            self._merge(part, level, series[half:], devices)
            return
        table = (tables.FLEETS if part.of_fleet else tables.DEVICES)[level.name]
        if made and not part.of_fleet:
            self._partitions.cover(table, [part.first])
        for start in range(0, len(made), ROWS_IN_A_TRANSACTION):
            with self._engine.begin() as connection:
                bulk.upsert(connection, table, made[start : start + ROWS_IN_A_TRANSACTION])

    @staticmethod
    def _level(connection: sa.Connection, level: Level) -> tuple[int, int]:
        """Return up to where a level is done, and closed."""
        row = tables.level.c
        query = sa.select(row.done_minute, row.closed_minute).where(row.name == level.name)
        done, closed = connection.execute(query).one()
        return done, closed

    @staticmethod
    def _move(connection: sa.Connection, level: Level, **minutes: int) -> None:
        row = tables.level
        connection.execute(sa.update(row).where(row.c.name == level.name).values(**minutes))

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Tell whether no other controller does this, and keep it so."""
        if self._engine.dialect.name == "sqlite":
            yield True
            return
        with self._reading.connect() as connection:
            lock = sa.func.pg_try_advisory_lock(_LOCK)
            has_lock = bool(connection.execute(sa.select(lock)).scalar())
            connection.commit()
            try:
                yield has_lock
            finally:
                if has_lock:
                    connection.execute(sa.select(sa.func.pg_advisory_unlock(_LOCK)))
                    connection.commit()


def _merged(
    found: Iterator[MinuteColumns], minute: int, most: int | None
) -> list[tuple[Any, ...]] | None:
    """Return one row for each series and device of what was read.

    Args:
        found: What is read.
        minute: The first one of the hour or day.
        most: How many buckets may be in memory; None for any number.

    Returns:
        The rows; None if there are more buckets.
    """
    numbers: dict[tuple[int, str], int] = {}
    merged = Aggregate(with_histograms=True)
    first, last = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for part in found:
        at = [
            numbers.setdefault(key, len(numbers))
            for key in zip(part.series_id, part.device, strict=True)
        ]
        merged.add(part, at, len(numbers))
        if most is not None and merged.buckets_held > most:
            return None
        more = len(numbers) - len(first)
        first = np.pad(first, (0, more), constant_values=2**31)
        last = np.pad(last, (0, more), constant_values=-1)
        np.minimum.at(first, at, np.array(part.minute))
        np.maximum.at(last, at, np.array(part.last_minute))
    measures = merged.measures()
    spans = zip(first.tolist(), last.tolist(), strict=True)
    rows = [
        (series, minute, device, *measure, *span)
        for (series, device), measure, span in zip(numbers, measures, spans, strict=True)
    ]
    return sorted(rows, key=itemgetter(0, 2))
