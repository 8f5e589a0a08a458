"""Compares two groups of the store: `run(store, query, "release", "digits:1.0", "digits:1.1")`.

What of it is chance is decided in `telemetry.server.comparison`, and what counts as one observation
in `telemetry.server.units`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from telemetry.errors import QueryError
from telemetry.histogram import RELATIVE_ERROR
from telemetry.server.comparison import (
    Comparison,
    Floats,
    Group,
    alike,
    compared,
    mean_group,
    quantile_group,
)
from telemetry.server.grouping import Groups
from telemetry.server.query import filled, kind_of_metric
from telemetry.server.question import DEVICE, MINUTE, QUANTILE, Query, check_query
from telemetry.server.store import TelemetryStore
from telemetry.server.units import Units, units_text, values_of

MEAN = "mean"


class Side(NamedTuple):
    """One of the two groups."""

    name: str
    devices: int
    values: float
    """How many values they have."""


class Compared(NamedTuple):
    """An answer."""

    first: Side
    second: Side
    result: Comparison
    devices_in_both: int
    """They weigh the same in both groups."""


def run(
    store: TelemetryStore, query: Query, by: str, first: str, second: str, unit: str = ""
) -> Compared:
    """Compare two groups.

    Args:
        store: The telemetry.
        query: The metric, one statistic (the mean or a quantile), and what counts.
        by: What parts the groups: an attribute of the metric, or what is known of devices.
        first: Its value in the first group.
        second: Its value in the second.
        unit: What holds devices together that are one observation, such as the label `site`;
            empty for each device alone.

    Returns:
        Both groups, and how they differ.

    Raises:
        UnknownMetricError: No device has reported that metric.
        QueryError: The statistic or the unit cannot be used, or a group has no values.
        TelemetryStoreError: The database failed.
    """
    if by in {DEVICE, MINUTE}:
        raise QueryError(
            f"groups of devices cannot be parted by {by}: a device is one observation",
            remedy="part them by an attribute or a label, such as release or site; two devices "
            f"stand side by side with fleet telemetry query {query.metric} --by device",
        )
    if len(query.statistics) != 1:
        raise QueryError(
            "two groups of devices are compared by one statistic",
            remedy="name one, such as mean or p95",
        )
    if kind_of_metric(store, query.metric) == "sum":
        raise QueryError(
            f"{query.metric} is a counter, and groups are not compared by counters: what a device "
            "counts says how long it ran, too",
            remedy="compare a histogram or a gauge; rates stand side by side with fleet telemetry "
            f"query {query.metric} --stat rate --by {by}",
        )
    (statistic,) = query.statistics
    if statistic != MEAN and not QUANTILE.fullmatch(statistic):
        raise QueryError(
            f"{statistic!r} of two groups cannot be compared", remedy="use mean, p50, p95 or so"
        )
    holds = values_of(query.device_values, unit)
    asked = replace(query, group_by=(by, DEVICE), step_s=None)
    check_query(asked)
    groups = filled(store, asked).groups
    named = groups.named()
    devices = sorted({str(key[DEVICE]) for key in named if key[by] in {first, second}})
    sides = [_measured(groups, named, by, name, devices) for name in (first, second)]
    weights = alike(*(side.counts for side in sides))
    units = Units(devices, holds)
    one, other = (
        each.group(statistic, weight, units) for each, weight in zip(sides, weights, strict=True)
    )
    in_both = int(((sides[0].counts > 0) & (sides[1].counts > 0)).sum())
    result = compared(one, other, units=units_text(unit))
    return Compared(sides[0].side, sides[1].side, result, in_both)


class _Measured(NamedTuple):
    """What the devices of a group measured; shape (devices,) or (devices, buckets)."""

    side: Side
    counts: Floats
    totals: Floats
    buckets: Floats
    values: Floats

    def group(self, statistic: str, weights: Floats, units: Units) -> Group:
        if statistic == MEAN:
            totals, counts = (
                units.summed(self.totals * weights),
                units.summed(self.counts * weights),
            )
            return mean_group(totals, counts)
        q = float(statistic[1:]) / 100
        table = units.summed(self.buckets * weights[:, None])
        return quantile_group(q, table, self.values, RELATIVE_ERROR, self.side.values)


def _measured(
    groups: Groups,
    named: list[dict[str, object]],
    by: str,
    name: str,
    devices: list[str],
) -> _Measured:
    """Return what a group measured.

    Raises:
        QueryError: It has no values.
    """
    place = {device: at for at, device in enumerate(devices)}
    numbers = [number for number, key in enumerate(named) if key[by] == name]
    if not numbers:
        raise QueryError(
            f"there are no values with {by}={name}",
            remedy=f"fleet telemetry query {groups.metric} --by {by} shows which there are",
        )
    at = np.array([place[str(named[number][DEVICE])] for number in numbers])
    counts, totals = np.zeros(len(devices)), np.zeros(len(devices))
    counts[at] = groups.aggregate.counts[numbers]
    totals[at] = groups.aggregate.totals[numbers]
    values, table = groups.aggregate.buckets()
    buckets = np.zeros((len(devices), len(values)))
    buckets[at] = table[numbers]
    # No quantile of a query is outside the extremes either.
    aggregate = groups.aggregate
    values = values.clip(aggregate.least[numbers].min(), aggregate.greatest[numbers].max())
    return _Measured(Side(name, len(numbers), float(counts.sum())), counts, totals, buckets, values)
