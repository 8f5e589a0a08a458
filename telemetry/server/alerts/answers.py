"""What a rule compares at one moment: it asks the store as everybody else does.

Rules:
- Each number comes from `telemetry.server.query.run`: there is one definition of p95.
- Windows are whole minutes (`telemetry.server.alerts.windows`), now as in the past.
- Devices report only what they counted. Of a group that had values before, amounts are 0 where a
  window has nothing, if its device reports anything: a silent device has counted who knows what.
- A window is answered wholly or not at all: what is no longer kept is a fault, no smaller number.
- A metric that agents report but none has yet has no values. Any other unknown name is a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

from telemetry.errors import NotKeptError
from telemetry.server.alerts.judging import Answer, Group
from telemetry.server.alerts.kept import faults, level_for, remedy
from telemetry.server.alerts.rules import ABSENT, Absence, AnyRule, BurnRate, Change, Threshold
from telemetry.server.alerts.states import FORGOTTEN_AFTER_S
from telemetry.server.alerts.windows import (
    AMOUNTS,
    LATE_S,
    Window,
    at_least,
    late_s,
    newest_part,
    window,
)
from telemetry.server.grouping import wanted_devices
from telemetry.server.levels import MINUTES, Level
from telemetry.server.query import Query, Readable, Source, kind_of_metric, run
from telemetry.server.query_text import parse_conditions
from telemetry.server.question import DEVICE
from telemetry.server.store import TelemetryStore

COUNT = "count"

CLOCK_STEP_S: Final = 5.0
"""If the wall clock is set by less, no silence is told wrongly."""

Scope = Callable[[Query], Query]
"""Narrows a query to the devices of a rule, which may be grouped by what they are."""

Heard = Mapping[str, float]
"""When the controller last heard of each device that should be heard, wall time."""


class Told(Readable, Protocol):
    """What can be asked, and by whom anything was told."""

    def reporting(self, since_minute: int, until_minute: int) -> frozenset[str]:
        """Return the devices that measured anything in a time."""
        ...


class Answers:
    """Answers the rules from a store.

    Args:
        store: The telemetry.
        asked: What is asked in its place; None for itself.
    """

    def __init__(self, store: TelemetryStore, asked: Told | None = None) -> None:
        self._store = store
        self._asked: Told = store if asked is None else asked

    def of_metric(
        self,
        rule: AnyRule,
        scope: Scope,
        now_s: float,
        *,
        report_every_s: float = LATE_S,
        enrolled: frozenset[str] | None = None,
        known: Collection[Group] = (),
    ) -> Answer:
        """Return what a rule about metrics compares.

        Args:
            rule: The rule.
            scope: Its devices.
            now_s: When it is judged, wall time.
            report_every_s: How often devices are asked to report.
            enrolled: Those of its devices that are expected to report; None for all.
            known: The groups that have a state.

        Raises:
            UnknownMetricError: No device has reported a metric, and no agent does.
            NotKeptError: What the rule compares is no longer kept.
            QueryError: The metric lacks the statistic or an attribute.
            TelemetryStoreError: The database failed.
        """
        for fault in faults(rule, self._store.retained):
            raise NotKeptError(fault, remedy=remedy(rule))
        match rule:
            case Change():
                return self._change(rule, scope, now_s, late_s(rule.stat, report_every_s))
            case Threshold():
                late = late_s(rule.stat, report_every_s)
                rows = self._rows_for(rule.window_s)
                span = window(now_s, rule.window_s, late_s=late, rows=rows)
                found, few = self._statistic(rule, scope, span)
                if self._is_amount(rule):
                    if rule.limits.is_beyond(0.0):
                        known = self._before(rule, scope, now_s)
                    nothing = [group for group in known if group not in found.keys() | few]
                    found |= self._zeros(rule, scope, span, now_s, nothing)
                return Answer(found)
            case BurnRate():
                return self._burn_rate(rule, scope, now_s)
            case Absence():
                return self._absence(rule, scope, now_s, enrolled)

    def _rows_for(self, reach_s: float) -> Level:
        return level_for(reach_s, self._store.retained) or MINUTES

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

    def _is_amount(self, rule: Threshold) -> bool:
        """Tell whether a group with nothing in a window has the value 0, and not too few values."""
        if rule.stat not in AMOUNTS or rule.least_count > 0:
            return False
        return kind_of_metric(self._asked, rule.metric) != "gauge"

    def _before(self, rule: Threshold, scope: Scope, now_s: float) -> Collection[Group]:
        """Return the groups that had a value lately, as far as that is still kept."""
        reach_s = rule.window_s + FORGOTTEN_AFTER_S
        span = at_least(now_s, reach_s, self._rows_for(reach_s))
        return self._rows(rule, rule.metric, (COUNT,), scope, span, is_whole=False).keys()

    def _zeros(
        self,
        rule: Threshold,
        scope: Scope,
        span: Window,
        now_s: float,
        groups: Collection[Group],
    ) -> dict[Group, float]:
        """Return 0 for groups with nothing in a window of which a device has reported anything."""
        if not groups:
            return {}
        reporting = self._asked.reporting(*newest_part(span, now_s))
        wanted = wanted_devices(scope(self._query(rule, rule.metric, (COUNT,), span)))
        if wanted is not None:
            reporting &= wanted
        if DEVICE in rule.by:
            at = rule.by.index(DEVICE)
            return {group: 0.0 for group in groups if group[at] in reporting}
        return dict.fromkeys(groups, 0.0) if reporting else {}

    def _change(self, rule: Change, scope: Scope, now_s: float, late: float) -> Answer:
        rows = self._rows_for(rule.window_s + rule.offset_s)
        spans = (
            window(now_s, rule.window_s, late_s=late, ago_s=ago_s, rows=rows)
            for ago_s in (0.0, rule.offset_s)
        )
        newest, earlier = spans
        now, few = self._statistic(rule, scope, newest)
        before, fewer = self._statistic(rule, scope, earlier)
        if self._is_amount(rule):
            nothing = [group for group in before if group not in now.keys() | few]
            now |= self._zeros(rule, scope, newest, now_s, nothing)
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
        # Without a first value there is no ratio: a change from nothing is for a threshold. And of
        # values below 0 a greater ratio would be a lower value.
        positive = [key for key in both if before[key] > 0 and now[key] >= 0]
        return Answer({key: now[key] / before[key] for key in positive}, note=note)

    def _burn_rate(self, rule: BurnRate, scope: Scope, now_s: float) -> Answer:
        # What failed is reported together with the total, so the ratio need not wait.
        spans = [
            window(now_s, length_s, rows=self._rows_for(length_s))
            for length_s in (rule.long_s, rule.short_s)
        ]
        long = self._burnt(rule, scope, spans[0], rule.least_count)
        short = self._burnt(rule, scope, spans[1], 0.0)
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

    def _absence(
        self, rule: Absence, scope: Scope, now_s: float, enrolled: frozenset[str] | None
    ) -> Answer:
        metric = rule.metric or ""
        newest = window(now_s, rule.window_s, rows=self._rows_for(rule.window_s))
        here = self._rows(rule, metric, (COUNT,), scope, newest)
        if not rule.by:
            return Answer({(): 0.0 if here else ABSENT})
        span = at_least(now_s, rule.lookback_s, self._rows_for(rule.lookback_s))
        expected = self._rows(rule, metric, (COUNT,), scope, span).keys()
        absent, gone = expected - here.keys(), frozenset[Group]()
        if absent and enrolled is not None:
            gone = frozenset(absent - self._expected(rule, scope, span, absent, enrolled))
        values = {group: ABSENT if group in absent else 0.0 for group in expected - gone}
        return Answer(values, gone=gone)

    def _expected(
        self,
        rule: Absence,
        scope: Scope,
        span: Window,
        absent: Collection[Group],
        enrolled: frozenset[str],
    ) -> set[Group]:
        """Return the absent groups of which enrolled devices had values; others may return, too."""
        if DEVICE in rule.by:
            at = rule.by.index(DEVICE)
            return {group for group in absent if group[at] in enrolled}
        if not enrolled:
            return set()

        def narrowed(query: Query) -> Query:
            return replace(scope(query), devices=enrolled)

        return set(self._rows(rule, rule.metric or "", (COUNT,), narrowed, span))

    def _rows(
        self,
        rule: Threshold | Absence | BurnRate,
        metric: str,
        statistics: tuple[str, ...],
        scope: Scope,
        span: Window,
        *,
        is_whole: bool = True,
    ) -> dict[Group, tuple[float | None, ...]]:
        """Return the statistics of each group that has values.

        Args:
            rule: The rule.
            metric: A metric of it.
            statistics: Of what.
            scope: Its devices.
            span: Over which time.
            is_whole: Whether all of the time must be kept.

        Raises:
            UnknownMetricError: No device has reported the metric, and no agent does.
            NotKeptError: A part of the time is no longer kept.
        """
        if span.since_s >= span.until_s:
            return {}
        table = run(self._asked, scope(self._query(rule, metric, statistics, span)))
        if is_whole and not _covers(table.sources, span):
            raise NotKeptError(f"a part of what it compares of {metric} is no longer kept")
        parts = len(rule.by)
        return {
            tuple(str(cell) for cell in row[:parts]): tuple(
                None if cell is None else float(cell) for cell in row[parts:]
            )
            for row in table.rows
        }

    @staticmethod
    def _query(
        rule: Threshold | Absence | BurnRate,
        metric: str,
        statistics: tuple[str, ...],
        span: Window,
    ) -> Query:
        return Query(
            metric=metric,
            statistics=statistics,
            group_by=rule.by,
            where=tuple(pair for word in rule.where for pair in parse_conditions(word)),
            since_s=span.since_s,
            until_s=span.until_s,
        )


def _covers(sources: Sequence[Source], span: Window) -> bool:
    """Tell whether what was read is exactly a window."""
    ends = [span.since_s, *(source.until_s for source in sources)]
    begins = [*(source.since_s for source in sources), span.until_s]
    return ends == begins


def of_devices(heard: Heard, now_s: float, listening_s: float = 0.0) -> Answer:
    """Return how long devices have been silent.

    Args:
        heard: When each was heard last.
        now_s: Wall time after that was asked.
        listening_s: How long the controller has heard its devices by the same wall clock. One that
            was heard later than now was heard before that, by a clock that has been set back.
    """
    latest_s = now_s + CLOCK_STEP_S
    silent: dict[Group, float | None] = {
        (device,): listening_s if at_s > latest_s else max(now_s - at_s, 0.0)
        for device, at_s in heard.items()
    }
    return Answer(silent, is_whole=True)


def of_enrolled(
    rule: AnyRule, answer: Answer, known: Collection[Group], enrolled: Collection[str]
) -> Answer:
    """Return an answer without groups of devices that have left the fleet: they are gone.

    Args:
        rule: The rule.
        answer: What it compares.
        known: The groups that have a state.
        enrolled: Its devices.
    """
    if DEVICE not in rule.names:
        return answer
    at = rule.names.index(DEVICE)
    gone = frozenset(group for group in {*known, *answer.values} if group[at] not in enrolled)
    values = {group: value for group, value in answer.values.items() if group not in gone}
    return answer._replace(values=values, gone=answer.gone | gone)


def unless_deaf(rule: AnyRule, answer: Answer, listening_s: float) -> Answer:
    """Return an answer without what the controller cannot know: it has not listened for so long.

    That is also so where a clock that is set makes a silence long.

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
