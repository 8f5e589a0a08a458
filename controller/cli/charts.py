"""What is drawn of an answer: lines over time, or one bar for each group.

Rules:
- One chart has one unit: of several statistics those are drawn that share the unit of the first.
- Of more groups than can be told apart, those with the greatest values are drawn.
- Devices report only what they counted. Where a group has nothing between the first and the last
  step of an answer, its amounts were 0; its quantiles and gauges are not known.
- Amounts of a step that has just ended, or goes on, are not all there yet: they would look like a
  fall, and are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from controller.cli.drawing.bars import Bar
from controller.cli.drawing.lines import Line
from controller.cli.drawing.quantities import Unit, quantity_text, unit_of
from controller.cli.questions import title_of, words_of
from controller.query_schemas import TelemetryQuestion
from controller.telemetry_schemas import TelemetryTable
from telemetry.metrics import known
from wire.console.text import UNKNOWN, plain_text
from wire.durations import parse_duration_s

START: Final = "start_s"
MINUTE: Final = "minute"
UNITS_S: Final = {MINUTE: 60.0, START: 1.0}
"""Columns that are times since the epoch, and their units."""

AMOUNTS: Final = frozenset({"count", "total", "rate"})
"""Statistics that are 0 where nothing was counted."""

MAX_DRAWN: Final = 100_000
"""Of more steps than an answer may have rows, only those with values are drawn."""

REPORTED_S: Final = 15.0
"""After so long what devices counted in a step is there, as they report by default."""

PREFERRED: Final = ("p95", "rate", "mean")
"""The statistic that stands for a metric if none was asked for."""


class Shape(NamedTuple):
    """Which columns of an answer are what."""

    time: int | None
    groups: tuple[int, ...]
    """Without the time."""

    statistics: tuple[int, ...]


class Chart(NamedTuple):
    """What is drawn."""

    title: str
    name: str
    """Of the axis of values: the statistics."""

    unit: Unit
    lines: list[Line]
    """Over time; empty for bars."""

    bars: list[Bar]
    span_s: tuple[float, float]
    step_s: float
    left_out: int
    """How many groups are not drawn."""


def shape_of(question: TelemetryQuestion, table: TelemetryTable) -> Shape:
    """Return which columns of the answer to a query are what."""
    begin = 1 if table.columns[:1] == [START] else 0
    behind = begin + len(words_of(question.by))
    time = next((i for i, name in enumerate(table.columns[:behind]) if name in UNITS_S), None)
    groups = tuple(i for i in range(behind) if i != time)
    return Shape(time, groups, tuple(range(behind, len(table.columns))))


def main_statistic(question: TelemetryQuestion, statistics: Sequence[str]) -> str:
    """Return the statistic that stands for a query if only one can be shown."""
    if question.stat:
        return words_of(question.stat)[0]
    return next((each for each in PREFERRED if each in statistics), next(iter(statistics), ""))


def chart(
    question: TelemetryQuestion, table: TelemetryTable, range_s: tuple[float, float], *, most: int
) -> Chart:
    """Return what is drawn of an answer.

    Args:
        question: The query.
        table: Its answer.
        range_s: The time that the query is about.
        most: At most so many lines, or bars.

    Returns:
        The chart.
    """
    shape = shape_of(question, table)
    names = [table.columns[i] for i in shape.statistics]
    first = main_statistic(question, names)
    unit = unit_of(question.metric, first)
    drawn = [
        i
        for i, name in zip(shape.statistics, names, strict=True)
        if name == first or (question.stat and unit_of(question.metric, name) == unit)
    ]
    step_s = parse_duration_s(question.step) if question.step else UNITS_S[MINUTE]
    found: dict[str, list[tuple[float, float | None]]] = {}
    for row in table.rows:
        at_s = 0.0 if shape.time is None else _at_s(row, shape.time, table.columns)
        for i in drawn:
            name = _name(row, shape, table.columns[i] if len(drawn) > 1 else "")
            value = row[i]
            number = float(value) if isinstance(value, int | float) else None
            found.setdefault(name, []).append((at_s, number))
    kept = _greatest(found, most)
    shown = {name: points for name, points in found.items() if name in kept}
    lines, bars = [], []
    if shape.time is None:
        bars = [Bar(n or first, p[0][1], quantity_text(p[0][1], unit)) for n, p in shown.items()]
    else:
        points_of = {n: {t: v for t, v in points if v is not None} for n, points in shown.items()}
        if all(_is_amount(question.metric, table.columns[i]) for i in drawn):
            steps = _counted((t for points in points_of.values() for t in points), step_s, range_s)
            if len(steps) <= MAX_DRAWN:
                times = [step * step_s for step in steps]
                points_of = {n: {t: p.get(t, 0.0) for t in times} for n, p in points_of.items()}
        lines = [Line(name, sorted(points.items())) for name, points in points_of.items()]
    return Chart(
        title=title_of(question, [table.columns[i] for i in drawn]),
        name=", ".join(table.columns[i] for i in drawn),
        unit=unit,
        lines=[line for line in lines if line.points],
        bars=bars,
        span_s=_span_s(lines, range_s, step_s),
        step_s=step_s,
        left_out=len(found) - len(shown),
    )


def trends(
    question: TelemetryQuestion, table: TelemetryTable, range_s: tuple[float, float], *, most: int
) -> dict[tuple[object, ...], list[float | None]]:
    """Return how the value of each group went.

    Args:
        question: A query with a step and one statistic.
        table: Its answer.
        range_s: The time that the query is about.
        most: At most so many values for each group, the newest.

    Returns:
        By the values of the group: one value for each step of the range, None where there is none.
    """
    step_s = parse_duration_s(question.step)
    found: dict[tuple[object, ...], dict[int, float | None]] = {}
    for row in table.rows:
        value = row[-1]
        number = float(value) if isinstance(value, int | float) else None
        found.setdefault(tuple(row[1:-1]), {})[int(float(row[0] or 0) // step_s)] = number
    steps = [step for values in found.values() for step in values]
    begin, end = (int(at_s // step_s) for at_s in range_s)
    if steps and not begin <= min(steps) <= max(steps) <= end:  # the clocks differ
        begin, end = min(steps), max(steps)
    wanted = range(max(begin, end - most + 1), end + 1)
    if not _is_amount(question.metric, table.columns[-1]):
        return {group: [values.get(step) for step in wanted] for group, values in found.items()}
    counted = _counted((step * step_s for step in steps), step_s, range_s)
    return {
        group: [values.get(step, 0.0) if step in counted else None for step in wanted]
        for group, values in found.items()
    }


def _is_amount(metric: str, statistic: str) -> bool:
    """Tell whether a statistic is 0 where devices have reported nothing."""
    found = known(metric)
    return statistic in AMOUNTS and found is not None and found.kind != "gauge"


def _counted(times_s: Iterable[float], step_s: float, range_s: tuple[float, float]) -> range:
    """Return the steps of which amounts are known: from the first to the last that has any.

    A step that has not been over for long is left out, unless nothing would be left.
    """
    steps = [round(at_s / step_s) for at_s in times_s]
    if not steps:
        return range(0)
    begin, end = min(steps), max(steps) + 1
    unfinished = int((range_s[1] - REPORTED_S) // step_s)
    return range(begin, min(end, unfinished) if unfinished > begin else end)


def _at_s(row: Sequence[object], column: int, columns: Sequence[str]) -> float:
    value = row[column]
    number = float(value) if isinstance(value, int | float) else 0.0
    return number * UNITS_S[columns[column]]


def _name(row: Sequence[object], shape: Shape, statistic: str) -> str:
    words = [str(row[i]) if row[i] not in {None, ""} else UNKNOWN for i in shape.groups]
    group = plain_text(", ".join(words))
    return " ".join(filter(None, (group, statistic)))


def _greatest(found: dict[str, list[tuple[float, float | None]]], most: int) -> set[str]:
    """Return the names of those with the greatest values on average."""

    def mean(name: str) -> float:
        values = [v for _, v in found[name] if v is not None and math.isfinite(v)]
        return math.fsum(v / len(values) for v in values) if values else -math.inf

    return set(sorted(found, key=mean, reverse=True)[:most])


def _span_s(
    lines: Sequence[Line], range_s: tuple[float, float], step_s: float
) -> tuple[float, float]:
    """Return the time that a plot shows: that of the query, unless the clocks differ."""
    times = [at_s for line in lines for at_s, _ in line.points]
    begin_s, end_s = range_s
    begin_s -= begin_s % step_s
    if times and not begin_s <= min(times) <= max(times) <= end_s + step_s:
        begin_s, end_s = min(times), max(times)
    return begin_s, max(end_s, begin_s + step_s)
