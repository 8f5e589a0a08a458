"""What each device measured of what a gate asks.

Rules:
- A figure of a device counts if enough was measured for it (`LEAST_VALUES`).
- Devices report no counter that stands still: on those that answered requests it is 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from controller.domain.gates.language import Gate
from telemetry.metrics import known
from telemetry.server.query import Query, run
from telemetry.server.question import DEVICE, MODEL, QUANTILE
from telemetry.server.store import TelemetryStore

LEAST_VALUES: Final = 20
"""Requests that a figure of a device rests on; of a percentile, five must lie beyond it."""

REQUESTS: Final = "inference_requests_total"
_BEYOND: Final = 5


def figures(
    store: TelemetryStore,
    gate: Gate,
    model: str,
    devices: frozenset[str],
    since_s: float,
    until_s: float,
) -> dict[str, float]:
    """Return the figure of each device in which enough was measured.

    Args:
        store: The telemetry.
        gate: Which figure; its logarithm if the gate compares parts, -inf of 0.
        model: The model that the metric is about, if it is about one.
        devices: Which devices.
        since_s: Wall time, inclusive.
        until_s: Wall time, exclusive.

    Raises:
        FleetError: The telemetry does not answer, or not this.
    """
    about = Query(
        metric=gate.metric,
        group_by=(DEVICE,),
        where=gate.where + of_model(gate.metric, model),
        devices=devices,
        since_s=max(since_s, 0.0),
        until_s=until_s,
    )
    if gate.over:
        found = asked(store, about, "total")
        over = replace(about, metric=gate.over, where=gate.over_where + of_model(gate.over, model))
        whole = asked(store, over, "total")
        shares = {name: found.get(name, (0.0,))[0] / of for name, (of,) in whole.items() if of > 0}
        return {name: share for name, share in shares.items() if whole[name][0] >= LEAST_VALUES}
    if gate.statistic == "rate":
        # Devices report no counter that stands still; those that answered requests counted 0.
        over = replace(about, metric=REQUESTS, where=of_model(REQUESTS, model))
        busy = {name for name, (number,) in asked(store, over, "total").items() if number > 0}
        found = asked(store, about, "rate")
        values = dict.fromkeys(busy, 0.0) | {name: row[0] for name, row in found.items()}
    else:
        wanted = least_values(gate.statistic)
        rows = asked(store, about, gate.statistic, "count")
        values = {name: value for name, (value, count) in rows.items() if count >= wanted}
    if gate.is_relative:
        return {n: math.log(value) if value > 0.0 else -math.inf for n, value in values.items()}
    return values


def measured(
    store: TelemetryStore,
    gate: Gate,
    model: str,
    devices: frozenset[str],
    since_s: float,
    until_s: float,
) -> dict[str, float]:
    """Return how many values each device has measured of what a gate asks, where it has any.

    Args:
        store: The telemetry.
        gate: What it asks.
        model: The model that the metric is about, if it is about one.
        devices: Which devices.
        since_s: Wall time, inclusive.
        until_s: Wall time, exclusive.

    Raises:
        FleetError: The telemetry does not answer, or not this.
    """
    metric, where, statistic = gate.metric, gate.where, "count"
    if gate.over:
        metric, where, statistic = gate.over, gate.over_where, "total"
    elif gate.is_shift:
        where, statistic = (*gate.where, ("measure", "class")), "total"
    elif gate.statistic == "rate":
        metric, where, statistic = REQUESTS, (), "total"
    query = Query(
        metric=metric,
        group_by=(DEVICE,),
        where=where + of_model(metric, model),
        devices=devices,
        since_s=max(since_s, 0.0),
        until_s=until_s,
    )
    return {name: number for name, (number,) in asked(store, query, statistic).items()}


def of_model(metric: str, model: str) -> tuple[tuple[str, str], ...]:
    """Return the condition that a metric is about a model, if it is about one."""
    found = known(metric)
    is_of_device = found is not None and "release" not in found.attributes
    return ((MODEL, model),) if model and not is_of_device else ()


def least_values(statistic: str) -> float:
    """Return how many values of a device a statistic takes."""
    if QUANTILE.fullmatch(statistic) is None:
        return float(LEAST_VALUES)
    q = float(statistic[1:]) / 100.0
    beyond = min(q, 1.0 - q)
    return max(LEAST_VALUES, _BEYOND / beyond if beyond > 0.0 else LEAST_VALUES)


def asked(store: TelemetryStore, query: Query, *statistics: str) -> Mapping[str, tuple[float, ...]]:
    """Return statistics of each device that has them all.

    Raises:
        FleetError: The telemetry does not answer, or not this.
    """
    table = run(store, replace(query, statistics=statistics))
    return {
        str(row[0]): tuple(float(cell) for cell in row[1:] if isinstance(cell, int | float))
        for row in table.rows
        if None not in row
    }
