"""Sends settled measurements and events to a collector, each at least once.

Rules:
- Measurements are sent when they are settled (`telemetry.server.export.settled`), events as soon as
  they are there.
- What the collector has taken is noted after each window and each part of the events. If it fails
  in between, that window is sent again: a collector may see a minute twice, and misses none.
- What came before the first start is not sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from controller.exporting.collector import Collector
from controller.store.database import Database
from telemetry.server.export.places import Places
from telemetry.server.export.reading import (
    Measured,
    all_series,
    measured,
    next_windows,
    read_window,
)
from telemetry.server.store import TelemetryStore
from wire.clock import Clock

MAX_WINDOWS: Final = 100
MAX_EVENT_PARTS: Final = 100
POINTS_AT_ONCE: Final = 2000
"""A histogram takes some 200 bytes, so a request takes half a megabyte."""

BUCKETS_AT_ONCE: Final = 200_000
"""As many as 2000 ordinary histograms have, and 65 of the largest size."""


class Sending:
    """Sends what is new.

    Args:
        database: That of the telemetry.
        telemetry: The telemetry.
        collector: Where it goes.
        clock: Wall time.
        metrics: Whether measurements are sent.
        events: Whether events are sent.
    """

    def __init__(
        self,
        database: Database,
        telemetry: TelemetryStore,
        collector: Collector,
        clock: Clock,
        *,
        metrics: bool = True,
        events: bool = True,
    ) -> None:
        self._telemetry = telemetry
        self._collector = collector
        self._clock = clock
        self._measured = Places(database.engine, "otlp-metrics") if metrics else None
        self._events = Places(database.engine, "otlp-events") if events else None

    def send(self) -> bool:
        """Send what is new.

        Returns:
            Whether there may be more.

        Raises:
            CollectorError: The collector did not take it; the next call sends it again.
            TelemetryStoreError: The database failed; the same.
        """
        more_events = self._events is not None and self._send_events(self._events)
        more = self._measured is not None and self._send_measured(self._measured)
        return more or more_events

    def _send_measured(self, places: Places) -> bool:
        done = places.done()
        windows = next_windows(self._telemetry, places, done, self._clock.now_s())
        found = list(islice(windows, MAX_WINDOWS))
        series = all_series(self._telemetry) if found else {}
        for whole in found:
            rows = read_window(self._telemetry, series, whole)
            for points in in_requests(measured(rows, series)):
                self._collector.send_measured(points)
            window = rows.window
            with places.writing() as connection:
                places.keep(connection, window, done)
            done.update(dict.fromkeys(window.devices, window.until))
        return bool(found)

    def _send_events(self, places: Places) -> bool:
        for _ in range(MAX_EVENT_PARTS):
            found = places.next_events()
            if not found:
                return False
            self._collector.send_events(found, self._clock.now_s())
            places.keep_event(found[-1].number)
        return True


def in_requests(points: Iterable[Measured]) -> Iterator[list[Measured]]:
    """Yield measurements as they are sent: those of one request have a bounded size."""
    some: list[Measured] = []
    buckets = 0
    for point in points:
        some.append(point)
        histogram = point.measure.histogram
        buckets += 0 if histogram is None else len(histogram.buckets())
        if len(some) == POINTS_AT_ONCE or buckets >= BUCKETS_AT_ONCE:
            yield some
            some, buckets = [], 0
    if some:
        yield some
