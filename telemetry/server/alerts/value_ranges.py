"""Which values a rule can compare, and which bounds no value or every value passes. Pure.

Rules:
- A group without values, or with fewer than its rule asks for, is not compared.
- Of a metric that is not known nothing is known, unless it has percentiles: it is a histogram then.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

from telemetry.histogram import VALUE_MAX
from telemetry.metrics import known
from telemetry.server.alerts.rules import Change, Threshold
from telemetry.server.question import QUANTILE

COUNT: Final = "count"
SUMS: Final = frozenset({"total", "rate"})


class Range(NamedTuple):
    """The least and the greatest value that there can be."""

    least: float
    greatest: float


def compared(rule: Threshold) -> Range:
    """Return which values a rule can compare.

    Args:
        rule: The rule.
    """
    found = _of_statistic(rule)
    if not isinstance(rule, Change):
        return found
    if rule.compare == "ratio":
        return Range(0.0, math.inf)
    return Range(found.least - found.greatest, found.greatest - found.least)


def can_be_negative(rule: Threshold) -> bool:
    """Tell whether the statistic of a rule is known to be negative at times.

    Args:
        rule: The rule.
    """
    about = known(rule.metric)
    return rule.stat != COUNT and about is not None and about.least is None


def bound_faults(rule: Threshold) -> Iterator[str]:
    """Yield why the bounds of a rule decide nothing.

    Args:
        rule: The rule, whose bounds are numbers.

    Yields:
        One line for each fault.
    """
    least, greatest = compared(rule)
    why = f"the least is {least:g}"
    if rule.stat == COUNT and 0 < rule.least_count == least:
        why += ", by min_count"
    most = f"the greatest is {greatest:g}"
    is_amount = rule.stat == COUNT and not isinstance(rule, Change)
    if rule.above is not None:
        if rule.above >= greatest:
            yield f"above = {rule.above:g}: no value is above it, {most}"
        elif rule.above < least and not is_amount:  # to be there at all may be the condition
            yield f"above = {rule.above:g}: every value is above it, {why}"
        if rule.clear is not None and rule.clear < least:
            yield f"clear = {rule.clear:g}: no value ends the alert, {why}"
    if rule.below is not None:
        if rule.below <= least:
            yield f"below = {rule.below:g}: no value is below it, {why}"
        elif rule.below > greatest:
            yield f"below = {rule.below:g}: every value is below it, {most}"
        if rule.clear is not None and rule.clear > greatest:
            yield f"clear = {rule.clear:g}: no value ends the alert, {most}"


def _of_statistic(rule: Threshold) -> Range:
    about = known(rule.metric)
    if rule.stat == COUNT:
        # A gauge that has no values has no statistic; amounts of nothing are 0.
        first = 1.0 if about is not None and about.kind == "gauge" else 0.0
        return Range(max(first, rule.least_count), math.inf)
    is_histogram = QUANTILE.fullmatch(rule.stat) is not None
    least: float | None = 0.0 if is_histogram else None
    greatest = None
    if about is not None:
        is_histogram = about.kind == "histogram"
        least, greatest = about.least, about.greatest
    if is_histogram and greatest is None:
        greatest = VALUE_MAX
    if rule.stat in SUMS or greatest is None:
        greatest = math.inf
    return Range(-math.inf if least is None else least, greatest)
