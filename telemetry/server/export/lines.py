"""Stored telemetry as lines of JSON, for a caller that copies much of it.

Rules:
- The first line says what follows, the last one how much it was: without it the copy is not whole.
- The database is asked for an hour at a time, so a caller that reads slowly holds up nobody.
- A histogram is in the form of `telemetry.server.sketches`, in base64.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from telemetry.metrics import Kind, known
from telemetry.server.event_log import MAX_EVENTS as MAX_EVENTS_READ
from telemetry.server.event_log import EventQuery
from telemetry.server.levels import MINUTES, Level
from telemetry.server.rows import MinuteColumns, Series, StoredEvent
from telemetry.server.store import TelemetryStore
from wire.codec import to_json

ROWS_OF_SERIES: Final = 60
"""Of a device, which are read at once: an hour of minutes."""

HOUR_S: Final = 3600.0
ROWS_AT_ONCE: Final = 2000
MAX_LINE_BYTES: Final = 128 * 1024 * 1024
"""More than the longest lines have: that many histograms of the largest size."""

LEAST_S: Final = 1e-3
"""Of events that happened within less, the newest `MAX_EVENTS_READ` are given."""


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
    numbers = [one.id for one in series]
    window = ROWS_OF_SERIES * level.minutes
    for first in range(since_minute, until_minute, window):
        end = min(first + window, until_minute)
        for columns in store.read(numbers, first, end, level=level):
            number += len(columns.minute)
            for at in range(0, len(columns.minute), ROWS_AT_ONCE):
                yield _line(_rows_line(columns, slice(at, at + ROWS_AT_ONCE), level))
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
    while since_s < until_s:
        end_s = min(since_s + HOUR_S, until_s)
        for found in _events(store, since_s, end_s):
            number += len(found)
            for at in range(0, len(found), ROWS_AT_ONCE):
                yield _line(_events_line(found[at : at + ROWS_AT_ONCE]))
        since_s = end_s
    yield _line(EndLine(rows=number))


def _events(store: TelemetryStore, since_s: float, until_s: float) -> Iterator[list[StoredEvent]]:
    """Yield all events of a time, in halves where one answer does not hold them."""
    found = store.events(EventQuery(since_s=since_s, until_s=until_s, limit=MAX_EVENTS_READ))
    middle_s = (since_s + until_s) / 2
    if len(found) < MAX_EVENTS_READ or until_s - since_s < LEAST_S:
        yield found
        return
    yield from _events(store, since_s, middle_s)
    yield from _events(store, middle_s, until_s)


def _rows_line(columns: MinuteColumns, part: slice, level: Level) -> RowsLine:
    return RowsLine(
        series=columns.series_id[part],
        # A row tells the first minute of which it has values.
        minute=tuple(at // level.minutes * level.minutes for at in columns.minute[part]),
        device=columns.device[part],
        count=columns.value_count[part],
        total=columns.total[part],
        least=columns.least[part],
        greatest=columns.greatest[part],
        sketch=columns.sketch[part],
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
