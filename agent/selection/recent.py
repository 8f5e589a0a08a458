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

    seen_s: float = 0.0
    """For how long it was seen in all."""

    def update(self, factor: float, period_s: float) -> Spread:
        """Return the distribution after a period in which the factor had a value."""
        kept = math.exp(-period_s / FADES_S)
        weights = [weight * kept for weight in self.weights or (0.0,) * BINS]
        weights[_bin(factor)] += period_s
        return Spread(weights=tuple(weights), seen_s=self.seen_s + period_s)

    def share_below(self, factor: float) -> float:
        """Return the share of the time in which the factor was surely below a value.

        Args:
            factor: The value; what is in its own bin is not surely below.

        Returns:
            0 to 1; 1 before the first measurement, when nothing speaks against it.
        """
        total = math.fsum(self.weights)
        if total == 0.0:
            return 1.0
        if factor <= 0.0:
            return 0.0
        return math.fsum(self.weights[: _bin(factor)]) / total


def _bin(factor: float) -> int:
    return int(min(max((math.log(factor) - LEAST) / WIDTH, 0.0), BINS - 1.0))
