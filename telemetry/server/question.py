"""The query of the telemetry store, and the check that it makes sense. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final

from telemetry.errors import QueryError
from telemetry.metrics import KINDS, Kind, own_attributes

SECONDS_PER_MINUTE: Final = 60
DEVICE: Final = "device"
MODEL: Final = "model"
MINUTE: Final = "minute"
START: Final = "start_s"
STATISTICS: Final[dict[Kind, tuple[str, ...]]] = {
    "histogram": ("count", "total", "mean", "min", "max", "rate"),
    "sum": ("count", "total", "rate"),
    "gauge": ("count", "mean", "min", "max"),
}
"""Histograms also have quantiles: p50, p99.9."""

DEFAULT_STATISTICS: Final[dict[Kind, tuple[str, ...]]] = {
    "histogram": ("count", "mean", "p50", "p95", "max"),
    "sum": ("total", "rate"),
    "gauge": ("count", "mean", "min", "max"),
}
MAX_NAMED: Final = 2000
"""Devices that one statement names, beside up to 30,000 series: SQLite takes 32,766 parameters."""

OTHER_WORDS: Final = {
    "average": "mean", "avg": "mean", "median": "p50", "minimum": "min", "maximum": "max",
    "sum": "total", "increase": "total", "n": "count", "per_second": "rate",
}  # fmt: skip
"""How other systems call statistics."""

QUANTILE = re.compile(r"p(\d{1,2}(?:\.\d{1,3})?|100)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A query."""

    metric: str
    statistics: tuple[str, ...] = ()
    """Empty for the default statistics of the metric's kind."""

    group_by: tuple[str, ...] = ()
    """`device`, `minute`, or attributes such as `variant` and `release`."""

    where: tuple[tuple[str, str], ...] = ()
    """Attribute or `device`, and its value; several values of one attribute are alternatives."""

    devices: frozenset[str] | None = None
    """Only these; None for all."""

    device_values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What devices can be grouped by beside the attributes of the metric, such as labels: by name,
    the value of each device that has one."""

    device_names: frozenset[str] = frozenset()
    """All that devices can be grouped by, as far as it was looked up for the text of a fault."""

    since_s: float = 0.0
    until_s: float = math.inf
    step_s: int | None = None
    """Length of a step, in seconds but whole minutes; one row per group and step."""


def check_query(query: Query) -> None:
    """Refuse times, steps and words that make no sense for any metric.

    Args:
        query: The query.

    Raises:
        QueryError: The text says what is wrong.
    """
    if query.since_s >= query.until_s:
        raise QueryError("the end of the time range is before its beginning")
    if not math.isfinite(query.since_s) or math.isnan(query.until_s):
        raise QueryError("the beginning or the end of the time range is not a number")
    step_s = query.step_s
    if step_s is not None and (step_s < SECONDS_PER_MINUTE or step_s % SECONDS_PER_MINUTE):
        raise QueryError(
            f"a step of {step_s} s is not whole minutes",
            remedy="use whole minutes, because telemetry is stored by the minute",
        )
    if step_s is not None and MINUTE in query.group_by:
        raise QueryError("a query cannot have both a step and grouping by minute")
    for words in (query.group_by, query.statistics):
        if len(set(words)) != len(words):
            raise QueryError(f"the same word is given twice: {', '.join(words)}")


def check_statistics(metric: str, kind: Kind, statistics: tuple[str, ...]) -> None:
    """Refuse statistics that a kind of metric does not have.

    Args:
        metric: Its name, for the text.
        kind: Its kind.
        statistics: The statistics of the query.

    Raises:
        QueryError: The text says which statistics it has.
    """
    for word in statistics:
        if word in STATISTICS[kind] or (kind == "histogram" and QUANTILE.fullmatch(word)):
            continue
        quantiles = ", and of quantiles any from p0 to p100, such as p50, p95 or p99.9"
        raise QueryError(
            f"{metric} is a {KINDS[kind]} and has no statistic {word!r}",
            remedy=f"{meant(_near_statistic(word, kind))}it has {', '.join(STATISTICS[kind])}"
            f"{quantiles if kind == 'histogram' else ''}",
        )


def check_attributes(query: Query, attributes: Iterable[str]) -> None:
    """Refuse groups and conditions for which a metric has no attribute.

    A condition never is about a label, although a device may send an attribute of that name.

    Args:
        query: The query.
        attributes: The attributes of the metric's series.

    Raises:
        QueryError: The text says which attributes it has.
    """
    own = own_attributes(query.metric) | {DEVICE}
    known = own.union(attributes)
    of_devices = query.device_names.union(query.device_values)
    for name in query.group_by:
        if name not in known | query.device_values.keys() | {MINUTE}:
            labels = sorted(of_devices - known)
            more = f"; devices have {', '.join(labels)}" if labels else ""
            raise QueryError(
                f"{query.metric} has no attribute {name!r}, and no device has it as a label",
                remedy=f"{meant(_near(name, known | of_devices | {MINUTE}))}"
                f"it has {', '.join(sorted(known))}{more}",
            )
    known -= query.device_values.keys() - own
    for name, _ in query.where:
        if name not in known:
            raise QueryError(
                f"{query.metric} has no attribute {name!r}",
                remedy=f"{meant(_near(name, known))}it has {', '.join(sorted(known))}; labels of "
                "devices are for --selector",
            )


def _near_statistic(word: str, kind: Kind) -> str:
    meant = OTHER_WORDS.get(word.lower(), word.lower())
    if meant in STATISTICS[kind] or (kind == "histogram" and QUANTILE.fullmatch(meant)):
        return meant
    return _near(word, STATISTICS[kind])


def _near(word: str, known: Iterable[str]) -> str:
    """Return the name that is nearest to a word; empty if none is near."""
    return next(iter(get_close_matches(word, sorted(known), n=1)), "")


def meant(*words: str) -> str:
    """Return the question whether one of some words was meant; empty if there is none."""
    named = " or ".join(filter(None, words))
    return f"did you mean {named}? " if named else ""
