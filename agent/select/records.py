"""What share of the answers came in time, beside what was predicted.

Queueing theory knows random arrivals and one server. Requests that come in other ways, a client
that waits for its answers, or a slow disk are not in it. So a record is kept of how far off the
predictions were, on the scale on which shares add up, and it corrects the next ones: those of all
variants alike, so that a faster one is never said to be later than a slower one.

Rules:
- Pure: counts in, the next record out.
- What was long not seen is uncertain again.

Source:
    A logistic model with a normal prior, updated by one step of Newton's method: Glickman,
    Parameter Estimation in Large Dynamic Paired Comparison Experiments (Applied Statistics, 1999).
    The correction of a prediction by its logit: Platt (1999).
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

PRIOR_VARIANCE: Final = 1.0
"""Of the logit: a prediction of 0.95 may as well be 0.88 or 0.98."""

DRIFT_PER_S: Final = 1.0 / 3600.0
"""Variance per second: after an hour the first uncertainty is back."""

MOST_VARIANCE: Final = 1.0
ALIKE: Final = 0.25
"""Answers of one period share their fate: four count as one that is independent."""

LEAST_SHARE: Final = 0.002
"""A prediction is never surer than this."""

MOST_OFF: Final = 3.0


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """How far predictions are off."""

    off: float = 0.0
    """Logit of what came in time less that of what was predicted."""

    variance: float = PRIOR_VARIANCE

    def corrected(self, share: float) -> float:
        """Return a predicted share in time as the record corrects it.

        Args:
            share: As predicted, 0 to 1.
        """
        return share if share <= 0.0 else _share(_logit(share) + self.off)

    def update(self, predicted: float, in_time: float, answered: float, period_s: float) -> Record:
        """Return the record after a period.

        Args:
            predicted: The share in time that was predicted, not corrected.
            in_time: Answers in time.
            answered: All answers.
            period_s: Length of the period.
        """
        variance = min(self.variance + DRIFT_PER_S * period_s, MOST_VARIANCE)
        if answered <= 0.0:
            return msgspec.structs.replace(self, variance=variance)
        expected = _share(_logit(predicted) + self.off)
        weight = answered if answered < 1.0 else 1.0 + ALIKE * (answered - 1.0)
        variance = 1.0 / (1.0 / variance + weight * expected * (1.0 - expected))
        off = self.off + variance * weight * (in_time / answered - expected)
        return Record(off=min(max(off, -MOST_OFF), MOST_OFF), variance=variance)


def _logit(share: float) -> float:
    bounded = min(max(share, LEAST_SHARE), 1.0 - LEAST_SHARE)
    return math.log(bounded / (1.0 - bounded))


def _share(logit: float) -> float:
    return 1.0 / (1.0 + math.exp(-logit))
