"""What rules would have done: judges past telemetry minute by minute, with the same functions.

Rules:
- What has come later than it was measured counts at the minute of its measurement: a device that
  was away looks silent in the past only if what it measured never came.
- Of a time of which not all is kept that a rule compares, nothing is known: the result says so.
- An answer has a limit of time, so that a question over months holds up nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from telemetry.errors import NotKeptError, QueryError
from telemetry.server.alerts.judging import Answer, Asked, Group, judge
from telemetry.server.alerts.rules import AnyRule, BurnRate
from telemetry.server.alerts.states import Phase, State
from wire.durations import format_duration

MAX_STEPS: Final = 1500
STEP_S: Final = 60
"""Telemetry is stored by the minute."""

MAX_SPANS: Final = 1000


class Span(NamedTuple):
    """A time in which an alert would have been firing."""

    group: Group
    fired_at_s: float
    resolved_at_s: float | None
    """None: it would still be."""

    furthest: float | None
    """The value that is furthest beyond the bound."""


class Replayed(NamedTuple):
    """What a rule would have done."""

    spans: tuple[Span, ...]
    """By time."""

    was_cut: bool
    """Whether there were more than are given."""

    note: str = ""
    """Why groups that had values were left out, at the last look that left out any; else how many
    looks found too little."""


@dataclass(slots=True)
class _Run:
    states: dict[Group, State] = field(default_factory=dict)
    furthest: dict[Group, float] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    note: str = ""
    looked_at_s: float | None = None


def looks_at(since_s: float, until_s: float, step_s: int | None = None) -> range:
    """Return when a rule is judged: at whole minutes, between which no answer changes.

    The last look is at the end, however long the steps are: what fires now is found.

    Args:
        since_s: The first look is after it, wall time.
        until_s: The last look is not after it.
        step_s: How far they are apart; None for as near as there may be of so many.

    Raises:
        QueryError: The time has not begun, the step is not whole minutes, or there would be too
            many looks.
    """
    if since_s >= until_s:
        raise QueryError(
            "the time to test has not begun", remedy="give a --since before now, as 1d"
        )
    least_s = (int((until_s - since_s) // (STEP_S * MAX_STEPS)) + 1) * STEP_S
    if step_s is None:
        step_s = least_s
    if step_s < least_s or step_s % STEP_S:
        raise QueryError(
            f"a step of {step_s} s is not whole minutes, or too short for that time",
            remedy=f"give at least {least_s // STEP_S}m",
        )
    last = int(until_s // STEP_S) * STEP_S
    earliest = (int(since_s // STEP_S) + 1) * STEP_S
    return range(last - (last - earliest) // step_s * step_s, last + 1, step_s)


def what_is_missed(rule: AnyRule, step_s: int) -> str:
    """Return what may have been between the looks; empty if nothing that the rule would tell.

    Args:
        rule: The rule.
        step_s: How far the looks are apart.
    """
    window_s = rule.short_s if isinstance(rule, BurnRate) else rule.window_s
    shortest_s = min(window_s, rule.for_s or window_s)
    if step_s <= shortest_s:
        return ""
    key = "short" if isinstance(rule, BurnRate) else "window"
    if shortest_s < window_s:
        key = "for"
    step, length = format_duration(step_s), format_duration(shortest_s)
    return (
        f"judged only once in {step}, which is longer than its {key} of {length}: "
        f"what lasted less than {step} may be missing; a shorter --since is judged more often"
    )


def replay(
    rule: AnyRule,
    answer: Asked,
    looks: Iterable[float],
    in_time: Callable[[], bool],
) -> Replayed:
    """Judge the past.

    Args:
        rule: The rule.
        answer: What it compares at a time.
        looks: When it is judged, wall times that rise.
        in_time: Whether to go on.

    Returns:
        When it would have fired.

    Raises:
        QueryError: It takes too long, or the rule asks for what there is not.
        TelemetryStoreError: The database failed.
    """
    run = _Run()
    unknown = total = 0
    for at_s in looks:
        total += 1
        if not in_time():
            raise QueryError(
                f"to test {rule.name} over that time takes too long",
                remedy="give a shorter --since, or a longer --step",
            )
        try:
            found = answer(at_s, known=run.states.keys())
        except NotKeptError:
            unknown += 1
        else:
            _look(rule, run, found, at_s)
    if unknown and not run.note:
        run.note = f"of {unknown} of {total} looks nothing is known: not all is kept of so long ago"
    for group, state in run.states.items():
        if state.phase is Phase.FIRING:
            run.spans.append(Span(group, state.since_s, None, run.furthest.get(group)))
    spans = sorted(run.spans, key=lambda span: (span.fired_at_s, span.group))
    return Replayed(tuple(spans[:MAX_SPANS]), len(spans) > MAX_SPANS, run.note)


def _look(rule: AnyRule, run: _Run, found: Answer, at_s: float) -> None:
    limits = rule.limits
    run.note = found.note or run.note
    passed_s = 0.0 if run.looked_at_s is None else at_s - run.looked_at_s
    run.looked_at_s = at_s
    for group, state, change in judge(limits, run.states, found, at_s, passed_s).groups:
        value = found.values.get(group)
        if change is not None and change.after is Phase.FIRING:
            run.furthest.pop(group, None)
        if state.phase is Phase.FIRING and value is not None and limits.is_beyond(value):
            far = run.furthest.get(group, value)
            run.furthest[group] = min(far, value) if limits.above is None else max(far, value)
        if change is not None and change.before is Phase.FIRING:
            furthest = run.furthest.pop(group, None)
            run.spans.append(Span(group, change.fired_at_s, at_s, furthest))
        if state.phase in {Phase.INACTIVE, Phase.RESOLVED}:
            run.states.pop(group, None)
        else:
            run.states[group] = state
