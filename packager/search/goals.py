"""Goals of a search: what they say, and whether a candidate keeps them. Pure.

Rules:
- A goal compares a candidate with the reference variant, by the share that it is worse: 0.0 is as
  good, 0.2 is 20 % worse, -0.2 is 20 % better.
- A candidate is dropped for a limit only if its figure surely misses it: where a latency has a
  range that is too wide, all of the range.
- A figure that is not known drops nothing.
- `accuracy` is the figure of the metric that keeps the least; each metric has a figure of its own
  beside it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from packager.errors import BuildError
from packager.judge.further import figures_of
from packager.judge.intervals import ROUNDING
from packager.judge.metrics import named
from packager.judge.ranking import figures, spans
from packager.search.judged import (
    ACCURACY,
    LATENCY,
    MAIN,
    MEMORY,
    SIZE,
    Judged,
    is_quality,
    judged,
    key_of,
)
from wire.package.accuracy import Accuracy
from wire.package.variant import Variant

WORDS: Final = {
    LATENCY: ("slower", "faster"),
    MEMORY: ("larger", "smaller"),
    SIZE: ("larger", "smaller"),
}
"""The words for a worse and a better cost."""

QUALITY_WORDS: Final = ("worse", "better")

MAX_PERCENT: Final = 1000.0
_SHOWN: Final = 60
AT_MOST: Final = "at most"
AT_LEAST: Final = "at least"
WHOLE: Final = 100.0
"""Per cent; nothing takes less than no time and no memory."""

_LIMIT: Final = re.compile(r"(?P<bound>\S+ \S+) (?P<number>\S+?) ?% ?(?P<direction>\S+)")
_NUMBER: Final = re.compile(r"[0-9]+(\.[0-9]+)?")


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """A figure that is to be good, and how bad it may be."""

    metric: str
    """The key of its figure in `changes`."""

    written: str = ""
    """What the user calls it; empty where that is the key."""

    most_loss: float | None = None
    """The most that the figure may be worse than the reference's, as a share; negative where it
    must be better; None for no limit."""

    @property
    def text(self) -> str:
        """The goal as a user writes it."""
        name = self.written or self.metric
        if self.most_loss is None:
            return name
        worse, better = words(self.metric)
        if self.most_loss < 0:
            return f"{name}: at least {round(-100 * self.most_loss, 8):.10g}% {better}"
        return f"{name}: at most {abs(round(100 * self.most_loss, 8)):.10g}% {worse}"


class Change(NamedTuple):
    """How much worse a figure is than the reference's, as a share."""

    value: float
    low: float
    """What it is at least: the value, or less where the value is not sure."""

    by: str = ""
    """The metric with this figure, where `accuracy` is about several."""


DEFAULT_GOALS: Final = (Goal(metric=LATENCY), Goal(metric=ACCURACY))
"""The gates of quality hold in any case, so among what passes them the fastest is looked for."""


def read_goals(texts: tuple[str, ...], known: Judged | None = None) -> tuple[Goal, ...]:
    """Read goals.

    Args:
        texts: The first has the highest priority.
        known: What can be a goal; None for that of a build with one metric.

    Returns:
        The goals; the default ones if there is no text.

    Raises:
        BuildError: One cannot be read, or two are of one metric.
    """
    goals = tuple(read_goal(text, known) for text in texts)
    metrics = [goal.metric for goal in goals]
    for goal in goals:
        if metrics.count(goal.metric) > 1:
            name = goal.written or goal.metric
            raise BuildError(f"two goals are of {name}", remedy="leave one of them out")
    return goals or DEFAULT_GOALS


def read_goal(text: str, known: Judged | None = None) -> Goal:
    """Read a goal: `METRIC`, `METRIC: at most N% worse` or `METRIC: at least N% better`.

    Args:
        text: The goal. Latency is `slower` or `faster`, memory and size are `larger` or `smaller`.
        known: As for `read_goals`.

    Returns:
        The goal.

    Raises:
        BuildError: It cannot be read, or nothing judges its metric; the line names the part at
            fault.
    """
    known = known or judged()
    head, colon, rest = _parted(text, known)
    shown = text[: 2 * _SHOWN]
    if head in known.unclear:
        raise BuildError(
            f"goal {shown!r}: {head[:_SHOWN]!r} can be several metrics",
            remedy="name its labels, as in OUTPUT=METRIC,labels=NAME, or its output",
        )
    if head not in known.keys:
        raise BuildError(
            f"goal {shown!r}: there is no metric {head[:_SHOWN]!r}",
            remedy=f"use {', '.join(known.shown)}, or add a --metric that judges it",
        )
    key = known.keys[head]
    written = head if head != key else ""
    if not colon:
        return Goal(metric=key, written=written)
    fault = _limit_fault(key, rest)
    if fault:
        worse, better = words(key)
        raise BuildError(
            f"goal {shown!r}: {fault}",
            remedy=f'write "{head}: at most 5% {worse}" or "{head}: at least 5% {better}"',
        )
    bound, number, _ = _parts(rest)
    share = float(number) / 100
    return Goal(metric=key, written=written, most_loss=share if bound == AT_MOST else -share)


def words(metric: str) -> tuple[str, str]:
    """Return the words for a worse and a better figure.

    Args:
        metric: A key of `changes`.

    Returns:
        Such as `slower` and `faster`.
    """
    return WORDS.get(metric, QUALITY_WORDS)


def _parted(text: str, known: Judged) -> tuple[str, str, str]:
    """Return the metric, the colon and the limit: names of outputs and functions have colons."""
    names = known.keys.keys() | known.unclear
    if text.strip() in names:
        return text.strip(), "", ""
    cuts = [i for i, char in enumerate(text) if char == ":" and text[:i].strip() in names]
    cut = max(cuts) if cuts else text.find(":")
    if cut < 0:
        return text.strip(), "", ""
    return text[:cut].strip(), ":", text[cut + 1 :].strip()


def _parts(rest: str) -> tuple[str, str, str]:
    """Return the bound, the number and the direction of a limit; empty where there is none."""
    found = _LIMIT.fullmatch(" ".join(rest.split()))
    return ("", "", "") if found is None else (found["bound"], found["number"], found["direction"])


def _limit_fault(metric: str, rest: str) -> str:
    """Say what is wrong with a limit; empty where nothing is."""
    worse, better = words(metric)
    bound, number, direction = _parts(rest)
    wanted = worse if bound == AT_MOST else better
    known = _NUMBER.fullmatch(number) is not None and float(number) <= MAX_PERCENT
    checks = (
        (not rest, "the limit after the colon is missing"),
        (not bound, f"{rest[:_SHOWN]!r} is not a limit"),
        (
            bound not in {AT_MOST, AT_LEAST},
            f"{bound[:_SHOWN]!r} is neither {AT_MOST!r} nor {AT_LEAST!r}",
        ),
        (not known, f"{number[:_SHOWN]!r} is not a number from 0 to {MAX_PERCENT:g}"),
        (
            direction != wanted,
            f"after {bound!r} the last word is {direction[:_SHOWN]!r}, not {wanted!r}",
        ),
        (
            bound == AT_LEAST and not is_quality(metric) and known and float(number) >= WHOLE,
            f"nothing is {number}% {better}",
        ),
    )
    return next((text for wrong, text in checks if wrong), "")


def changes(variant: Variant, reference: Variant, *, timed: bool) -> dict[str, Change]:
    """Compare a variant with the reference variant.

    A metric is worse by what its retention is below 1, and accuracy as much as the worst of them;
    latency, memory and size are worse by the share that they are above the reference variant's.

    Args:
        variant: A variant with its figures.
        reference: The reference variant with its figures.
        timed: Whether latency and memory, as measured here, are those of the device.

    Returns:
        The changes by metric, without those that are not known.
    """
    accuracy, ours = figures(variant)
    _, theirs = figures(reference)
    larger = variant.info.size_bytes / max(reference.info.size_bytes, 1) - 1.0
    found = {**_losses(accuracy), SIZE: Change(larger, larger)}
    if timed and ours is not None and theirs is not None:
        more = ours.peak_memory_bytes / max(theirs.peak_memory_bytes, 1) - 1.0
        found[MEMORY] = Change(more, more)
        mine, other = spans((variant, reference))
        value = mine.value / other.value - 1.0
        sure = mine.is_sure and other.is_sure
        found[LATENCY] = Change(value, value if sure else mine.low / other.high - 1.0)
    return found


def _losses(accuracy: Accuracy) -> dict[str, Change]:
    """Return how much worse a variant is by all metrics together, and by each of several."""
    main, further = 1.0 - accuracy.retention, figures_of(accuracy)
    if not further:
        return {ACCURACY: Change(main, main)}
    found = {MAIN: Change(main, main, by=accuracy.metric)}
    for one in further:
        key, lost = key_of(one.output, named(one.metric), one.labels), 1.0 - one.retention
        found[key] = Change(lost, lost, by=key)
    return {ACCURACY: max(found.values(), key=lambda change: change.value), **found}


def missed(goals: tuple[Goal, ...], found: Mapping[str, Change]) -> tuple[str, float] | None:
    """Return the first goal, by priority, that a candidate misses.

    Args:
        goals: The goals.
        found: What `changes` returned.

    Returns:
        What is missed, for a person, and by how much, as a share; None if it keeps all limits.
    """
    for goal in goals:
        change = found.get(goal.metric)
        if change is None or goal.most_loss is None:
            continue
        if change.low > goal.most_loss + ROUNDING:
            text = f"goal {goal.text!r} is missed: it is {change_text(goal.metric, change.value)}"
            if goal.metric == ACCURACY and change.by:
                text += f" by {change.by}"
            return text, change.low - goal.most_loss
    return None


def change_text(metric: str, loss: float) -> str:
    """Say a change in words, such as `3.1% slower`."""
    worse, better = words(metric)
    return f"{abs(loss):.2%} {worse if loss > 0 else better}" if loss else "the same"
