"""What devices measured, as families of Prometheus: counters of all time, gauges of now.

Rules:
- A gauge covers the `GAUGE_MINUTES` minutes before the last `LATER_MINUTES`, so devices that are
  away are not in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from telemetry.server.export.claims import Offered, Shown, Value, shown
from telemetry.server.export.counters import Counter, Counters
from telemetry.server.export.families import HistogramValue, gauge_names, prometheus_name
from telemetry.server.export.reading import all_series
from telemetry.server.export.settled import LATER_MINUTES
from telemetry.server.levels import MINUTES, Part
from telemetry.server.question import DEVICE, SECONDS_PER_MINUTE
from telemetry.server.rows import Grain
from telemetry.server.store import TelemetryStore

GAUGE_MINUTES: Final = 5


def scraped(counters: Counters, store: TelemetryStore, now_s: float, *, by_device: bool) -> Shown:
    """Return the families of the metrics that devices have reported, and what is left out.

    Args:
        counters: What was counted.
        store: For the gauges.
        now_s: Wall time.
        by_device: Whether each device has gauges of its own.

    Raises:
        TelemetryStoreError: The database failed.
    """
    return shown([*map(_counted, counters.all()), *_gauges(store, now_s, by_device=by_device)])


def _counted(counter: Counter) -> Offered:
    metric, kind, attributes = counter.series
    name, since_s = prometheus_name(metric, kind), counter.created_at_s
    value: Value = (name, "counter", counter.total)
    if counter.histogram is not None:
        value = (name, "histogram", HistogramValue(counter.total, counter.histogram))
    return Offered(metric, kind, attributes, (value,), since_s, since_s)


def _gauges(store: TelemetryStore, now_s: float, *, by_device: bool) -> Iterator[Offered]:
    series = all_series(store, "gauge")
    until = int(now_s // SECONDS_PER_MINUTE) - LATER_MINUTES + 1
    if not series:
        return
    span = Part(MINUTES, until - GAUGE_MINUTES, until, of_fleet=not by_device)
    with store.snapshot() as snapshot:
        if snapshot.fleet_first() > span.first:
            span = span._replace(of_fleet=False)
        parts = list(snapshot.sums(span, list(series), grain=Grain(by_device=by_device)))
    for part in parts:
        columns = (part.series_id, part.device, part.value_count, part.total)
        numbers = zip(*columns, part.least, part.greatest, strict=True)
        for one, device, count, total, least, greatest in numbers:
            metric, kind, attributes = series[one]
            if by_device:
                attributes = {**attributes, DEVICE: device}
            figures = zip(gauge_names(metric), (total / count, least, greatest), strict=True)
            values: list[Value] = [
                (name, "gauge", value) for name, value in figures if math.isfinite(value)
            ]
            yield Offered(metric, kind, attributes, tuple(values), age=one)
