"""Compares two groups of the store: `run(store, query, "release", "digits:1.0", "digits:1.1")`.

What of it is chance is decided in `telemetry.server.comparison`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from telemetry.errors import QueryError
from telemetry.server.comparison import Comparison, Group, compared, mean_of, quantile_of
from telemetry.server.grouping import Groups
from telemetry.server.query import filled
from telemetry.server.question import DEVICE, MINUTE, QUANTILE, Query, check_query
from telemetry.server.store import TelemetryStore

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


def run(store: TelemetryStore, query: Query, by: str, first: str, second: str) -> Compared:
    """Compare two groups.

    Args:
        store: The telemetry.
        query: The metric, one statistic (the mean or a quantile), and what counts.
        by: What parts the groups: an attribute of the metric, or what is known of devices.
        first: Its value in the first group.
        second: Its value in the second.

    Returns:
        Both groups, and how they differ.

    Raises:
        UnknownMetricError: No device has reported that metric.
        QueryError: The statistic cannot be compared, or a group has no values.
        TelemetryStoreError: The database failed.
    """
    if len(query.statistics) != 1 or by in {DEVICE, MINUTE}:
        raise QueryError(
            "two groups of devices are compared by one statistic",
            remedy="name one, such as mean or p95, and a label or an attribute such as release",
        )
    (statistic,) = query.statistics
    if statistic != MEAN and not QUANTILE.fullmatch(statistic):
        raise QueryError(
            f"{statistic!r} of two groups cannot be compared", remedy="use mean, p50, p95 or so"
        )
    asked = replace(query, group_by=(by, DEVICE), step_s=None)
    check_query(asked)
    groups = filled(store, asked).groups
    named = groups.named()
    devices = sorted({str(key[DEVICE]) for key in named if key[by] in {first, second}})
    sides = [_side(groups, named, by, name, devices, statistic) for name in (first, second)]
    (one, group), (other, second_group) = sides
    return Compared(one, other, compared(group, second_group))


def _side(
    groups: Groups,
    named: list[dict[str, object]],
    by: str,
    name: str,
    devices: list[str],
    statistic: str,
) -> tuple[Side, Group]:
    """Return a group.

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
    counts = np.zeros(len(devices))
    counts[at] = groups.aggregate.counts[numbers]
    side = Side(name, len(numbers), float(counts.sum()))
    if statistic == MEAN:
        totals = np.zeros(len(devices))
        totals[at] = groups.aggregate.totals[numbers]
        return side, Group(mean_of(totals, counts), counts)
    values, table = groups.aggregate.buckets()
    buckets = np.zeros((len(devices), len(values)))
    buckets[at] = table[numbers]
    return side, Group(quantile_of(float(statistic[1:]) / 100, buckets, values), counts)
