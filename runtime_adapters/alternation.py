"""How slow one model is beside another: both run in turn until the ratio of their times is known.

Rules:
- What slows the machine down for a while slows both models, so it leaves the ratio alone. Each pair
  gives one ratio, of the medians of two short blocks; the pairs begin with either model in turn.
- The first inference of a block does not count: the other model has just emptied the caches.
- The range of the ratio assumes nothing about how times scatter. It is looked at whenever the
  number of pairs has doubled, so that looking does not choose a lucky moment.

Source:
    H. A. David, H. N. Nagaraja, Order Statistics (2003), 7.1: a confidence interval of a median
    between two order statistics, by the binomial distribution.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Final

from wire.clock import Clock
from wire.package.performance import LATENCY_TOLERANCE, Relative

BLOCK_S: Final = 0.01
MAX_BLOCK_RUNS: Final = 1000
MOST_PAIRS: Final = 512
FIRST_LOOK_PAIRS: Final = 8
ALPHA: Final = 0.05
"""Probability that the range does not hold the ratio."""

DIGITS: Final = 4


def alternate(
    ours: Callable[[], object],
    theirs: Callable[[], object],
    *,
    reference: str,
    most_s: float,
    clock: Clock,
) -> Relative | None:
    """Run two models in turn until the ratio of their latencies is known well enough.

    Args:
        ours: Runs the one model once.
        theirs: Runs the other one once.
        reference: The other one's runtime.
        most_s: When to stop, in seconds, if the ratio is still not known well.
        clock: The source of time.

    Returns:
        The ratio with its range; None if there were too few pairs for a range.
    """
    deadline_s = clock.monotonic_s() + most_s
    runs = [_runs(one, clock) for one in (ours, theirs)]
    ratios: list[float] = []
    look = FIRST_LOOK_PAIRS
    while len(ratios) < MOST_PAIRS and clock.monotonic_s() < deadline_s:
        if len(ratios) % 2:
            second = _block(theirs, runs[1], clock)
            first = _block(ours, runs[0], clock)
        else:
            first = _block(ours, runs[0], clock)
            second = _block(theirs, runs[1], clock)
        ratios.append(first / second)
        if len(ratios) >= look:
            if is_narrow(range_of_median(ratios)):
                break
            look *= 2
    found = range_of_median(ratios)
    if found is None:
        return None
    return Relative(
        reference=reference,
        ratio=round(statistics.median(ratios), DIGITS),
        low=round(found[0], DIGITS),
        high=round(found[1], DIGITS),
        pairs=len(ratios),
    )


def range_of_median(values: list[float]) -> tuple[float, float] | None:
    """Return the range in which the median lies with a probability of `1 - ALPHA` at least.

    Args:
        values: Independent values of one distribution.

    Returns:
        The lower and the upper end; None for fewer than six values, which have no such range.
    """
    ordered, count = sorted(values), len(values)
    # P(at most k of n values are below the median) = sum of C(n, i) / 2^n for i up to k.
    outside, left_out = 0.0, 0
    while left_out < count / 2:
        outside += 2 * math.comb(count, left_out) / 2**count
        if outside > ALPHA:
            break
        left_out += 1
    if left_out == 0:
        return None
    return ordered[left_out - 1], ordered[count - left_out]


def is_narrow(found: tuple[float, float] | None) -> bool:
    """Tell whether a range is narrow enough to compare variants by it."""
    return found is not None and found[1] <= found[0] * (1.0 + LATENCY_TOLERANCE)


def _runs(one: Callable[[], object], clock: Clock) -> int:
    """Return how many inferences fill a block."""
    one()
    began_s = clock.monotonic_s()
    one()
    taken_s = max(clock.monotonic_s() - began_s, BLOCK_S / MAX_BLOCK_RUNS)
    return max(1, round(BLOCK_S / taken_s))


def _block(one: Callable[[], object], runs: int, clock: Clock) -> float:
    """Return the median time of a block of inferences, in seconds."""
    one()
    taken_s: list[float] = []
    for _ in range(runs):
        before_s = clock.monotonic_s()
        one()
        taken_s.append(clock.monotonic_s() - before_s)
    return max(statistics.median(taken_s), 1e-9)
