"""Stored telemetry as lines of JSON, for a caller that copies much of it.

Rules:
- The first line says what follows, the last one how much it was: without it the copy is not whole.
- What a line has is read whole before the line is handed out, and nothing of the database is open
  while the caller has it: whoever reads slowly, or goes, holds up nobody.
- Measurements come hour by hour: all rows of one, then all of the next. Rows of hours and of days
  come in parts of 60 of each series.
- A histogram is in the form of `telemetry.server.sketches`, in base64.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from telemetry.metrics import Kind, known
from telemetry.server.levels import MINUTES, Level, Part
from telemetry.server.reading import RowPlace
from telemetry.server.rows import MinuteColumns, Series, StoredEvent
from telemetry.server.store import TelemetryStore
from wire.codec import to_json

ROWS_OF_SERIES: Final = 60
"""Of a device, which come together: an hour of minutes."""

ROWS_AT_ONCE: Final = 2000
"""In a line, and in memory."""

MAX_LINE_BYTES: Final = 128 * 1024 * 1024
"""More than the longest lines have: that many histograms of the largest size."""


class MetricLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="metric"):
    """The first line of measurements."""

    name: str
    kind: Kind
    unit: str
    series: dict[str, dict[str, str]]
    """The attributes of each series, by its number."""

    level: str = MINUTES.name
    """How long the rows are: `minute`, `hour` or `day`. Older controllers have minutes alone."""


class RowsLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="rows"):
    """Measurements, as columns of equal length."""

    series: tuple[int, ...]
    minute: tuple[int, ...]
    """The first one of the minute, hour or day."""

    device: tuple[str, ...]
    count: tuple[int, ...]
    total: tuple[float, ...]
    least: tuple[float, ...]
    greatest: tuple[float, ...]
    sketch: tuple[bytes | None, ...]


class EventsLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="events"):
    """Events, the oldest first."""

    device: tuple[str, ...]
    at_s: tuple[float, ...]
    kind: tuple[str, ...]
    reason: tuple[str, ...]
    data: tuple[dict[str, Any], ...]


class EndLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="end"):
    """The last line."""

    rows: int


Line = MetricLine | RowsLine | EventsLine | EndLine


def measurement_lines(
    store: TelemetryStore,
    metric: str,
    series: list[Series],
    since_minute: int,
    until_minute: int,
    *,
    level: Level = MINUTES,
) -> Iterator[bytes]:
    """Yield the measurements of a metric.

    Args:
        store: The telemetry.
        metric: Its name.
        series: One or more of its series, of one kind.
        since_minute: The first minute.
        until_minute: The first minute after.
        level: Which rows: those that begin in this time.

    Yields:
        Lines.

    Raises:
        TelemetryStoreError: The database failed.
    """
    kind = series[0].kind
    found = known(metric)
    unit = found.unit if found is not None and found.kind == kind else ""
    named = {str(one.id): one.attributes for one in series}
    yield _line(MetricLine(name=metric, kind=kind, unit=unit, series=named, level=level.name))
    number = 0
    whole = Part(level, since_minute, until_minute)
    with store.snapshot() as snapshot:
        numbers = snapshot.present(whole, [one.id for one in series])
    window = ROWS_OF_SERIES * level.minutes
    for first in range(since_minute, until_minute, window) if numbers else ():
        part = Part(level, first, min(first + window, until_minute))
        for rows in _pages(store, part, numbers):
            number += len(rows.device)
            yield _line(rows)
    yield _line(EndLine(rows=number))


def event_lines(store: TelemetryStore, since_s: float, until_s: float) -> Iterator[bytes]:
    """Yield what happened on all devices, the oldest first.

    Args:
        store: The telemetry.
        since_s: From this wall time on.
        until_s: Before this one.

    Yields:
        Lines.

    Raises:
        TelemetryStoreError: The database failed.
    """
    number = 0
    place = None
    while True:
        with store.snapshot() as snapshot:
            found, place = snapshot.events(since_s, until_s, place, limit=ROWS_AT_ONCE)
        number += len(found)
        if found:
            yield _line(_events_line(found))
        if place is None:
            break
    yield _line(EndLine(rows=number))


def _pages(store: TelemetryStore, part: Part, series: list[int]) -> Iterator[RowsLine]:
    """Yield the rows of some series, so many at a time."""
    place = None
    while True:
        with store.snapshot() as snapshot:
            rows = _rows_line(snapshot.page(part, series, place, limit=ROWS_AT_ONCE), part.level)
        if rows.device:
            yield rows
        if len(rows.device) < ROWS_AT_ONCE:
            return
        place = RowPlace(rows.series[-1], rows.minute[-1], rows.device[-1])


def _rows_line(columns: MinuteColumns, level: Level) -> RowsLine:
    return RowsLine(
        series=columns.series_id,
        # A row tells the first minute of which it has values.
        minute=tuple(at // level.minutes * level.minutes for at in columns.minute),
        device=columns.device,
        count=columns.value_count,
        total=columns.total,
        least=columns.least,
        greatest=columns.greatest,
        sketch=columns.sketch,
    )


def _events_line(found: list[StoredEvent]) -> EventsLine:
    return EventsLine(
        device=tuple(one.device for one in found),
        at_s=tuple(one.event.at_s for one in found),
        kind=tuple(one.event.kind for one in found),
        reason=tuple(one.event.reason for one in found),
        data=tuple(dict(one.event.data) for one in found),
    )


def _line(line: Line) -> bytes:
    return to_json(line) + b"\n"
