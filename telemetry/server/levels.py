"""The levels at which measurements are kept: minutes, hours and days. Pure.

A level has a table of what each device measured, and one of the whole fleet. Its rows are as long
as it says, and the row of an hour is that of its minutes merged: a quantile of hours is as exact as
one of minutes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

HOUR: Final = 60
DAY: Final = 1440


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """How long the rows of a table are, and of that of the whole fleet."""

    name: str
    minutes: int


MINUTES: Final = Level(name="minute", minutes=1)
HOURS: Final = Level(name="hour", minutes=HOUR)
DAYS: Final = Level(name="day", minutes=DAY)
LEVELS: Final = (MINUTES, HOURS, DAYS)
"""From fine to coarse; each is a multiple of the one before."""


class Part(NamedTuple):
    """A part of a time, and the level that answers it."""

    level: Level
    first: int
    """The first minute, inclusive."""

    end: int
    """The last minute, exclusive."""

    of_fleet: bool = False
    """Whether the rows of the whole fleet do, or those of devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What there is of a level."""

    level: Level
    first: int
    """What is older was deleted, or was never there."""

    end: int
    """What is newer is not made yet."""

    stale: Collection[int] = field(default=frozenset())
    """First minutes of rows that are to be made anew."""


def covered(first: int, end: int, kept: Sequence[Kept]) -> list[Part]:
    """Cover a time with the coarsest rows that answer it exactly.

    Args:
        first: The first minute, inclusive.
        end: The last minute, exclusive.
        kept: The levels that may be used, from fine to coarse; the finest is complete from its
            first minute on.

    Returns:
        Parts in order. Where only coarser rows are left, the first one begins at or before `first`.
    """
    if first >= end or not kept:
        return []
    *finer, coarse = kept
    size = coarse.level.minutes
    if not finer:
        first = max(first, coarse.first)
        return [Part(coarse.level, first, end)] if first < end else []
    finest = min(each.first for each in finer)
    # What the finer levels no longer have begins at a whole row of this one.
    start = first // size * size if first < finest else -(-first // size) * size
    low, high = max(start, coarse.first), min(end // size * size, coarse.end)
    parts: list[Part] = []
    at = first
    for begin, stop in _runs(low, high, size, [at for at in coarse.stale if at >= finest]):
        parts += [*covered(at, begin, finer), Part(coarse.level, begin, stop)]
        at = stop
    return parts + covered(at, end, finer)


def _runs(low: int, high: int, size: int, stale: Collection[int]) -> Iterator[tuple[int, int]]:
    """Yield the parts of a time between rows of some size that are to be made anew."""
    for at in sorted(stale):
        if low <= at < high:
            if low < at:
                yield low, at
            low = at + size
    if low < high:
        yield low, high


def planned(
    first: int, end: int, kept: Sequence[Kept], *, step: int, fleet_first: int | None
) -> list[Part]:
    """Return what is to be read for an answer.

    Args:
        first: The first minute, inclusive.
        end: The last minute, exclusive.
        kept: All levels, from fine to coarse.
        step: The rows of different steps of so many minutes stay apart; 0 for one step.
        fleet_first: Since when the rows of the whole fleet are complete; None where they are not
            enough, because the answer is about single devices.

    Returns:
        Parts in order; none if there is nothing.
    """
    fitting = [each for each in kept if step % each.level.minutes == 0]
    if fleet_first is None:
        return covered(first, end, fitting)
    # A row of a time in which the rows of the fleet begin is not complete.
    begin = -(-fleet_first // DAY) * DAY if fleet_first else 0
    parts = covered(first, min(begin, end), fitting) if first < begin else []
    since = max(first, begin)
    fleet = [part._replace(of_fleet=True) for part in covered(since, end, fitting)]
    return parts + fleet
