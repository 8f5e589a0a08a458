"""How much slower than alone each variant is: a part common to all, and a part of its own.

Throttling or another program slows all variants, so the serving variant shows how slow the others
would be. But requests differ from golden samples, and a latency may have been declared on another
machine: a variant of one runtime may be twice as slow here, and one of another runtime not. When
two variants serve one after the other, their latencies tell their own parts apart. Both parts are
logarithms, because slowdowns multiply and are never negative.

Rules:
- Pure: a measurement in, the next filter out. The size is bounded: the variant that served longest
  ago is forgotten.
- The own part of a variant that never served is unknown, not zero: it is more uncertain.
- What was long not seen is unknown again. Another program may have ended while one variant took
  over from another; without an end, the one would count as slow for ever.

Source:
    One slowdown, filtered, its least process noise: Wan et al., ALERT (USENIX ATC 2020), section
    3.3. A Kalman filter of several numbers: Bar-Shalom, Li and Kirubarajan, Estimation with
    Applications to Tracking and Navigation (2001), section 5.2. Noises that adapt: Akhlaghi, Zhou
    and Huang, Adaptive Adjustment of Noise Covariance in Kalman Filter for Dynamic State Estimation
    (2017): the noise of the steps follows from the surprise, the noise of the measurements from
    what is left of it after the update.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import msgspec

ADAPTS: Final = 0.3
"""Share of the process noise that an update keeps; the rest comes from the update itself."""

LEAST_PROCESS: Final = 4e-4
"""Steps of two hundredths: with less, a level that was long quiet would no longer move."""

NOISE_KEPT: Final = 0.9
"""Share of the measurements' noise that an update keeps."""

LEAST_NOISE: Final = 1e-4
COMMON_VARIANCE: Final = 0.25
"""A device may be slower or faster by a factor of 1.6 than where latencies were measured."""

OWN_VARIANCE: Final = 0.0025
"""One variant may differ by a twentieth more than another: requests are not golden samples."""

OWN_DRIFT: Final = 1e-5
"""Variance of a step of a variant's own part while it serves: inputs change, a runtime's caches
fill."""

EXPLAINED: Final = 4.0
"""Two deviations: a surprise within them at a switch may as well be the common part's. So one slow
answer, after which another variant serves, makes no variant slow for ever."""

MOST_VARIANTS: Final = 16
FORGOTTEN_S: Final = 3600.0
"""After this time of service by others nothing is known of a variant's own part."""


class Expected(NamedTuple):
    """The expected next measurement, as a logarithm."""

    mean: float
    sigma: float

    @property
    def factor(self) -> float:
        """The most likely slowdown."""
        return math.exp(self.mean)


class Slowdowns(msgspec.Struct, frozen=True, kw_only=True):
    """A Kalman filter: its first number is the common part, the others are the own parts."""

    names: tuple[str, ...] = ()
    """The variants that have served, the latest one last."""

    unseen_s: tuple[float, ...] = ()
    """For how long others have served since then, for each of `names`."""

    means: tuple[float, ...] = (0.0,)
    """The common part, and the own part of each of `names`."""

    covariance: tuple[tuple[float, ...], ...] = ((COMMON_VARIANCE,),)
    """Covariance of `means`."""

    process: float = 0.01
    """Variance of a step of the common part."""

    noise: float = 0.0025
    """Variance of a measurement."""

    def own(self, name: str) -> float:
        """Return the expected own part of a variant; 0 if it never served."""
        return self.means[self.names.index(name) + 1] if name in self.names else 0.0

    def expected(self, name: str) -> Expected:
        """Return what the next measurement of a variant is expected to be."""
        known, i = self.covariance, self.names.index(name) + 1 if name in self.names else 0
        apart = known[i][i] + 2.0 * known[0][i] if i else OWN_VARIANCE
        variance = max(known[0][0] + apart, 0.0) + self.process + self.noise
        return Expected(self.means[0] + self.own(name), math.sqrt(variance))

    def update(self, name: str, measured: float, period_s: float) -> Slowdowns:
        """Return the filter after a measurement.

        Args:
            name: The variant that served.
            measured: Logarithm of its latency divided by its latency alone.
            period_s: For how long it served.
        """
        before = _without_old(self._last(name))
        means, known = before.means, [list(row) for row in before.covariance]
        surprise = measured - means[0] - means[-1]
        if self.names and name not in self.names:
            # What changed when a variant came that had never served is its own, unless the common
            # part has just moved: then that may have moved back.
            explained = EXPLAINED * (known[0][0] + self.process + self.noise)
            known[-1][-1] = max(known[-1][-1], surprise**2 - explained)
        known[0][0] += self.process
        known[-1][-1] += OWN_DRIFT
        # A measurement is the sum of the first and the last number.
        toward = [row[0] + row[-1] for row in known]
        total = toward[0] + toward[-1] + self.noise
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
            unseen_s=(*(age_s + period_s for age_s in before.unseen_s[:-1]), 0.0),
            means=tuple(moved),
            covariance=rows,
            process=max(ADAPTS * self.process + (1.0 - ADAPTS) * step**2, LEAST_PROCESS),
            noise=max(noise, LEAST_NOISE),
        )

    def shifted(self, step: float) -> Slowdowns:
        """Return the filter after a change of the processor's speed that all variants share.

        Args:
            step: What is added to the common part, a logarithm.
        """
        return msgspec.structs.replace(self, means=(self.means[0] + step, *self.means[1:]))

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
            unseen_s=(*(self.unseen_s[i] for i in order), 0.0),
            means=tuple(means),
            covariance=tuple(tuple(row) for row in rows),
        )


def _without_old(known: Slowdowns) -> Slowdowns:
    """Return a filter without what is forgotten; with one variant, all is the common part."""
    count = len(known.names)
    kept = [i for i in range(count) if known.unseen_s[i] < FORGOTTEN_S]
    if len(kept) == count:
        return known
    places = [0, *(i + 1 for i in kept)]
    left = msgspec.structs.replace(
        known,
        names=tuple(known.names[i] for i in kept),
        unseen_s=tuple(known.unseen_s[i] for i in kept),
        means=tuple(known.means[i] for i in places),
        covariance=tuple(tuple(known.covariance[i][j] for j in places) for i in places),
    )
    if len(kept) > 1:
        return left
    (common, across), (_, own) = left.covariance
    variance = max(common + 2.0 * across + own, 0.0)
    return msgspec.structs.replace(
        left,
        means=(sum(left.means), 0.0),
        covariance=((variance, 0.0), (0.0, OWN_VARIANCE)),
    )
