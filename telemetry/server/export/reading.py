"""Settled measurements as they lie in the store, with the names of their series."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from telemetry.errors import UnknownMetricError
from telemetry.metrics import Kind
from telemetry.server import sketches
from telemetry.server.export.amounts import Amount
from telemetry.server.export.places import Places
from telemetry.server.export.settled import Window, windows
from telemetry.server.question import SECONDS_PER_MINUTE
from telemetry.server.rows import MinuteColumns, Series
from telemetry.server.store import TelemetryStore


class NamedSeries(NamedTuple):
    """A series and its metric."""

    metric: str
    kind: Kind
    attributes: Mapping[str, str]
    """With release, variant and model; empty ones are left out."""


class Measured(NamedTuple):
    """What a device measured of a series in one minute."""

    series: NamedSeries
    minute: int
    device: str
    measure: Amount


class WindowRows(NamedTuple):
    """What was read at once."""

    window: Window
    """That of the rows, all of which there are."""

    rows: list[MinuteColumns]


AllSeries = dict[int, NamedSeries]
MAX_WINDOW_BYTES: Final = 32 * 1024**2
"""Ordinary windows, of some 40,000 rows, take half of it."""

ROW_BYTES: Final = 300
"""What a row takes in memory beside its histogram."""


def all_series(store: TelemetryStore, *kinds: Kind) -> AllSeries:
    """Return the series that there are, by their identifiers, of the kinds that metrics have.

    Args:
        store: The telemetry.
        kinds: Only metrics of these; none for all.

    Raises:
        TelemetryStoreError: The database failed.
    """
    names = {found.name for found in store.metrics() if not kinds or found.kind in kinds}
    return {
        series.id: NamedSeries(metric, series.kind, series.attributes)
        for metric in sorted(names)
        for series in store.series(metric)
    }


def series_of(store: TelemetryStore, metric: str) -> list[Series]:
    """Return a metric's series, of the kind that it has, as in a query.

    Args:
        store: The telemetry.
        metric: Its name.

    Returns:
        At least one series.

    Raises:
        UnknownMetricError: No device has reported it.
        TelemetryStoreError: The database failed.
    """
    found = store.series(metric)
    if found:
        return found
    raise UnknownMetricError(
        f"no device has reported a metric {metric!r}",
        remedy="`fleet telemetry metrics` lists those that are there",
    )


def newest_minutes(store: TelemetryStore) -> dict[str, int]:
    """Return, of each device, the newest minute of which a measurement is stored.

    Args:
        store: The telemetry.

    Raises:
        TelemetryStoreError: The database failed.
    """
    return {
        found.device: int(found.newest_s // SECONDS_PER_MINUTE) - 1
        for found in store.devices()
        if found.newest_s is not None
    }


def next_windows(
    store: TelemetryStore, places: Places, done: Mapping[str, int], now_s: float
) -> Iterator[Window]:
    """Yield what can be handed on.

    Args:
        store: The telemetry.
        places: How far it was handed on.
        done: Of each device, from `Places.done`.
        now_s: Wall time.

    Yields:
        The next window of each device that has one.

    Raises:
        TelemetryStoreError: The database failed.
    """
    now = int(now_s // SECONDS_PER_MINUTE)
    start = places.start(now)
    yield from windows(newest_minutes(store), done, start, now)


def read_window(store: TelemetryStore, series: AllSeries, window: Window) -> WindowRows:
    """Read a window, whole: no transaction is open while its reader waits for another system.

    Where it is larger than what may be in memory, a part of it is read: half of its devices, or its
    first minutes. The rest is then a later window.

    Args:
        store: The telemetry.
        series: Which series.
        window: Which minutes of which devices.

    Returns:
        What was read, and its rows in any order; a minute of one device whole, however large.

    Raises:
        TelemetryStoreError: The database failed.
    """
    found: list[MinuteColumns] = []
    size_bytes = 0
    ids = list(series)
    for columns in store.read(ids, window.since, window.until, window.devices) if ids else ():
        found.append(columns)
        size_bytes += len(columns.sketch) * ROW_BYTES
        size_bytes += sum(len(sketch) for sketch in columns.sketch if sketch is not None)
        if size_bytes > MAX_WINDOW_BYTES and (half := _half(window)) is not None:
            found.clear()
            return read_window(store, series, half)
    return WindowRows(window, found)


def measured(rows: Iterable[StoredRow], series: AllSeries) -> list[Measured]:
    """Return measurements, each with its histogram as an object.

    Args:
        rows: Few: an object takes up to a hundred times what its row does.
        series: Those with which they were read.

    Raises:
        WireFormatError: A stored histogram is not one of ours.
    """
    return [Measured(series[row.series_id], row.minute, row.device, amount_of(row)) for row in rows]


def _half(window: Window) -> Window | None:
    """Return a part of a window; None where it is one minute of one device."""
    devices, since, until = window
    if len(devices) > 1:
        return Window(devices[: len(devices) // 2], since, until)
    return Window(devices, since, (since + until) // 2) if until - since > 1 else None


class StoredRow(NamedTuple):
    """A row of the store."""

    series_id: int
    minute: int
    last_minute: int
    device: str
    value_count: int
    total: float
    least: float
    greatest: float
    sketch: bytes | None


def rows_of(columns: MinuteColumns) -> Iterator[StoredRow]:
    """Yield the rows of which the store returned the columns."""
    return map(StoredRow._make, zip(*columns, strict=True))


def amount_of(row: StoredRow) -> Amount:
    """Return what a row holds.

    Args:
        row: Of the store.

    Raises:
        WireFormatError: Its histogram is not one of ours.
    """
    histogram = None if row.sketch is None else sketches.decode(row.sketch)
    return Amount(
        count=row.value_count if histogram is None else histogram.count,
        total=row.total,
        least=row.least,
        greatest=row.greatest,
        histogram=histogram,
    )
