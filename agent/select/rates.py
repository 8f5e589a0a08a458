"""How many requests come a second: a rate with its uncertainty, from counts.

A count of one second is mostly chance: of seven expected requests, ten come in one second of six. A
rate that is constant is known well after some minutes, and one that jumps must be followed at
once. So each of several runs supposes that the rate has been the same since another time, and
weighs as much as it predicted the counts well.

Requests that come in batches scatter more than chance would have it, and a count then tells as much
less.

Rules:
- Pure: counts in, the next estimate out. The size is bounded.
- What is not known is uncertain, never zero.

Source:
    Runs since the last change: Adams and MacKay, Bayesian Online Changepoint Detection (2007), with
    counts of a Poisson process and its conjugate, a Gamma distribution; the count that follows has
    then a negative binomial distribution. Quantiles of a Gamma distribution: Wilson and Hilferty,
    The Distribution of Chi-square (PNAS, 1931). Counts that scatter more than by chance: McCullagh
    and Nelder, Generalized Linear Models (1989), section 6.2.
"""

from __future__ import annotations

import heapq
import math
from typing import Final

import msgspec
from msgspec.structs import replace

from agent.select.asked_last import last_asked
from agent.select.batches import Batches, Together

CHANGES_S: Final = 60.0
"""How long a rate lasts, in the mean, before it jumps: the traffic of a street, a motion detector.
Three times as much or a third changes the result little."""

LEAST_REQUESTS: Final = 60.0
"""And for how many requests, or batches of them, at least."""

FADES: Final = 2.0
"""With this multiple of that time counts fade in a run: no rate stays quite the same."""

LONG_S: Final = 3600.0
"""What a rate may be after a change: as in the last hour."""

LONG_SHARE: Final = 0.5
"""The shape of that distribution: a rate after a change may as well be a tenth or ten times."""

FRESH_S: Final = 5.0
"""It counts for no more time than this, however few came."""

FIRST_PER_S: Final = 1.0
"""Of what nothing is known yet."""

SCATTER_S: Final = 120.0
"""How long it is remembered how much counts scatter."""

LEAST_COUNTS: Final = 30.0
"""And over how many counts at least: fewer tell nothing of a variance."""

LEAST_MEAN: Final = 0.5
MOST_SIGMA: Final = 3.0
"""Standard deviations that one count tells of the scatter at most: it may be the first after a
jump."""

FIRST_S: Final = 10.0
"""Random arrivals are supposed until so much was seen."""

LEAST_SHAPE: Final = 1e-6
MOST_RUNS: Final = 24
LEAST_LOG: Final = -20.0
"""A run that is less likely than the best by this factor (e to the power of it) is given up."""

Z: Final = (-1.28155, -0.52440, 0.0, 0.52440, 1.28155)
"""Of a normal distribution: the middles of five parts of equal probability."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A Gamma distribution of the rate, if it was the same since some time."""

    shape: float
    seconds: float
    weight: float

    @property
    def mean_per_s(self) -> float:
        """The expected rate."""
        return self.shape / self.seconds


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a rate; nothing at the start."""

    runs: tuple[Run, ...] = ()
    long_count: float = FIRST_PER_S
    long_s: float = 1.0
    """Counts and time of the last hour, faded."""

    scatter: float = 1.0
    """Variance of the counts over their mean, by the counts: less than 1 for regular requests."""

    batches: Batches = Batches()
    seen_s: float = 0.0
    """How long counts were seen."""

    @property
    def dispersion(self) -> float:
        """Variance of the counts over their mean: above 1 for batches, below for regular ones."""
        return 2.0 * self.batches.mean - 1.0 if self.batches.pairs > 0.0 else min(self.scatter, 1.0)

    @property
    def mean_per_s(self) -> float:
        """The expected rate; 0 before anything was observed."""
        return _mean_per_s(self, None)

    @property
    def variance(self) -> float:
        """Variance of the rate, the disagreement of the runs included."""
        mean = self.mean_per_s
        return math.fsum(
            run.weight * (run.shape / run.seconds**2 + (run.mean_per_s - mean) ** 2)
            for run in self.runs
        )

    def points(self) -> tuple[float, ...]:
        """Return five rates of equal probability, from the least to the greatest."""
        mean = self.mean_per_s
        if mean <= 0.0:
            return (0.0,) * len(Z)
        ninth = self.variance / mean**2 / 9.0
        roots = (1.0 - ninth + z * math.sqrt(ninth) for z in Z)
        return tuple(mean * max(root, 0.0) ** 3 for root in roots)

    def update(self, count: float, period_s: float, together: Together | None = None) -> Rate:
        """Return the estimate after a period.

        Args:
            count: Requests that came; of a replay with a fluid, any number.
            period_s: Length of the period, above 0.
            together: What is known of those that came together, if anything is.
        """
        # Nobody sees a rate change within a few requests.
        long_per_s = self.long_count / self.long_s
        few_s = LEAST_REQUESTS * self.batches.mean / long_per_s
        lasts_s = min(max(CHANGES_S, few_s), LONG_S)
        # After hours without a request, one that comes is news all the same.
        fresh_s = min(LONG_SHARE / long_per_s, FRESH_S)
        fresh = Run(shape=LONG_SHARE, seconds=fresh_s, weight=-math.expm1(-period_s / lasts_s))
        stays = math.exp(-period_s / lasts_s) if self.runs else 0.0
        kept, long_kept = math.exp(-period_s / (FADES * lasts_s)), math.exp(-period_s / LONG_S)
        runs = [fresh, *(replace(run, weight=run.weight * stays) for run in self.runs)]
        dispersion = max(self.dispersion, 1.0)
        logs = [
            (math.log(run.weight) + _log_likelihood(run, count, period_s) / dispersion, run)
            for run in runs
            if run.weight > 0.0
        ]
        most = max(log for log, _ in logs)
        heard = [(math.exp(log - most), run) for log, run in logs if log - most > LEAST_LOG]
        best = heapq.nlargest(MOST_RUNS, heard, key=lambda each: each[0])
        total = math.fsum(worth for worth, _ in best)
        return Rate(
            runs=tuple(
                Run(
                    shape=max(kept * run.shape, LEAST_SHAPE) + count / dispersion,
                    seconds=kept * run.seconds + period_s / dispersion,
                    weight=worth / total,
                )
                for worth, run in best
            ),
            long_count=max(long_kept * self.long_count + count, 1e-3),
            long_s=long_kept * self.long_s + period_s,
            scatter=self._scatter(count, period_s),
            batches=self.batches.update(together, long_per_s * period_s, period_s),
            seen_s=self.seen_s + period_s,
        )

    def _scatter(self, count: float, period_s: float) -> float:
        """Return the scatter after a count, beside what was expected of random arrivals."""
        if not self.runs:
            return self.scatter
        expected = max(self.mean_per_s * period_s, LEAST_MEAN)
        # What is not known of the rate is no scatter of the counts.
        variance = expected + self.variance * period_s**2
        seen = min((count - expected) ** 2 / variance, MOST_SIGMA**2 * max(self.scatter, 1.0))
        lasting = -math.expm1(-period_s / max(SCATTER_S, LEAST_COUNTS * period_s))
        new = max(period_s / (self.seen_s + period_s + FIRST_S), lasting)
        return (1.0 - new) * self.scatter + new * seen


def _log_likelihood(run: Run, count: float, period_s: float) -> float:
    """Return the logarithm of the probability of a count, but for a term that all runs share."""
    together_s = run.seconds + period_s
    return (
        math.lgamma(run.shape + count)
        - math.lgamma(run.shape)
        + run.shape * math.log(run.seconds / together_s)
        + count * math.log(period_s / together_s)
    )


@last_asked
def _mean_per_s(rate: Rate, _what: None) -> float:
    return math.fsum(run.weight * run.shape / run.seconds for run in rate.runs)
