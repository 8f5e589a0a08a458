"""What a rule compares at one moment: it asks the store as everybody else does.

Rules:
- Each number comes from `telemetry.server.query.run`: there is one definition of p95.
- Windows are whole minutes (`telemetry.server.alerts.windows`), now as in the past.
- A metric that agents report but none has yet has no values. Any other unknown name is a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from telemetry.errors import UnknownMetricError
from telemetry.metrics import known
from telemetry.server.alerts.judging import Answer, Group
from telemetry.server.alerts.rules import ABSENT, Absence, AnyRule, BurnRate, Change, Threshold
from telemetry.server.alerts.windows import LATE_S, Window, late_s, window
from telemetry.server.query import Query, Readable, run
from telemetry.server.query_text import parse_conditions
from telemetry.server.store import TelemetryStore

COUNT = "count"

Scope = Callable[[Query], Query]
"""Narrows a query to the devices of a rule, which may be grouped by what they are."""

Heard = Mapping[str, float]
"""When the controller last heard of each device that should be heard, wall time."""


class Answers:
    """Answers the rules from a store.

    Args:
        store: The telemetry.
        asked: What is asked in its place; None for itself.
    """

    def __init__(self, store: TelemetryStore, asked: Readable | None = None) -> None:
        self._store = store
        self._asked: Readable = store if asked is None else asked

    def of_metric(
        self, rule: AnyRule, scope: Scope, now_s: float, *, report_every_s: float = LATE_S
    ) -> Answer:
        """Return what a rule about metrics compares.

        Args:
            rule: The rule.
            scope: Its devices.
            now_s: When it is judged, wall time.
            report_every_s: How often devices are asked to report.

        Raises:
            UnknownMetricError: No device has reported a metric, and no agent does.
            QueryError: The metric lacks the statistic or an attribute.
            TelemetryStoreError: The database failed.
        """
        match rule:
            case Change():
                return self._change(rule, scope, now_s, late_s(rule.stat, report_every_s))
            case Threshold():
                late = late_s(rule.stat, report_every_s)
                span = window(now_s, rule.window_s, late_s=late)
                return Answer(self._statistic(rule, scope, span)[0])
            case BurnRate():
                return self._burn_rate(rule, scope, now_s)
            case Absence():
                return self._absence(rule, scope, now_s)

    def _statistic(
        self, rule: Threshold, scope: Scope, span: Window
    ) -> tuple[dict[Group, float], set[Group]]:
        """Return a statistic of each group that has enough values, and the groups with too few."""
        words = (rule.stat,) if rule.stat == COUNT else (rule.stat, COUNT)
        rows = self._rows(rule, rule.metric, words, scope, span)
        enough = {
            group: float(values[0])
            for group, values in rows.items()
            if values[0] is not None and (values[-1] or 0) >= rule.least_count
        }
        return enough, rows.keys() - enough.keys()

    def _change(self, rule: Change, scope: Scope, now_s: float, late: float) -> Answer:
        spans = (window(now_s, rule.window_s, late_s=late, ago_s=s) for s in (0.0, rule.offset_s))
        (now, few), (before, fewer) = (self._statistic(rule, scope, span) for span in spans)
        both = now.keys() & before.keys()
        left_out = few | fewer if rule.least_count > rule.min_count else set()
        note = (
            f"too few values in {len(left_out)} group{'s' if len(left_out) > 1 else ''}: "
            f"{rule.stat} is compared where each window has {rule.least_count:g}"
            if left_out
            else ""
        )
        if rule.compare == "difference":
            return Answer({key: now[key] - before[key] for key in both}, note=note)
        # Without a first value there is no ratio: a change from nothing is for a threshold.
        return Answer({key: now[key] / before[key] for key in both if before[key]}, note=note)

    def _burn_rate(self, rule: BurnRate, scope: Scope, now_s: float) -> Answer:
        # What failed is reported together with the total, so the ratio need not wait.
        long = self._burnt(rule, scope, window(now_s, rule.long_s), rule.least_count)
        short = self._burnt(rule, scope, window(now_s, rule.short_s), 0.0)
        return Answer({key: min(long[key], short[key]) for key in long.keys() & short.keys()})

    def _burnt(
        self, rule: BurnRate, scope: Scope, span: Window, least: float
    ) -> dict[Group, float]:
        """Return how many times too fast the budget of each group is used up."""
        errors = self._rows(rule, rule.errors, (COUNT,), scope, span)
        total = self._rows(rule, rule.total, (COUNT,), scope, span)
        budget = 1.0 - rule.objective
        return {
            group: float(errors.get(group, (0.0,))[0] or 0.0) / max(float(count), least) / budget
            for group, (count,) in total.items()
            if count and count > 0
        }

    def _absence(self, rule: Absence, scope: Scope, now_s: float) -> Answer:
        metric = rule.metric or ""
        here = self._rows(rule, metric, (COUNT,), scope, window(now_s, rule.window_s))
        expected: set[Group] = {()}
        if rule.by:
            span = window(now_s, rule.lookback_s)
            expected = set(self._rows(rule, metric, (COUNT,), scope, span))
        return Answer({group: 0.0 if group in here else ABSENT for group in expected})

    def _rows(
        self,
        rule: Threshold | Absence | BurnRate,
        metric: str,
        statistics: tuple[str, ...],
        scope: Scope,
        span: Window,
    ) -> dict[Group, tuple[float | None, ...]]:
        """Return the statistics of each group that has values.

        Raises:
            UnknownMetricError: No device has reported the metric, and no agent does.
        """
        if span.since_s >= span.until_s:
            return {}
        query = Query(
            metric=metric,
            statistics=statistics,
            group_by=rule.by,
            where=tuple(pair for word in rule.where for pair in parse_conditions(word)),
            since_s=span.since_s,
            until_s=span.until_s,
        )
        try:
            table = run(self._asked, scope(query))
        except UnknownMetricError:
            if known(metric) is not None:
                return {}
            raise
        parts = len(rule.by)
        return {
            tuple(str(cell) for cell in row[:parts]): tuple(
                None if cell is None else float(cell) for cell in row[parts:]
            )
            for row in table.rows
        }


def of_devices(heard: Heard, now_s: float) -> Answer:
    """Return how long devices have been silent.

    Args:
        heard: When each was heard last.
        now_s: Wall time.
    """
    silent: dict[Group, float | None] = {
        (device,): max(now_s - at_s, 0.0) for device, at_s in heard.items()
    }
    return Answer(silent, is_whole=True)


def unless_deaf(rule: AnyRule, answer: Answer, listening_s: float) -> Answer:
    """Return an answer without what the controller cannot know: it has not listened for so long.

    Args:
        rule: The rule.
        answer: What it compares.
        listening_s: How long the controller has heard its devices without interruption.
    """
    if listening_s >= rule.heard_s:
        return answer
    limits = rule.limits
    known = {
        key: None if value is None or limits.is_beyond(value) else value
        for key, value in answer.values.items()
    }
    return answer._replace(values=known)
