"""Compares two groups of a metric, with an interval that says how sure the difference is. Pure.

The device is the unit of chance: its values resemble each other, so a million values of three
devices are three observations. Devices are drawn anew, with all their values; those that are in
both groups are drawn for both, so a release before and after an update is compared on each. Where
devices of one place resemble each other, the place can be the unit (`telemetry.server.units`): each
row that is called a device here is then one place.

Rules:
- With fewer than `LEAST_DEVICES` devices in a group there is no interval: nobody could tell. Where
  some devices bring most of the values, they count as fewer.
- A quantile needs `LEAST_BEYOND` values beyond it.
- A device that is in both groups weighs the same in both. Else an update that reaches fast devices
  first would look like a faster model.
- The interval of a mean is no shorter than that of Student's t over devices, which holds better
  where a few devices differ much from the others. That of a quantile is wider by what its buckets
  leave open.
- The draws begin with a fixed seed: the same data give the same answer.

Source:
    Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapters 8 and 13; for the levels
    of few devices: Hesterberg, What Teachers Should Know About the Bootstrap (The American
    Statistician 69, 2015), "expanded percentile interval". For equal weights: Kitagawa, Components
    of a Difference Between Two Rates (Journal of the American Statistical Association 50, 1955).
    For the mean of unequal numbers of values, a ratio: Cochran, Sampling Techniques (1977), 6.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt
from numpy.random import PCG64

from telemetry.server.student import student_t

Floats = npt.NDArray[np.float64]
Booleans = npt.NDArray[np.bool_]

DRAWS: Final = 2000
SEED: Final = 1
LEAST_DEVICES: Final = 5
LEAST_BEYOND: Final = 10
CONFIDENCE: Final = 0.95

_SLACK: Final = 1e-9
"""Keeps the fifth of ten values the median although sums of shares are not exact."""

_TINY: Final = 1e-300

Statistic = Callable[[Floats], Floats]
"""Returns the value of a group for each draw, NaN where it has none; takes how often each device is
drawn, shape (draws, devices)."""


@dataclass(frozen=True, slots=True)
class Group:
    """One of the two groups."""

    statistic: Statistic
    counts: Floats
    """Shape (devices,): how many values each device has; 0 for one that is not in the group."""

    deviations: Floats | None = None
    """Shape (devices,): by how much each moves a mean; None for a quantile."""

    relative_error: float = 0.0
    """How far off the value may be, because values are counted in buckets."""

    beyond: float = math.inf
    """How many values lie beyond a quantile."""

    @property
    def effective_devices(self) -> float:
        """How many devices with equally many values would tell as much.

        Source:
            Kish, Survey Sampling (1965), section 8.2.
        """
        squares = float((self.counts**2).sum())
        return float(self.counts.sum()) ** 2 / squares if squares else 0.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """How the second group differs from the first."""

    first: float
    second: float
    low: float
    """Of the difference, second less first; NaN where there are too few devices."""

    high: float
    lacks: str = ""
    """Why there is no interval."""

    @property
    def difference(self) -> float:
        """The second less the first."""
        return self.second - self.first

    @property
    def has_interval(self) -> bool:
        """Whether there were enough devices."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def is_told(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.has_interval and (self.low > 0 or self.high < 0)


def compared(first: Group, second: Group, *, units: str = "devices") -> Comparison:
    """Compare two groups.

    Args:
        first: The first group.
        second: The second, of the same devices in the same order.
        units: What the devices are called in the text.

    Returns:
        Both values, and the interval of their difference at `CONFIDENCE`.
    """
    once = np.ones((1, len(first.counts)))
    values = float(first.statistic(once)[0]), float(second.statistic(once)[0])
    if lacks := _lacks(first, units) or _lacks(second, units):
        return Comparison(*values, math.nan, math.nan, lacks)
    fewest = min(first.effective_devices, second.effective_devices)
    weights = _drawn(first.counts > 0, second.counts > 0)
    differences = second.statistic(weights) - first.statistic(weights)
    differences = differences[np.isfinite(differences)]
    level = expanded_level(fewest)
    low, high = map(float, np.quantile(differences, (level, 1 - level)))
    difference = values[1] - values[0]
    if first.deviations is not None and second.deviations is not None:
        squares = float(((second.deviations - first.deviations) ** 2).sum())
        error = math.sqrt(squares * fewest / (fewest - 1))
        reach = error * student_t((1 + CONFIDENCE) / 2, fewest - 1)
        low, high = min(low, difference - reach), max(high, difference + reach)
    blur = sum(
        group.relative_error * abs(value)
        for group, value in zip((first, second), values, strict=True)
    )
    return Comparison(*values, low - blur, high + blur)


def alike(first: Floats, second: Floats) -> tuple[Floats, Floats]:
    """Return by what the values of devices count so that those in both groups weigh the same.

    Args:
        first: Shape (devices,): how many values each has in the first group.
        second: In the second.

    Returns:
        For each group shape (devices,): 1 for a device that is in one group alone.
    """
    in_both = (first > 0) & (second > 0)
    every = np.where(in_both, first + second, 1.0)
    return np.where(in_both, second / every, 1.0), np.where(in_both, first / every, 1.0)


def mean_group(totals: Floats, counts: Floats) -> Group:
    """Return a group of which the mean is compared.

    Args:
        totals: Shape (devices,): the sum of the values of each.
        counts: How many there are.
    """
    every = counts.sum()
    deviations = (totals - totals.sum() / every * counts) / every
    return Group(mean_of(totals, counts), counts, deviations)


def quantile_group(
    q: float, counts: Floats, values: Floats, relative_error: float, every: float
) -> Group:
    """Return a group of which a quantile is compared.

    Args:
        q: Within 0 to 1.
        counts: Shape (devices, buckets): how many values of each device are in each bucket.
        values: Shape (buckets,), rising: what stands for each bucket.
        relative_error: How far that may be from a value.
        every: How many values there are.
    """
    return Group(
        quantile_of(q, counts, values),
        counts.sum(axis=1),
        relative_error=relative_error,
        beyond=every * min(q, 1 - q),
    )


def mean_of(totals: Floats, counts: Floats) -> Statistic:
    """Return the mean as a statistic.

    Args:
        totals: Shape (devices,): the sum of the values of each.
        counts: How many there are.
    """

    def mean(weights: Floats) -> Floats:
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray((weights @ totals) / (weights @ counts))

    return mean


def quantile_of(q: float, counts: Floats, values: Floats) -> Statistic:
    """Return a quantile as a statistic: the value up to which that share of the weight lies.

    Where all values weigh 1, that is the quantile by nearest rank.

    Args:
        q: Within 0 to 1.
        counts: Shape (devices, buckets): how many values of each device are in each bucket.
        values: Shape (buckets,), rising: what stands for each bucket.
    """

    def quantile(weights: Floats) -> Floats:
        running = np.cumsum(weights @ counts, axis=1)
        every = running[:, -1]
        # Values of devices in both groups weigh less than 1, so a rank is no whole number.
        reached = running >= np.maximum(q * every * (1 - _SLACK), _TINY)[:, None]
        at = (~reached).sum(axis=1)
        return np.where(every > 0, values[np.minimum(at, len(values) - 1)], np.nan)

    return quantile


def _lacks(group: Group, units: str) -> str:
    devices = int((group.counts > 0).sum())
    if devices < LEAST_DEVICES:
        return f"fewer than {LEAST_DEVICES} {units} have values"
    if group.effective_devices < LEAST_DEVICES:
        return f"a few of the {devices} {units} bring most of the values"
    if group.beyond < LEAST_BEYOND:
        return f"fewer than {LEAST_BEYOND} values lie beyond that quantile"
    return ""


def expanded_level(devices: float) -> float:
    """Return the share to leave out at each end, less than 2.5 % where there are few devices.

    Args:
        devices: How many the smaller group has.
    """
    normal = NormalDist()
    beyond = (1 - CONFIDENCE) / 2
    stretched = math.sqrt(devices / (devices - 1)) * student_t(1 - beyond, devices - 1)
    return normal.cdf(-stretched)


def _drawn(in_first: Booleans, in_second: Booleans) -> Floats:
    """Return how often each device is drawn, apart for those in one group and in both."""
    generator = PCG64(SEED)
    weights = np.zeros((DRAWS, len(in_first)))
    for stratum in (in_first & ~in_second, in_second & ~in_first, in_first & in_second):
        at = np.flatnonzero(stratum)
        size = len(at)
        if size:
            shares = (generator.random_raw(DRAWS * size) >> 11) * 2.0**-53
            cells = np.repeat(np.arange(DRAWS), size) * size + (shares * size).astype(np.int64)
            weights[:, at] = np.bincount(cells, minlength=DRAWS * size).reshape(DRAWS, size)
    return weights
