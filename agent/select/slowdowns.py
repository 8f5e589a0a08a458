"""How much slower than alone each variant is: a part common to all, and a part of its own.

What makes one variant slow, throttling or a co-runner, makes all slow: what serves tells of those
that do not. But requests are not golden samples, and a latency may have been declared on another
machine: what is twice as slow here under one runtime need not be under the other. What two variants
took, one after the other, tells their own parts apart. Both are logarithms, because slowdowns
multiply and are never negative.

Rules:
- Pure: a measurement in, the next filter out. Of fixed size: what served longest ago is forgotten.
- What a variant that never served has of its own is unknown, not nothing: its doubt is greater.

Source:
    One slowdown, filtered, its least process noise: Wan et al., ALERT (USENIX ATC 2020), section
    3.3. A Kalman filter of several numbers: Bar-Shalom, Li and Kirubarajan, Estimation with
    Applications to Tracking and Navigation (2001), section 5.2. Noises that adapt: Akhlaghi, Zhou
    and Huang, Adaptive Adjustment of Noise Covariance in Kalman Filter for Dynamic State Estimation
    (2017): from the surprise that of the steps, from what is left of it after the update that of
    the measurements.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import msgspec

ADAPTS: Final = 0.3
"""Share of the process noise that stays at an update; the rest is what the update showed."""

LEAST_PROCESS: Final = 4e-4
"""Steps of two hundredths: without them a level that was quiet for long would no longer move."""

NOISE_KEPT: Final = 0.9
"""Share of the measurements' noise that stays at an update."""

LEAST_NOISE: Final = 1e-4
COMMON_VARIANCE: Final = 0.25
"""By a factor of 1.6 a device may be slower or faster than where latencies were measured."""

OWN_VARIANCE: Final = 0.0025
"""By a twentieth one variant may differ more than another: requests are not golden samples."""

OWN_DRIFT: Final = 1e-5
"""Variance of a step of what is a variant's own, while it serves: inputs change, a runtime's caches
fill."""

MOST_VARIANTS: Final = 16


class Expected(NamedTuple):
    """The next measurement, as a logarithm."""

    mean: float
    sigma: float

    @property
    def factor(self) -> float:
        """The slowdown that is the likeliest."""
        return math.exp(self.mean)


class Slowdowns(msgspec.Struct, frozen=True, kw_only=True):
    """A Kalman filter whose first number is common to all, and whose others are each variant's."""

    names: tuple[str, ...] = ()
    """Those that have served, the last one last."""

    means: tuple[float, ...] = (0.0,)
    """The common part, and that of each of `names`."""

    covariance: tuple[tuple[float, ...], ...] = ((COMMON_VARIANCE,),)
    """Of `means`."""

    process: float = 0.01
    """Variance of a step of the common part."""

    noise: float = 0.0025
    """Variance of a measurement."""

    def own(self, name: str) -> float:
        """Return what is expected to be a variant's own; nothing where it never served."""
        return self.means[self.names.index(name) + 1] if name in self.names else 0.0

    def expected(self, name: str) -> Expected:
        """Return what the next measurement of a variant is expected to be."""
        known, i = self.covariance, self.names.index(name) + 1 if name in self.names else 0
        apart = known[i][i] + 2.0 * known[0][i] if i else OWN_VARIANCE
        variance = max(known[0][0] + apart, 0.0) + self.process + self.noise
        return Expected(self.means[0] + self.own(name), math.sqrt(variance))

    def update(self, name: str, measured: float) -> Slowdowns:
        """Return the filter after a measurement.

        Args:
            name: The variant that served.
            measured: Logarithm of its latency over that which it has alone.
        """
        before = self._last(name)
        means, known = before.means, [list(row) for row in before.covariance]
        known[0][0] += self.process
        known[-1][-1] += OWN_DRIFT
        # What is measured is the sum of the first and the last number.
        toward = [row[0] + row[-1] for row in known]
        total = toward[0] + toward[-1] + self.noise
        surprise = measured - means[0] - means[-1]
        moved = [mean + t / total * surprise for mean, t in zip(means, toward, strict=True)]
        rows = tuple(
            tuple(value - t * other / total for value, other in zip(row, toward, strict=True))
            for row, t in zip(known, toward, strict=True)
        )
        step, left = moved[0] - means[0], measured - moved[0] - moved[-1]
        spread = rows[0][0] + 2.0 * rows[0][-1] + rows[-1][-1]
        noise = NOISE_KEPT * self.noise + (1.0 - NOISE_KEPT) * (left**2 + max(spread, 0.0))
        return Slowdowns(
            names=before.names,
            means=tuple(moved),
            covariance=rows,
            process=max(ADAPTS * self.process + (1.0 - ADAPTS) * step**2, LEAST_PROCESS),
            noise=max(noise, LEAST_NOISE),
        )

    def _last(self, name: str) -> Slowdowns:
        """Return the filter with a variant as the last one."""
        if self.names and self.names[-1] == name:
            return self
        count = len(self.names)
        order = [i for i in range(count) if self.names[i] != name][-(MOST_VARIANTS - 1) :]
        kept = [0, *(i + 1 for i in order)]
        if name in self.names:
            kept.append(self.names.index(name) + 1)
        means = [self.means[i] for i in kept]
        rows = [[self.covariance[i][j] for j in kept] for i in kept]
        if name not in self.names:
            means.append(0.0)
            rows = [[*row, 0.0] for row in rows]
            rows.append([0.0] * len(kept) + [OWN_VARIANCE])
        return msgspec.structs.replace(
            self,
            names=(*(self.names[i] for i in order), name),
            means=tuple(means),
            covariance=tuple(tuple(row) for row in rows),
        )
