"""Queries of the telemetry store: the statistics of a metric, by group, over a time.

```
query = parse("inference_latency_ms", statistics="p50,p95", group_by="variant", since="1h",
              now_s=clock.now_s())
table = run(store, query)
```

Rules:
- A quantile is that of all values together: histograms are merged, quantiles never averaged.
- What needs no histogram is added up by the database.
- A group without values has no row. An unknown metric, statistic or attribute is an error; a metric
  that agents report is known, whether or not one has something to report.
- `rate` divides by the seconds that were asked for: the whole minutes from the one of `since_s` to
  the one of `until_s`, and of a step what of it lies in them, so rates of groups add up. Neither
  what is still to come counts, nor what was before any device measured anything.
- What is asked for by an old or a new name of a metric is answered with both.
- Times are stored by the minute; the minutes that contain `since_s` and `until_s` are included.
- The coarsest rows that give the exact answer are read (`telemetry.server.levels`), and the answer
  says which. Where minutes are no longer kept, it begins with the whole hour or day.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from difflib import get_close_matches
from typing import NamedTuple, Protocol

from telemetry.errors import UnknownMetricError
from telemetry.metrics import METRICS, Kind, known, names_of
from telemetry.server.grouping import Cell, Groups
from telemetry.server.ingest import MAX_MINUTE
from telemetry.server.levels import Kept, Part, planned
from telemetry.server.query_text import parse_conditions, parse_list, parse_step_s, parse_time_s
from telemetry.server.question import (
    DEFAULT_STATISTICS,
    DEVICE,
    MODEL,
    SECONDS_PER_MINUTE,
    START,
    Query,
    check_attributes,
    check_query,
    check_statistics,
    meant,
)
from telemetry.server.rows import Grain, MinuteColumns, Reported, Series

__all__ = ["MODEL", "Query", "Readable", "Table", "parse", "run"]


class Moment(Protocol):
    """Measurements at one moment, such as `telemetry.server.snapshot.Snapshot`."""

    @property
    def now_s(self) -> float:
        """Wall time."""
        ...

    def fleet_first(self) -> int:
        """Return the minute since which there are rows of the whole fleet."""
        ...

    def measured_since(self, first: int) -> int:
        """Return the first minute, from one on, of which devices can have measured something."""
        ...

    def kept(self) -> list[Kept]:
        """Return what there is of each level, from fine to coarse."""
        ...

    def rows(
        self, part: Part, series: Sequence[int], devices: Sequence[str] | None = None
    ) -> Iterator[MinuteColumns]:
        """Return rows with their histograms."""
        ...

    def sums(
        self,
        part: Part,
        series: Sequence[int],
        devices: Sequence[str] | None = None,
        *,
        grain: Grain,
    ) -> Iterator[MinuteColumns]:
        """Return rows that are added up as far as the grain allows."""
        ...


class Readable(Protocol):
    """What can be asked: `TelemetryStore`, or `telemetry.server.past.Past`."""

    def series(self, metric: str) -> list[Series]:
        """Return the series of a metric."""
        ...

    def metrics(self) -> list[Reported]:
        """Return what there is, by name."""
        ...

    def snapshot(self) -> AbstractContextManager[Moment]:
        """Read measurements as they are at one moment."""
        ...


class Source(NamedTuple):
    """Which rows answered a part of the time."""

    level: str
    """`minute`, `hour` or `day`."""

    since_s: int
    until_s: int


class Table(NamedTuple):
    """An answer."""

    columns: tuple[str, ...]
    """The start of the step if the query has one, then the groups, then the statistics."""

    rows: tuple[tuple[Cell, ...], ...]
    sources: tuple[Source, ...] = ()
    """In order of time."""


class Filled(NamedTuple):
    """The groups of a query with what the store has for them."""

    groups: Groups
    kind: Kind
    """Of the metric."""

    parts: list[Part]
    """Which rows were read."""


def parse(
    metric: str,
    *,
    now_s: float,
    statistics: str = "",
    group_by: str = "",
    where: str = "",
    since: str = "1h",
    until: str = "",
    step: str = "",
) -> Query:
    """Read a query as people write it.

    Args:
        metric: Its name.
        now_s: Wall time, to which relative times refer.
        statistics: `p50,p95,count`.
        group_by: `variant,device`.
        where: `variant=int8,device=pi-7`.
        since: `90s`, `30m`, `1h`, `2d` or `1w` ago, seconds since the epoch, or an ISO 8601 time.
        until: The same; empty for now.
        step: A duration such as `5m`; empty for one row per group.

    Returns:
        The query.

    Raises:
        QueryError: A word makes no sense; the text names it.
    """
    query = Query(
        metric=metric.strip(),
        statistics=parse_list(statistics, "statistics"),
        group_by=parse_list(group_by, "groups"),
        where=parse_conditions(where),
        since_s=parse_time_s(since, now_s),
        until_s=parse_time_s(until, now_s) if until.strip() else now_s,
        step_s=parse_step_s(step) if step.strip() else None,
    )
    check_query(query)
    return query


def run(store: Readable, query: Query) -> Table:
    """Run a query.

    Args:
        store: The telemetry.
        query: The query.

    Returns:
        One row per group and step, in rising order.

    Raises:
        UnknownMetricError: No device has reported that metric, and no agent does.
        QueryError: The metric lacks a statistic or attribute, or there are too many rows.
        TelemetryStoreError: The database failed.
    """
    check_query(query)
    groups, kind, parts = filled(store, query)
    start = () if query.step_s is None else (START,)
    columns = start + query.group_by + groups.statistics
    return Table(columns, groups.rows(kind), tuple(map(_source, parts)))


def filled(store: Readable, query: Query) -> Filled:
    """Return the groups of a query with what the store has for them.

    Args:
        store: The telemetry.
        query: The query, checked.

    Raises:
        UnknownMetricError: No device has reported that metric.
        QueryError: The metric lacks a statistic or attribute, or there are too many rows.
        TelemetryStoreError: The database failed.
    """
    series, kind = _series(store, query.metric)
    named = known(query.metric)
    usual = (named.statistics if named else ()) or DEFAULT_STATISTICS[kind]
    statistics = query.statistics or usual
    check_statistics(query.metric, kind, statistics)
    attributes = {name for one in series for name in one.attributes}
    check_attributes(query, attributes.union(named.attributes if named else ()))
    groups = Groups(query, _matching(query, series), statistics)
    first = max(0, math.floor(query.since_s / SECONDS_PER_MINUTE))
    end = min(math.ceil(min(query.until_s, 1e12) / SECONDS_PER_MINUTE), MAX_MINUTE)
    with store.snapshot() as snapshot:
        fleet_first = snapshot.fleet_first() if groups.are_of_fleet else None
        parts = planned(first, end, snapshot.kept(), step=groups.step, fleet_first=fleet_first)
        for part in parts if series else ():
            where = (part, groups.series_ids, groups.devices)
            found = (
                snapshot.rows(*where)
                if groups.need_rows
                else snapshot.sums(*where, grain=groups.grain)
            )
            for columns in found:
                groups.add(columns)
        if groups.has_rates and parts:
            since_s = snapshot.measured_since(parts[0].first) * SECONDS_PER_MINUTE
            groups.are_of((since_s, min(end * SECONDS_PER_MINUTE, snapshot.now_s)))
    return Filled(groups, kind, parts)


def kind_of_metric(store: Readable, metric: str) -> Kind:
    """Return the kind of a metric.

    Args:
        store: The telemetry.
        metric: Its name.

    Raises:
        UnknownMetricError: No device has reported it, and no agent does.
        TelemetryStoreError: The database failed.
    """
    return _series(store, metric)[1]


def _source(part: Part) -> Source:
    begin_s, end_s = part.first * SECONDS_PER_MINUTE, part.end * SECONDS_PER_MINUTE
    return Source(part.level.name, begin_s, end_s)


def _series(store: Readable, metric: str) -> tuple[list[Series], Kind]:
    """Return a metric's series, and its kind.

    One that agents report has none until something was counted, such as a failure.

    Args:
        store: The telemetry.
        metric: Its name.

    Returns:
        The series, and the kind.

    Raises:
        UnknownMetricError: No device has reported it, and no agent does.
    """
    found = [one for name in names_of(metric) for one in store.series(name)]
    if found:
        return found, found[0].kind
    if named := known(metric):
        return [], named.kind
    names = sorted({*METRICS, *(each.name for each in store.metrics())})
    near = get_close_matches(metric, names, n=2) or [each for each in names if metric in each][:2]
    raise UnknownMetricError(
        f"no device has reported a metric {metric!r}",
        remedy=f"{meant(*near)}`fleet telemetry metrics` lists those that there are",
    )


def _matching(query: Query, series: list[Series]) -> list[Series]:
    wanted: dict[str, set[str]] = {}
    for name, value in query.where:
        if name != DEVICE:
            wanted.setdefault(name, set()).add(value)
    return [
        one
        for one in series
        if all(one.attributes.get(name, "") in values for name, values in wanted.items())
    ]
