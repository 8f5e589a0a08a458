"""What a fleet has shown in the last days, played again and again in virtual time. Pure.

Rules:
- The history of a device is by hour, and ends with the last whole one. It begins with the first
  hour in which the device was heard.
- It is played from the same hour of the day as it is now, so that nights stay nights: whole days of
  it, or all of it where there is less than one. All devices begin with the same day, so what
  happened to several at one time does so again.
- A figure over some hours is the mean of those hours, each by how much was measured in it. For a
  percentile that is nearly the percentile of all of them.
- What was before is known by other hours than those that are looked at: where there is less than a
  day of history the same hours come again and again, and would explain themselves wholly.
- A device that was never heard has the history of another one, of its profile if there is any.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]

HOUR_S: Final = 3600.0
DAY_HOURS: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Figures:
    """What devices measured for one gate. Shape of each: (devices, hours)."""

    values: Floats
    """0 where nothing was measured."""

    counts: Floats
    """How much was measured in the hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installs:
    """What became of the devices of earlier rollouts of the model."""

    took_s: tuple[float, ...]
    """How long those took that succeeded; at least one."""

    failed: float = 0.0
    """The share of devices that did."""

    refused: float = 0.0
    timed_out: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class History:
    """What a fleet has shown."""

    heard: Flags
    """Whether each device measured anything. Shape: (devices, hours)."""

    figures: tuple[Figures, ...] = ()
    """Of each gate."""

    installs: Installs

    @property
    def days(self) -> int:
        """How many days there are to begin with."""
        return max(1, int(self.heard.shape[1]) // DAY_HOURS)


def borrowed(heard: Flags, profiles: Sequence[str]) -> Numbers:
    """Return whose history each device has: its own, or that of another one.

    Args:
        heard: Whether each device measured anything, by hour; one did.
        profiles: The profile of each.
    """
    has_own = heard.any(axis=1)
    everybody = np.flatnonzero(has_own)
    source = np.arange(len(profiles))
    names = np.array(profiles)
    for number in np.flatnonzero(~has_own).tolist():
        alike = np.flatnonzero(has_own & (names == profiles[number]))
        lenders = alike if len(alike) else everybody
        source[number] = lenders[number % len(lenders)]
    return source


class Played:
    """A history that is played from one of its days.

    Args:
        history: The history.
        profiles: The profile of each device.
        day: With which day it begins.
    """

    def __init__(self, history: History, profiles: Sequence[str], day: int) -> None:
        self._history = history
        self._source = borrowed(history.heard, profiles)
        known = history.heard[self._source]
        hours = known.shape[1]
        since_first = hours - known.argmax(axis=1)
        days = since_first // DAY_HOURS
        self._period = np.where(days > 0, days * DAY_HOURS, since_first)
        self._begin = hours - self._period
        self._shift = day * DAY_HOURS

    def online(self, hour: int) -> Flags:
        """Return which devices are online in an hour of the virtual time."""
        found: Flags = self._history.heard[self._source, self._at(hour)]
        return found

    def figures(
        self,
        gate: int,
        since_s: float,
        until_s: float,
        *,
        least: float,
        but: tuple[float, float] = (0.0, 0.0),
    ) -> tuple[Floats, Floats]:
        """Return the figure of each device over some virtual time.

        Args:
            gate: Of which gate, from 0.
            since_s: The beginning; below 0 for the time before the rollout.
            until_s: The end.
            least: How much must have been measured.
            but: Without the hours of history that are played in this time.

        Returns:
            The figures, NaN for devices of which too little was; and how much was measured.
        """
        of = self._history.figures[gate]
        total = np.zeros(len(self._source))
        counts = np.zeros(len(self._source))
        hours = _hours(since_s, until_s)
        for hour, left_out in zip(hours, self._left_out(hours, _hours(*but)), strict=True):
            begin_s, end_s = max(since_s, hour * HOUR_S), min(until_s, (hour + 1) * HOUR_S)
            at = self._source, self._at(hour)
            weights = of.counts[at] * ((end_s - begin_s) / HOUR_S)
            weights = np.where(left_out, 0.0, weights)
            total += of.values[at] * weights
            counts += weights
        is_told = (counts >= least) & (counts > 0.0)
        found: Floats = np.where(is_told, total / np.where(is_told, counts, 1.0), math.nan)
        return found, counts

    def _left_out(self, hours: range, but: range) -> list[Flags]:
        """Tell of each hour of which devices it is played in another time, and so left out.

        Where that would take most of the hours of a device that has a day of history, none is: a
        soak of a day or more leaves no others.
        """
        others = [self._at(hour) for hour in but]
        found = []
        for hour in hours:
            played = np.zeros(len(self._source), dtype=np.bool_)
            for other in others:
                played |= self._at(hour) == other
            found.append(played)
        if found:
            most = 2 * np.sum(found, axis=0) > len(found)
            is_kept = most & (self._period >= DAY_HOURS)
            found = [played & ~is_kept for played in found]
        return found

    def _at(self, hour: int) -> Numbers:
        found: Numbers = self._begin + (self._shift + hour) % self._period
        return found


def _hours(since_s: float, until_s: float) -> range:
    """Return the hours of the virtual time that some time touches."""
    return range(math.floor(since_s / HOUR_S), math.ceil(until_s / HOUR_S))
