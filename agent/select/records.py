"""What share of the answers came in time, beside what was predicted.

Queueing theory knows random arrivals and one server. Requests that come in other ways, a client
that waits for its answers, or a slow disk are not in it. So a record is kept of how far off the
predictions were, on the scale on which shares add up, and it corrects the next ones: those of all
variants alike, so that a faster one is never said to be later than a slower one.

Rules:
- Pure: counts in, the next record out.
- What was long not seen is uncertain again.

Source:
    The correction of a prediction by a line of its logit: Platt, Probabilistic Outputs for Support
    Vector Machines (1999). A logistic model with a normal prior, of which each period's answers
    give the most likely next one: Glickman, Parameter Estimation in Large Dynamic Paired Comparison
    Experiments (Applied Statistics, 1999). Answers that share
    their fate: Kish, Survey Sampling (1965). The way back to the prior: Uhlenbeck and Ornstein,
    On the Theory of the Brownian Motion (1930).
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from agent.select.kalman import Line

OFF_VARIANCE: Final = 1.0
"""Of the logit, at even odds."""

STEEP_VARIANCE: Final = 0.1
"""Of the slope: how far off predictions near 0 and 1 are says little of those between."""

LASTS_S: Final = 3600.0
"""With this time constant the record goes back to the prior, in its mean and in its variance."""

ALIKE: Final = 0.1
"""Correlation of the answers of one period, which share their fate."""

STEEP: Final = (0.5, 2.0)
"""Bounds of the slope: whatever was seen, a better prediction is a better one."""

LEAST_SHARE: Final = 0.002
"""A prediction is never surer than this."""

STEPS: Final = 40
"""Halvings of the interval in which the next logit is sought."""

MOST_LOGIT: Final = 30.0
LEAST_TOLD: Final = 1e-9
PRIOR: Final = Line(base=0.0, slope=1.0, base_variance=OFF_VARIANCE, slope_variance=STEEP_VARIANCE)


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """How far predictions are off."""

    line: Line = PRIOR
    """The logit of what comes in time, over that of what was predicted."""

    def corrected(self, share: float) -> float:
        """Return a predicted share in time as the record corrects it.

        Args:
            share: As predicted, 0 to 1.
        """
        return share if share <= 0.0 else _share(self.line.at(_logit(share)))

    def update(self, predicted: float, in_time: float, answered: float, period_s: float) -> Record:
        """Return the record after a period.

        Args:
            predicted: The share in time that was predicted, not corrected.
            in_time: Answers in time.
            answered: All answers.
            period_s: Length of the period.
        """
        line = _faded(self.line, period_s)
        if answered <= 0.0:
            return Record(line=line)
        weight = answered / (1.0 + ALIKE * max(answered - 1.0, 0.0))
        x = _logit(predicted)
        before, variance = line.at(x), line.variance_at(x)
        after = _most_likely(before, variance, weight, min(in_time / answered, 1.0))
        share = _share(after)
        noise = 1.0 / max(weight * share * (1.0 - share), LEAST_TOLD)
        measured = before + (after - before) * (variance + noise) / variance
        line = line.update(x, measured, gain=1.0, noise=noise)
        low, high = STEEP
        return Record(line=msgspec.structs.replace(line, slope=min(max(line.slope, low), high)))


def _faded(line: Line, period_s: float) -> Line:
    kept = math.exp(-period_s / LASTS_S)
    gone = 1.0 - kept**2
    return Line(
        base=PRIOR.base + kept * (line.base - PRIOR.base),
        slope=PRIOR.slope + kept * (line.slope - PRIOR.slope),
        base_variance=kept**2 * line.base_variance + gone * PRIOR.base_variance,
        slope_variance=kept**2 * line.slope_variance + gone * PRIOR.slope_variance,
        covariance=kept**2 * line.covariance,
    )


def _most_likely(before: float, variance: float, weight: float, share: float) -> float:
    """Return the logit with the greatest posterior density after so many answers."""
    # The density's slope falls all the way, from above zero at one end to below it at the other.
    low = before - variance * weight * (1.0 - share)
    high = before + variance * weight * share
    for _ in range(STEPS):
        middle = 0.5 * (low + high)
        if (before - middle) / variance + weight * (share - _share(middle)) > 0.0:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def _logit(share: float) -> float:
    bounded = min(max(share, LEAST_SHARE), 1.0 - LEAST_SHARE)
    return math.log(bounded / (1.0 - bounded))


def _share(logit: float) -> float:
    return 1.0 / (1.0 + math.exp(-max(min(logit, MOST_LOGIT), -MOST_LOGIT)))
