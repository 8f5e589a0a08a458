"""Records what happened on this device since the last drain, aggregated in memory by minute.

```
recorder.observe("inference_latency_ms", 12.5, {"variant": "int8", "release": "digits:1.0"})
recorder.add("variant_switches_total", 1, {})
recorder.gauge("temperature_c", 61.0, {})
recorder.event("switch", "too hot", {"headroom": 0.9})
points, events = recorder.drain()
```

Rules:
- Any thread may record. The recorder never raises and never waits, because the device serves
  requests at the same time.
- Memory is bounded: a new series beyond `MAX_SERIES` and an event beyond `MAX_EVENTS` are dropped
  until the next drain, which says how many in `DROPPED_METRIC`. A series that the store would
  refuse, because of its name for example, is dropped and counted too.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from telemetry.histogram import ExponentialHistogram
from telemetry.limits import MAX_ATTRIBUTES, MAX_TEXT, is_name
from telemetry.metrics import BY_MINUTE
from wire.clock import Clock
from wire.telemetry import Event, GaugePoint, HistogramPoint, Point, SumPoint

MAX_SERIES = 512
"""Twice what an agent with nine busy variants on a board with many sensors has."""

MAX_EVENTS = 512
DROPPED_METRIC = "telemetry_dropped_total"
SECONDS_PER_MINUTE = 60

A = TypeVar("A")
Figures = Iterable[tuple[str, float]]
"""Names of metrics, and a value for each."""

_At = tuple[int, tuple[tuple[str, str], ...]]
"""A minute and attributes."""

OnEvent = Callable[[str, str, Mapping[str, Any]], None]


class _Key(NamedTuple):
    minute: int
    metric: str
    attributes: tuple[tuple[str, str], ...]


class _Waits(NamedTuple):
    """What waits for the end of its minute."""

    minute: int | None
    """The minute of which all waits; None for none."""

    span: int | None
    """The time of which that waits which is reported by the minute; None for none."""

    def taken_from(self, series: dict[_Key, A]) -> dict[_Key, A]:
        """Take out and return what waits."""
        keys = [key for key in series if self._holds(key)]
        return {key: series.pop(key) for key in keys}

    def _holds(self, key: _Key) -> bool:
        return key.minute == (self.span if key.metric in BY_MINUTE else self.minute)


class _Gauge:
    """Readings of one minute."""

    __slots__ = ("count", "greatest", "least", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.least = math.inf
        self.greatest = -math.inf

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.least = min(self.least, value)
        self.greatest = max(self.greatest, value)


class _Sum:
    """A counter's growth within one minute."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0


class Recorder:
    """Collects measurements and events of one process.

    Args:
        clock: Its wall time decides the minute.
        on_event: Called with each event's kind, reason and data, such as to log it.
    """

    def __init__(self, clock: Clock, on_event: OnEvent | None = None) -> None:
        self._clock = clock
        self._on_event = on_event
        self._lock = threading.Lock()
        self._histograms: dict[_Key, ExponentialHistogram] = {}
        self._sums: dict[_Key, _Sum] = {}
        self._gauges: dict[_Key, _Gauge] = {}
        self._requests: dict[_At, tuple[dict[str, _Sum], dict[str, ExponentialHistogram]]] = {}
        """The series of requests once more, found in one step."""

        self.grain_minutes = 1
        """Over how many minutes that is put together which is reported by the minute: as many as
        there are between two reports."""

        self._is_new = False
        self._events: list[Event] = []
        self._dropped = 0

    def observe(self, metric: str, value: float, attributes: Mapping[str, str]) -> None:
        """Add a value to a histogram; a value that is not finite is dropped, which is counted."""
        key = self._key(metric, attributes)
        with self._lock:
            series = self._series(self._histograms, key, ExponentialHistogram, value)
            if series is not None:
                series.add(value)
                self._is_new = True

    def add(self, metric: str, amount: float, attributes: Mapping[str, str]) -> None:
        """Increase a counter; a negative amount is dropped, and the drop is counted."""
        key = self._key(metric, attributes)
        with self._lock:
            checked = amount if amount >= 0 else math.nan
            series = self._series(self._sums, key, _Sum, checked)
            if series is not None:
                series.value += amount
                self._is_new = self._is_new or metric not in BY_MINUTE

    def gauge(self, metric: str, value: float, attributes: Mapping[str, str]) -> None:
        """Add a reading; a value that is not finite is dropped, which is counted."""
        key = self._key(metric, attributes)
        with self._lock:
            series = self._series(self._gauges, key, _Gauge, value)
            if series is not None:
                series.add(value)

    def request(
        self, attributes: Mapping[str, str], added: Figures, observed: Figures = ()
    ) -> None:
        """Record what one request brought at once: cheaper than one call for each figure.

        Args:
            attributes: Of all its figures.
            added: Counters and their growth.
            observed: Histograms and their values.
        """
        at = (int(self._clock.now_s() // SECONDS_PER_MINUTE), tuple(sorted(attributes.items())))
        with self._lock:
            self._is_new = True
            totals, histograms = self._of_requests(at)
            for metric, amount in added:
                total = totals.get(metric)
                if total is None or not 0.0 <= amount < math.inf:
                    key, checked = _Key(at[0], metric, at[1]), amount if amount >= 0 else math.nan
                    total = self._series(self._sums, key, _Sum, checked)
                    if total is None:
                        continue
                    totals[metric] = total
                total.value += amount
            for metric, value in observed:
                histogram = histograms.get(metric)
                if histogram is None or not math.isfinite(value):
                    key = _Key(at[0], metric, at[1])
                    histogram = self._series(self._histograms, key, ExponentialHistogram, value)
                    if histogram is None:
                        continue
                    histograms[metric] = histogram
                histogram.add(value)

    def event(self, kind: str, reason: str, data: Mapping[str, Any] | None = None) -> None:
        """Record something that happened, with its reason and the inputs of the decision."""
        event = Event(at_s=self._clock.now_s(), kind=kind, reason=reason, data=dict(data or {}))
        with self._lock:
            if len(self._events) < MAX_EVENTS:
                self._events.append(event)
            else:
                self._dropped += 1
        if self._on_event is not None:
            self._on_event(kind, reason, event.data)

    @property
    def holds_events(self) -> bool:
        """Whether anything happened since the last drain."""
        return bool(self._events)

    @property
    def has_new_figures(self) -> bool:
        """Whether counters or histograms have grown since the last look, or the last drain."""
        return self._is_new

    def look(self) -> tuple[Point, ...]:
        """Return the counters and histograms that the next drain will return, as they are now.

        What is reported by the minute is left out: it tells of no request.
        """
        with self._lock:
            self._is_new = False
            histograms = [(key, series.copy()) for key, series in self._histograms.items()]
            sums = [
                (key, series.value)
                for key, series in self._sums.items()
                if key.metric not in BY_MINUTE
            ]
        return (
            *(_histogram_point(key, histogram) for key, histogram in histograms),
            *(_sum_point(key, value) for key, value in sums),
        )

    def drain(
        self, *, whole: bool = False, finished: bool = False
    ) -> tuple[tuple[Point, ...], tuple[Event, ...]]:
        """Remove and return what was recorded since the last drain.

        Args:
            whole: Also what is reported by the minute (`metrics.BY_MINUTE`), of the minute that is
                not over yet.
            finished: Of the minute that is not over yet only the events.

        Returns:
            Points, each the growth since the last drain, and events, oldest first.
        """
        minute = math.floor(self._clock.now_s() / SECONDS_PER_MINUTE)
        with self._lock:
            histograms, sums, gauges = self._histograms, self._sums, self._gauges
            waits = _Waits(
                minute=minute if finished else None,
                span=None if whole else minute - minute % self.grain_minutes,
            )
            self._histograms = waits.taken_from(histograms)
            self._sums, self._gauges = waits.taken_from(sums), waits.taken_from(gauges)
            self._requests = {}
            self._is_new = finished and bool(self._histograms or self._sums)
            events, self._events = self._events, []
            dropped, self._dropped = self._dropped, 0
        if dropped:
            lost = sums.setdefault(self._key(DROPPED_METRIC, {}), _Sum())
            lost.value += dropped
        points = (
            *(_histogram_point(key, histogram) for key, histogram in histograms.items()),
            *(_sum_point(key, series.value) for key, series in sums.items()),
            *(_gauge_point(key, gauge) for key, gauge in gauges.items()),
        )
        return points, tuple(events)

    def _of_requests(self, at: _At) -> tuple[dict[str, _Sum], dict[str, ExponentialHistogram]]:
        """Return the series of requests with these attributes; the lock is held."""
        known = self._requests.get(at)
        if known is None:
            known = {}, {}
            if len(self._requests) < MAX_SERIES:
                self._requests[at] = known
        return known

    def _key(self, metric: str, attributes: Mapping[str, str]) -> _Key:
        minute = math.floor(self._clock.now_s() / SECONDS_PER_MINUTE)
        if metric in BY_MINUTE:
            minute -= minute % self.grain_minutes
        return _Key(minute, metric, tuple(sorted(attributes.items())))

    def _series(
        self, table: dict[_Key, A], key: _Key, make: Callable[[], A], value: float
    ) -> A | None:
        """Return a key's aggregate, a new one if needed; None when the value must be dropped."""
        if math.isfinite(value):
            series = table.get(key)
            if series is not None:
                return series
            count = len(self._histograms) + len(self._sums) + len(self._gauges)
            if count < MAX_SERIES and _is_storable(key):
                return table.setdefault(key, make())
        self._dropped += 1
        return None


def _is_storable(key: _Key) -> bool:
    """Tell whether the store takes a series of this key."""
    return (
        is_name(key.metric)
        and len(key.attributes) <= MAX_ATTRIBUTES
        and all(is_name(name) and len(value) <= MAX_TEXT for name, value in key.attributes)
    )


def _histogram_point(key: _Key, histogram: ExponentialHistogram) -> Point:
    return HistogramPoint(
        metric=key.metric,
        minute=key.minute,
        attributes=dict(key.attributes),
        blob=histogram.to_bytes(),
    )


def _sum_point(key: _Key, value: float) -> Point:
    return SumPoint(
        metric=key.metric, minute=key.minute, attributes=dict(key.attributes), value=value
    )


def _gauge_point(key: _Key, gauge: _Gauge) -> Point:
    return GaugePoint(
        metric=key.metric,
        minute=key.minute,
        attributes=dict(key.attributes),
        count=gauge.count,
        total=gauge.total,
        least=gauge.least,
        greatest=gauge.greatest,
    )
