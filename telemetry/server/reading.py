"""Reads measurements, row by row or added up by the database.

Rules:
- A bounded number of rows, and of bytes of their histograms, is in memory at once.
- What is handed to others is read a page at a time, each in a transaction of its own: where the
  last one ended, the next begins, however many rows come and go meanwhile.
- Rows lie in the order of series, time and device. What few devices measured is looked up for each
  minute, hour or day; else the database would read the rows of all devices to find them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from telemetry.server import tables
from telemetry.server.levels import Part
from telemetry.server.rows import Grain, MinuteColumns

ROWS_AT_ONCE: Final = 20_000
BYTES_AT_ONCE: Final = 8 * 1024**2
"""Of histograms. Ordinary ones have some 100 bytes, the largest 24 KB."""

FETCHED_AT_ONCE: Final = 1000
"""Rows that the database hands over before anybody sees how large they are."""

MOST_TIMES: Final = 4000
MOST_LOOKUPS: Final = 400_000
"""A lookup takes a few microseconds, as long as some ten rows that are read one after another."""


NO_ROWS: Final = MinuteColumns._make([()] * len(MinuteColumns._fields))


class RowPlace(NamedTuple):
    """Where a row is among the others."""

    series_id: int
    minute: int
    """The first one of the minute, hour or day."""

    device: str


def rows(
    connection: sa.Connection,
    part: Part,
    series: Sequence[int],
    devices: Sequence[str] | None = None,
) -> Iterator[MinuteColumns]:
    """Read rows.

    Args:
        connection: In a transaction that reads.
        part: Which time, and which rows.
        series: Which series.
        devices: Only these; None for all.

    Yields:
        One or more rows, as columns.
    """
    table = _table(part)
    waiting: list[sa.Row[Any]] = []
    size_bytes = 0
    query = _select(table).where(_within(table, part, series, devices))
    for some in _fetched(connection, query, FETCHED_AT_ONCE):
        waiting += some
        size_bytes += sum(len(row[-1] or b"") for row in some)
        if size_bytes >= BYTES_AT_ONCE or len(waiting) >= ROWS_AT_ONCE:
            yield _columns(waiting)
            waiting, size_bytes = [], 0
    if waiting:
        yield _columns(waiting)


def present(connection: sa.Connection, part: Part, series: Sequence[int]) -> list[int]:
    """Return those of some series that have rows, in their order.

    Args:
        connection: In a transaction that reads.
        part: Which time, and which rows.
        series: Which series.
    """
    column, number = _table(part).c, tables.series.c.id
    has_rows = sa.exists().where(
        column.series_id == number, column.minute >= part.first, column.minute < part.end
    )
    query = sa.select(number).where(number.in_(series), has_rows).order_by(number)
    return list(connection.scalars(query))


def page(
    connection: sa.Connection,
    part: Part,
    series: Sequence[int],
    after: RowPlace | None = None,
    *,
    limit: int,
) -> MinuteColumns:
    """Read the next rows, in the order of series, time and device.

    Args:
        connection: In a transaction that reads.
        part: Which time, and which rows.
        series: Which series, in their order.
        after: Where the last row was that was read; None to begin.
        limit: At most so many rows.

    Returns:
        The rows, as columns; fewer than `limit` if there are no more.
    """
    table = _table(part)
    column = table.c
    found: list[sa.Row[Any]] = []
    for number in series:
        if after is not None and number < after.series_id:
            continue
        query = _select(table).where(column.series_id == number, column.minute < part.end)
        if after is not None and number == after.series_id:
            place = sa.tuple_(sa.literal(after.minute), sa.literal(after.device))
            query = query.where(
                # Databases begin to look where a single column says it.
                column.minute >= after.minute,
                sa.tuple_(column.minute, column.device) > place,
            )
        else:
            query = query.where(column.minute >= part.first)
        query = query.order_by(column.minute, column.device).limit(limit - len(found))
        found += connection.execute(query).all()
        if len(found) == limit:
            break
    return _columns(found) if found else NO_ROWS


def sums(
    connection: sa.Connection,
    part: Part,
    series: Sequence[int],
    devices: Sequence[str] | None = None,
    *,
    grain: Grain,
) -> Iterator[MinuteColumns]:
    """Let the database add rows up; their histograms are not read.

    Args:
        connection: In a transaction that reads.
        part: Which time, and which rows.
        series: Which series.
        devices: Only these; None for all.
        grain: Which rows stay apart.

    Yields:
        One or more sums, as columns; without sketches.
    """
    table = _table(part)
    first, last = _span_of(table)
    column = table.c
    apart: list[sa.ColumnElement[Any]] = [column.series_id]
    if grain.step:
        apart.append(column.minute // grain.step)
    if grain.by_minute:
        apart.append(column.minute)
    if grain.by_device:
        apart.append(column.device)
    query = sa.select(
        column.series_id,
        sa.func.min(first),
        sa.func.max(last),
        column.device if grain.by_device else sa.literal(""),
        # As floating point: a sum of counts that devices made up must not overflow.
        sa.func.sum(sa.cast(column.value_count, sa.Double)),
        sa.func.sum(column.total),
        sa.func.min(column.least),
        sa.func.max(column.greatest),
        sa.null(),
    ).where(_within(table, part, series, devices))
    for some in _fetched(connection, query.group_by(*apart), ROWS_AT_ONCE):
        yield _columns(some)


def first_of_all(connection: sa.Connection, since: int) -> int:
    """Return the first minute of which there is a row of the fleet, of any series.

    Args:
        connection: In a transaction that reads.
        since: A minute, which is returned if any row is older.
    """
    found = [
        minute for table in tables.FLEETS.values() for minute in _firsts(connection, table, since)
    ]
    return max(min(found, default=since), since)


def _firsts(connection: sa.Connection, table: sa.Table, since: int) -> Iterator[int]:
    """Yield the first minute of a table, or one before another if there is any."""
    first, _ = _span_of(table)
    of_series = (
        sa.select(first)
        .where(table.c.series_id == tables.series.c.id)
        .order_by(table.c.minute)
        .limit(1)
        .correlate(tables.series)
        .scalar_subquery()
    )
    firsts = sa.select(of_series.label("first")).select_from(tables.series).subquery()
    # One row ends the search in a fleet that has measured for longer.
    found = connection.scalar(sa.select(firsts.c.first).where(firsts.c.first < since).limit(1))
    if found is None:
        found = connection.scalar(sa.select(sa.func.min(firsts.c.first)))
    if found is not None:
        yield int(found)


def _select(table: sa.Table) -> sa.Select[Any]:
    """Return a query of rows, in the order of `MinuteColumns`."""
    first, last = _span_of(table)
    column = table.c
    return sa.select(
        column.series_id, first, last, column.device, column.value_count,
        column.total, column.least, column.greatest, column.sketch,
    )  # fmt: skip


def _table(part: Part) -> sa.Table:
    return (tables.FLEETS if part.of_fleet else tables.DEVICES)[part.level.name]


def _span_of(table: sa.Table) -> tuple[sa.Column[Any], sa.Column[Any]]:
    if "first_minute" in table.c:
        return table.c.first_minute, table.c.last_minute
    return table.c.minute, table.c.minute


def _fetched(
    connection: sa.Connection, query: sa.Select[Any], number: int
) -> Iterator[Sequence[sa.Row[Any]]]:
    # Whoever takes only the first rows leaves no cursor open.
    with connection.execution_options(yield_per=number).execute(query) as result:
        yield from result.partitions()


def _columns(found: Sequence[sa.Row[Any]]) -> MinuteColumns:
    return MinuteColumns._make(zip(*found, strict=True))


def _within(
    table: sa.Table, part: Part, series: Sequence[int], devices: Sequence[str] | None
) -> sa.ColumnElement[bool]:
    column = table.c
    found: list[sa.ColumnElement[bool]] = [column.series_id.in_(series)]
    times = range(part.first, part.end, part.level.minutes)
    lookups = len(times) * len(series) * len(devices or ())
    if devices is not None:
        found.append(column.device.in_(devices))
    if devices is not None and len(times) <= MOST_TIMES and lookups <= MOST_LOOKUPS:
        found.append(column.minute.in_(times))
    else:
        found += [column.minute >= part.first, column.minute < part.end]
    return sa.and_(*found)
