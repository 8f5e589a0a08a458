"""What the last minutes were like: extremes and a distribution that fade.

A policy that looks at the present alone takes each lull for a change; what is to last must also
hold under what was seen lately.

Rules:
- Pure values of fixed size, whatever the time between updates.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

FADES_S: Final = 120.0
"""Time in which what was seen loses its weight; most disturbances of a device that come back do so
within minutes: jobs of a scheduler, a fan, the traffic of a street."""

BINS: Final = 192
LEAST, GREATEST = math.log(1.0 / 32.0), math.log(128.0)
"""The first and the last bin hold what lies beyond, too."""

WIDTH: Final = (GREATEST - LEAST) / BINS
"""Sixteen to an octave."""


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """The greatest value lately: it falls back to the present one, not at once."""

    value: float | None = None

    def update(self, measured: float | None, period_s: float) -> Peak:
        """Return the peak after a measurement; None measures nothing."""
        if measured is None:
            return self
        if self.value is None or measured >= self.value:
            return Peak(value=measured)
        kept = math.exp(-period_s / FADES_S)
        return Peak(value=measured + (self.value - measured) * kept)


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """How a positive factor was distributed lately, by its logarithm."""

    weights: tuple[float, ...] = ()
    """Seconds, faded, in which it was in each bin; empty before the first measurement."""

    rises: tuple[float, ...] = ()
    """How often, faded, it came into each bin or above it from below."""

    last: int = BINS
    """The bin in which it was; none is above it before the first measurement."""

    seen_s: float = 0.0
    """For how long it was seen in all."""

    def update(self, factor: float, period_s: float) -> Spread:
        """Return the distribution after a period in which the factor had a value."""
        kept, now = math.exp(-period_s / FADES_S), _bin(factor)
        weights = [weight * kept for weight in self.weights or (0.0,) * BINS]
        weights[now] += period_s
        rises = [rise * kept for rise in self.rises or (0.0,) * BINS]
        for passed in range(self.last + 1, now + 1):
            rises[passed] += 1.0
        return Spread(
            weights=tuple(weights), rises=tuple(rises), last=now, seen_s=self.seen_s + period_s
        )

    def rises_per_s(self, factor: float) -> float:
        """Return how often a second it rose to a value or above, lately."""
        total = math.fsum(self.weights)
        return self.rises[_bin(factor)] / total if total > 0.0 and factor > 0.0 else 0.0

    def share_below(self, factor: float, log_variance: float = 0.0) -> float:
        """Return the share of what was seen that was surely below a value.

        Args:
            factor: The value; what is in its own bin is not surely below.
            log_variance: By which single ones scatter about the means that were seen.

        Returns:
            0 to 1; 1 before the first measurement, when nothing speaks against it.
        """
        total = math.fsum(self.weights)
        if total == 0.0:
            return 1.0
        if factor <= 0.0:
            return 0.0
        if log_variance <= 0.0:
            return math.fsum(self.weights[: _bin(factor)]) / total
        limit, sigma = math.log(factor) + 0.5 * log_variance, math.sqrt(log_variance)
        below = (
            weight * normal_share((limit - (LEAST + (i + 1) * WIDTH)) / sigma)
            for i, weight in enumerate(self.weights)
            if weight
        )
        return math.fsum(below) / total


class Scatter(msgspec.Struct, frozen=True, kw_only=True):
    """How single values lay about the mean of their period lately, by their logarithms."""

    squares: float = 0.0
    """Sum of squared deviations, faded, ..."""

    freedom: float = 0.0
    """... and how many of them tell something, faded."""

    @property
    def variance(self) -> float:
        """Of the logarithm; 0 before two values were seen in one period."""
        return self.squares / self.freedom if self.freedom > 0.0 else 0.0

    def update(self, variance: float | None, count: float, period_s: float) -> Scatter:
        """Return the scatter after a period.

        Args:
            variance: Of its values' logarithms; None where they tell nothing.
            count: Of its values.
            period_s: Its length.
        """
        kept = math.exp(-period_s / FADES_S)
        freedom = 0.0 if variance is None else max(count - 1.0, 0.0)
        return Scatter(
            squares=kept * self.squares + freedom * (variance or 0.0),
            freedom=kept * self.freedom + freedom,
        )


def normal_share(z: float) -> float:
    """Return the share of a normal distribution below `z` standard deviations."""
    return 0.5 * math.erfc(-z / math.sqrt(2.0))


def _bin(factor: float) -> int:
    return int(min(max((math.log(factor) - LEAST) / WIDTH, 0.0), BINS - 1.0))
