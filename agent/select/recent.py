"""Summaries of the last minutes: peaks and distributions in which old values fade.

A policy that sees only the present takes each lull for a lasting change. A choice that should last
must also hold under the conditions of the last minutes.

Rules:
- Pure values of fixed size, whatever the time between updates.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

FADES_S: Final = 120.0
"""Time constant with which old values fade. Most disturbances that recur on a device do so within
minutes: jobs of a scheduler, a fan, the traffic of a street."""

BINS: Final = 192
LEAST, GREATEST = math.log(1.0 / 32.0), math.log(128.0)
"""The first and the last bin also hold the values beyond them."""

POINTS: Final = 5
WIDTH: Final = (GREATEST - LEAST) / BINS
"""Sixteen bins for each factor of two."""


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """The greatest recent value; it falls back slowly to the present one."""

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
    """The recent distribution of a positive factor, by its logarithm."""

    weights: tuple[float, ...] = ()
    """Seconds that it was in each bin, faded; empty before the first measurement."""

    rises: tuple[float, ...] = ()
    """How often it rose from below into each bin or above it, faded."""

    last: int = BINS
    """The bin of the last measurement; above all bins before the first one."""

    seen_s: float = 0.0
    """Total time of the measurements."""

    def update(self, factor: float, period_s: float, *, fades_s: float = FADES_S) -> Spread:
        """Return the distribution after a period in which the factor had a value."""
        kept, now = math.exp(-period_s / fades_s), _bin(factor)
        weights = [weight * kept for weight in self.weights or (0.0,) * BINS]
        weights[now] += period_s
        rises = [rise * kept for rise in self.rises or (0.0,) * BINS]
        for passed in range(self.last + 1, now + 1):
            rises[passed] += 1.0
        return Spread(
            weights=tuple(weights), rises=tuple(rises), last=now, seen_s=self.seen_s + period_s
        )

    def points(self) -> tuple[float, ...]:
        """Return five values of equal recent time, from the least to the greatest."""
        total, passed = math.fsum(self.weights), 0.0
        found: list[float] = []
        for i, weight in enumerate(self.weights):
            passed += weight
            while len(found) < POINTS and passed > (len(found) + 0.5) / POINTS * total:
                found.append(math.exp(LEAST + (i + 0.5) * WIDTH))
        return tuple(found)

    def rises_per_s(self, factor: float) -> float:
        """Return how often per second it recently rose to a value or above."""
        total = math.fsum(self.weights)
        return self.rises[_bin(factor)] / total if total > 0.0 and factor > 0.0 else 0.0


class Scatter(msgspec.Struct, frozen=True, kw_only=True):
    """The recent scatter of single values about the mean of their period, by their logarithms."""

    squares: float = 0.0
    """Sum of squared deviations, faded."""

    freedom: float = 0.0
    """Degrees of freedom of that sum, faded."""

    @property
    def variance(self) -> float:
        """Variance of the logarithm; 0 before two values were seen in one period."""
        return self.squares / self.freedom if self.freedom > 0.0 else 0.0

    def update(self, variance: float | None, count: float, period_s: float) -> Scatter:
        """Return the scatter after a period.

        Args:
            variance: Variance of the logarithms of its values; None if it is not known.
            count: Number of its values.
            period_s: Length of the period.
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
