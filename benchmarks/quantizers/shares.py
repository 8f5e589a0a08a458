"""The difference of two qualities on the same samples, with its interval.

Where each sample is answered right or wrong, it is that of `paired`. Where a sample counts in part,
such as the characters of a line, the samples are drawn again with replacement, always both tools'
answers to a sample together.

Source:
    Efron and Tibshirani, "An Introduction to the Bootstrap" (1993), chapter 13: the percentile
    interval.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from benchmarks.quantizers.paired import CONFIDENCE, compare_paired
from benchmarks.quantizers.qualities import Part, total

DRAWS: Final = 4000
AT_ONCE: Final = 50
"""Draws of one block, which divides their number; few enough for the processor's cache."""

SEED: Final = 20240229


class Difference(NamedTuple):
    """The first one's quality less that of the second one."""

    value: float
    low: float
    high: float
    p_value: float | None
    """Of McNemar's test; None where samples count in part."""


def difference(first: list[Part], second: list[Part]) -> Difference:
    """Compare two variants.

    Args:
        first: For each sample, what counts of the first variant's answer and how much can count.
        second: The same for the second, in the same order.

    Returns:
        The difference.
    """
    if all(part in {(0.0, 1.0), (1.0, 1.0)} for part in (*first, *second)):
        found = compare_paired([bool(p[0]) for p in first], [bool(p[0]) for p in second])
        return Difference(found.difference, found.low, found.high, found.p_value)
    parts = np.hstack([first, second])
    rows = np.arange(AT_ONCE)[:, np.newaxis] * len(parts)
    rng = np.random.default_rng(SEED)
    drawn = np.empty(DRAWS)
    for begin in range(0, DRAWS, AT_ONCE):
        chosen = rng.integers(len(parts), size=(AT_ONCE, len(parts)))
        times = np.bincount((chosen + rows).ravel(), minlength=AT_ONCE * len(parts))
        right, all_, others_right, others_all = (times.reshape(AT_ONCE, -1) @ parts).T
        drawn[begin : begin + AT_ONCE] = right / all_ - others_right / others_all
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Difference(total(first) - total(second), float(low), float(high), None)
