"""Sorts rows of the telemetry store into the groups of a query.

Rules:
- Groups are numbered as they appear; memory grows with the number of groups and of their buckets,
  which are bounded, not of rows.
- A name that is both an attribute and what is known of devices, such as a label, is the attribute
  only where agents report the metric with it (`telemetry.metrics`). No device decides that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Final, NamedTuple

import numpy as np

from telemetry.errors import QueryError
from telemetry.metrics import Kind, own_attributes
from telemetry.server.aggregate import Aggregate, Floats
from telemetry.server.question import DEVICE, MAX_NAMED, MINUTE, QUANTILE, SECONDS_PER_MINUTE, Query
from telemetry.server.rows import Grain, MinuteColumns, Series

MAX_ROWS: Final = 100_000
MAX_BUCKETS: Final = 8_000_000
"""Of the histograms of all rows: some 80 of each where there are `MAX_ROWS`; 16 bytes each."""

RATE: Final = "rate"

Cell = str | int | float | None


class _GroupKey(NamedTuple):
    """The key of a group; parts that the query does not ask for are constant."""

    step: int
    minute: int
    device: str
    attributes: tuple[str, ...]
    of_device: tuple[str, ...]
    """Its labels, and what else it can be grouped by."""


class Groups:
    """The groups of one query.

    Args:
        query: The query.
        series: The series that match it.
        statistics: The columns of the answer.
    """

    def __init__(self, query: Query, series: list[Series], statistics: tuple[str, ...]) -> None:
        self._query = query
        self.statistics = statistics
        """The columns of the answer."""

        self._quantiles = [word for word in statistics if QUANTILE.fullmatch(word)]
        self.aggregate = Aggregate(with_histograms=bool(self._quantiles))
        """What the groups have, by their numbers."""

        self._numbers: dict[tuple[int, int, str, tuple[str, ...], tuple[str, ...]], int] = {}
        names = tuple(name for name in query.group_by if name not in (DEVICE, MINUTE))
        own = own_attributes(query.metric)  # not what a device sends: it could hide a label
        self._labels = tuple(
            name for name in names if name not in own and name in query.device_values
        )
        self._names = tuple(name for name in names if name not in self._labels)
        wanted = wanted_devices(query)
        self._named = wanted if wanted is not None and len(wanted) <= MAX_NAMED else None
        self._only = None if self._named is not None else wanted
        self._of_devices = _of_devices([query.device_values[name] for name in self._labels])
        self._attributes = {
            one.id: tuple(one.attributes.get(name, "") for name in self._names) for one in series
        }
        self._span_s = (0.0, math.nan)

    @property
    def series_ids(self) -> tuple[int, ...]:
        """The series to read from the store."""
        return tuple(self._attributes)

    @property
    def devices(self) -> tuple[str, ...] | None:
        """The devices to read; None for all, of which those that were asked for are taken."""
        return None if self._named is None else tuple(sorted(self._named))

    @property
    def need_rows(self) -> bool:
        """Whether each row is needed, with its histogram."""
        return bool(self._quantiles)

    @property
    def grain(self) -> Grain:
        """Which rows must stay apart where sums are enough."""
        asked = self._query.group_by
        return Grain(
            step=(self._query.step_s or 0) // SECONDS_PER_MINUTE,
            by_minute=MINUTE in asked,
            by_device=DEVICE in asked or bool(self._labels) or self._only is not None,
        )

    @property
    def step(self) -> int:
        """How many minutes a row of the answer is about; 0 for all of the time."""
        grain = self.grain
        return 1 if grain.by_minute else grain.step

    @property
    def has_rates(self) -> bool:
        """Whether the answer has rates, which need the time that it is about."""
        return RATE in self.statistics

    @property
    def are_of_fleet(self) -> bool:
        """Whether the rows of the whole fleet are enough."""
        return not self.grain.by_device and self._named is None

    def are_of(self, span_s: tuple[float, float]) -> None:
        """Say which time rates are about.

        Args:
            span_s: Its begin and end, wall time.
        """
        self._span_s = span_s

    def add(self, rows: MinuteColumns) -> None:
        """Add rows of the store to the groups.

        Args:
            rows: One or more.

        Raises:
            QueryError: There are now too many groups, or their histograms are too large.
        """
        if self._only is not None:
            rows = rows.only(self._only)
            if not rows.series_id:
                return
        step, by_minute, _ = self.grain
        none = ("",) * len(self._labels)
        keys = zip(
            [minute // step for minute in rows.minute] if step else repeat(0),
            rows.minute if by_minute else repeat(0),
            rows.device if DEVICE in self._query.group_by else repeat(""),
            map(self._attributes.__getitem__, rows.series_id),
            (self._of_devices.get(device, none) for device in rows.device) if none else repeat(()),
            strict=False,
        )
        numbers = self._numbers
        found = [numbers.setdefault(key, len(numbers)) for key in keys]
        if len(numbers) > MAX_ROWS:
            raise QueryError(
                f"the answer has more than {MAX_ROWS} rows",
                remedy="group by fewer attributes or choose a longer step",
            )
        self.aggregate.add(rows, found, len(numbers))
        if self.aggregate.buckets_held > MAX_BUCKETS:
            raise QueryError(
                f"the histograms of the answer have more than {MAX_BUCKETS} buckets",
                remedy="group by fewer attributes, choose a longer step or name devices",
            )

    @property
    def metric(self) -> str:
        """The name of the metric."""
        return self._query.metric

    def named(self) -> list[dict[str, object]]:
        """Return what each group stands for, by their numbers: the words of the query."""
        words = self._query.group_by
        keys = map(_GroupKey._make, self._numbers)
        skipped = 0 if self._query.step_s is None else 1
        return [dict(zip(words, self._cells(key)[skipped:], strict=True)) for key in keys]

    def rows(self, kind: Kind) -> tuple[tuple[Cell, ...], ...]:
        """Return the answer's rows."""
        columns = self._columns(kind)
        return tuple(
            (
                *self._cells(_GroupKey._make(key)),
                *(_cell(columns[word][number]) for word in self.statistics),
            )
            for key, number in sorted(self._numbers.items())
        )

    def _columns(self, kind: Kind) -> dict[str, Floats]:
        """Return every statistic of every group."""
        aggregate = self.aggregate
        amounts = aggregate.totals if kind == "sum" else aggregate.counts
        columns = {
            "count": amounts,
            "total": aggregate.totals,
            "mean": aggregate.totals / aggregate.counts,
            "min": aggregate.least,
            "max": aggregate.greatest,
            RATE: amounts / self._durations_s(),
        }
        ratios = [float(word[1:]) / 100 for word in self._quantiles]
        values = aggregate.quantiles(ratios)
        return columns | {word: values[:, at] for at, word in enumerate(self._quantiles)}

    def _durations_s(self) -> Floats:
        """Return for every group the length of the time that its rate refers to; NaN for none."""
        first_s, last_s = self._span_s
        durations = np.full(len(self._numbers), float(last_s - first_s))
        step_s = SECONDS_PER_MINUTE if MINUTE in self._query.group_by else self._query.step_s
        if step_s is not None:
            for (step, minute, *_), number in self._numbers.items():
                begin_s = (step + minute) * step_s  # the one that does not part groups is 0
                durations[number] = min(last_s, begin_s + step_s) - max(first_s, begin_s)
        durations[durations <= 0] = np.nan
        return durations

    def _cells(self, key: _GroupKey) -> tuple[Cell, ...]:
        named: dict[str, Cell] = dict(zip(self._names, key.attributes, strict=True))
        named |= zip(self._labels, key.of_device, strict=True)
        named |= {DEVICE: key.device, MINUTE: key.minute}
        step_s = self._query.step_s
        start: tuple[Cell, ...] = () if step_s is None else (key.step * step_s,)
        return (*start, *(named[name] for name in self._query.group_by))


def wanted_devices(query: Query) -> frozenset[str] | None:
    """Return the devices that are asked for; None for all."""
    asked = frozenset(value for name, value in query.where if name == DEVICE)
    if query.devices is None:
        return asked or None
    return query.devices & asked if asked else query.devices


def _of_devices(values: Sequence[Mapping[str, str]]) -> dict[str, tuple[str, ...]]:
    """Return the values of each device that has any, in the order of their names."""
    devices = {device for each in values for device in each}
    return {device: tuple(each.get(device, "") for each in values) for device in devices}


def _cell(value: float) -> Cell:
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() and abs(value) < 2**53 else float(value)
