"""Confidence intervals of means and of ratios of means, by the bootstrap.

Rules:
- Pure: the generator has a fixed seed.

Source:
    Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13: percentile intervals.
    The draws are resampled as pairs where two policies are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

RESAMPLES: Final = 2000
TAIL_PERCENT: Final = 2.5
SEED: Final = 1


class Interval(NamedTuple):
    """A value and the interval that holds it with 95 % confidence."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:.3g} to {self.high:.3g}"


def of_mean(values: Sequence[float]) -> Interval:
    """Return the mean of values, at least one, with its interval.

    Args:
        values: One for each draw.
    """
    known = np.asarray(values, dtype=float)
    means = known[_picks(len(known))].mean(axis=1)
    return _interval(float(known.mean()), means)


def of_ratio(values: Sequence[float], others: Sequence[float]) -> Interval:
    """Return the mean of values over that of others, with its interval.

    Args:
        values: One for each draw.
        others: Of the same draws.
    """
    above, below = np.asarray(values, dtype=float), np.asarray(others, dtype=float)
    picks = _picks(len(above))
    tiny = np.finfo(float).tiny
    ratios = above[picks].mean(axis=1) / np.maximum(below[picks].mean(axis=1), tiny)
    return _interval(float(above.mean() / max(below.mean(), tiny)), ratios)


def _picks(count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.random.default_rng(SEED).integers(0, count, size=(RESAMPLES, count))


def _interval(
    value: float, resampled: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
) -> Interval:
    low, high = np.percentile(resampled, [TAIL_PERCENT, 100.0 - TAIL_PERCENT])
    return Interval(value, float(low), float(high))
