"""What devices measured, as families of Prometheus: counters of all time, gauges of now.

Rules:
- A gauge covers the `GAUGE_MINUTES` minutes before the last `LATER_MINUTES`, so devices that are
  away are not in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from telemetry.server.export.counters import Counter, Counters
from telemetry.server.export.families import (
    Family,
    FamilyKind,
    HistogramValue,
    Labels,
    Sample,
    gathered,
    gauge_names,
    labels_of,
    meaning_of,
    prometheus_name,
)
from telemetry.server.export.reading import all_series
from telemetry.server.export.settled import LATER_MINUTES
from telemetry.server.levels import MINUTES, Part
from telemetry.server.question import DEVICE, SECONDS_PER_MINUTE
from telemetry.server.rows import Grain
from telemetry.server.store import TelemetryStore

GAUGE_MINUTES: Final = 5
Found = tuple[str, FamilyKind, str, Sample]


def families(
    counters: Counters, store: TelemetryStore, now_s: float, *, by_device: bool
) -> list[Family]:
    """Return the families of all metrics that devices have reported.

    Args:
        counters: What was counted.
        store: For the gauges.
        now_s: Wall time.
        by_device: Whether each device has gauges of its own.

    Raises:
        TelemetryStoreError: The database failed.
    """
    found = [*map(_counted, counters.all()), *_gauges(store, now_s, by_device=by_device)]
    return gathered(found)


def _counted(counter: Counter) -> Found:
    metric, kind, attributes = counter.series
    value: float | HistogramValue = counter.total
    if counter.histogram is not None:
        value = HistogramValue(counter.total, counter.histogram)
    sample = Sample(labels_of(attributes), value, counter.created_at_s)
    of_kind: FamilyKind = "counter" if counter.histogram is None else "histogram"
    return prometheus_name(metric, kind), of_kind, meaning_of(metric), sample


def _gauges(store: TelemetryStore, now_s: float, *, by_device: bool) -> Iterator[Found]:
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
            metric, _, attributes = series[one]
            labels: Labels = labels_of({**attributes, **({DEVICE: device} if by_device else {})})
            values = (total / count, least, greatest)
            for name, value in zip(gauge_names(metric), values, strict=True):
                if math.isfinite(value):
                    yield name, "gauge", meaning_of(metric), Sample(labels, value)
