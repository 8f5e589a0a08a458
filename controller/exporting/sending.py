"""Sends settled measurements and events to a collector, each at least once.

Rules:
- Measurements are sent when they are settled (`telemetry.server.export.settled`), events as soon
  as they are there.
- What the collector has taken is noted after each request: if the next one fails, that one is sent
  again. A collector misses nothing. It may see twice what was in a request whose answer was lost,
  and of a device's minute that takes more than one request what was in those before.
- A request that is too long for the collector is sent in halves. What is too long by itself is left
  out, counted and told: it would hold up all that comes after it.
- Refused events hold up no measurements, and the other way round.
- What came before the first start is not sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import Final, TypeVar

from controller.errors import CollectorError
from controller.exporting.collector import Collector
from controller.exporting.request_sizes import event_parts, measured_parts
from controller.store.database import Database
from telemetry.server.export.places import NumberedEvent, Places
from telemetry.server.export.reading import (
    Measured,
    StoredRow,
    all_series,
    measured,
    next_windows,
    read_window,
    rows_of,
)
from telemetry.server.export.settled import Window
from telemetry.server.store import TelemetryStore
from wire.clock import Clock

MAX_WINDOWS: Final = 100
MAX_EVENT_PARTS: Final = 100
BLOCK_ROWS: Final = 2000
BLOCK_BYTES: Final = 2**18
"""Of histograms as they are stored: as objects, those of the largest size take a hundred times as
much, and a window may have ten thousand of them."""

Sent = TypeVar("Sent", Measured, NumberedEvent)


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
        more, faults = False, []
        for places, send in (
            (self._events, self._send_events),
            (self._measured, self._send_measured),
        ):
            try:
                more = (places is not None and send(places)) or more
            except CollectorError as exc:
                faults.append(exc)
        if faults:
            raise CollectorError(
                "; ".join(dict.fromkeys(fault.message for fault in faults)),
                remedy=faults[0].remedy,
                retry_after_s=max(fault.retry_after_s for fault in faults),
            )
        return more

    def _send_measured(self, places: Places) -> bool:
        done = places.done()
        windows = next_windows(self._telemetry, places, done, self._clock.now_s())
        found = list(islice(windows, MAX_WINDOWS))
        series = all_series(self._telemetry) if found else {}
        for whole in found:
            window, columns = read_window(self._telemetry, series, whole)
            rows = [row for each in columns for row in rows_of(each)]
            rows.sort(key=lambda row: (row.device, row.minute, series[row.series_id].metric))
            for block, following in _blocks(rows):
                points = measured(block, series)
                send = self._collector.send_measured
                for at in self._each(points, measured_parts(points), send):
                    place = (
                        (points[at].device, points[at].minute) if at < len(points) else following
                    )
                    with places.writing() as connection:
                        for part in _reached(window, place, done):
                            places.keep(connection, part, done)
                            done.update(dict.fromkeys(part.devices, part.until))
        return bool(found)

    def _send_events(self, places: Places) -> bool:
        for _ in range(MAX_EVENT_PARTS):
            found = places.next_events()
            if not found:
                return False

            def send(part: Sequence[NumberedEvent]) -> None:
                self._collector.send_events(part, self._clock.now_s())

            for at in self._each(found, event_parts(found), send):
                places.keep_event(found[at - 1].number)
        return True

    def _each(
        self, found: Sequence[Sent], ends: Iterable[int], send: Callable[[Sequence[Sent]], None]
    ) -> Iterator[int]:
        """Send things in parts; yield, after each, how many have gone.

        Raises:
            CollectorError: It did not take one, and not because it is too long.
        """
        parts = deque(pairwise([0, *ends]))
        while parts:
            begin, end = parts.popleft()
            try:
                send(found[begin:end])
            except CollectorError as exc:
                if not exc.is_too_long:
                    raise
                if end - begin > 1:
                    middle = (begin + end) // 2
                    parts.extendleft(((middle, end), (begin, middle)))
                    continue
                self._collector.leave_out(found[begin])
            yield end
        if not found:
            yield 0


def _blocks(
    rows: Sequence[StoredRow],
) -> Iterator[tuple[Sequence[StoredRow], tuple[str, int] | None]]:
    """Yield rows, as many as may be objects at once, each with the place of the one that follows.

    Args:
        rows: Of a window, by device and minute; if there are none, one empty block is yielded.

    Yields:
        Rows, and the device and the minute of the next one; None after the last.
    """
    begin = size_bytes = 0
    for at, row in enumerate(rows):
        size_bytes += len(row.sketch or b"")
        if at > begin and (size_bytes > BLOCK_BYTES or at - begin >= BLOCK_ROWS):
            yield rows[begin:at], (row.device, row.minute)
            begin, size_bytes = at, len(row.sketch or b"")
    yield rows[begin:], None


def _reached(
    window: Window, following: tuple[str, int] | None, done: Mapping[str, int]
) -> Iterator[Window]:
    """Yield the parts of a window that have been handed on.

    Args:
        window: The window.
        following: Device and minute of the first measurement that has not gone, by device and
            minute; None for none.
        done: Of each device, the first minute that was not handed on before.

    Yields:
        The devices that have wholly gone, and the minutes before that measurement of its device.
    """
    whole = window.devices
    if following is not None:
        device, minute = following
        whole = tuple(each for each in whole if each < device)
        if minute > done.get(device, window.since):
            yield Window((device,), window.since, minute)
    new = tuple(each for each in whole if done.get(each, window.since) < window.until)
    if new:
        yield Window(new, window.since, window.until)
