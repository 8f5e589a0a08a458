"""Two variants on the same samples: is one really better, and by how much at most?

Only samples on which one is right and the other wrong say anything. That makes the comparison much
sharper than that of two accuracies each with its own interval.

Rules:
- Nothing here loads NumPy: the counts of four kinds of samples are all that is needed.

Source:
    McNemar's exact conditional test, and the interval of Bonett and Price, "Adjusted Wald
    Confidence Interval for a Difference of Binomial Proportions Based on Paired Data", Journal of
    Educational and Behavioral Statistics 37 (2012), 479-488; both as recommended by Fagerland,
    Lydersen and Laake, "Recommended tests and confidence intervals for paired binomial
    proportions", Statistics in Medicine 33 (2014), 2850-2875.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import NormalDist
from typing import Final

import msgspec

CONFIDENCE: Final = 0.95


class Paired(msgspec.Struct, frozen=True, kw_only=True):
    """How two variants compare."""

    samples: int
    first_only: int
    """Samples on which only the first is right."""

    second_only: int
    difference: float
    """Accuracy of the first less that of the second."""

    low: float
    high: float
    """Bounds of the difference, with the confidence that was asked for."""

    p_value: float
    """How probable so unequal counts are between variants that are equally good."""


def compare_paired(
    first: Iterable[bool], second: Iterable[bool], *, confidence: float = CONFIDENCE
) -> Paired:
    """Compare two variants.

    Args:
        first: For each sample, whether the first variant is right.
        second: The same for the second, in the same order.
        confidence: Of the interval.

    Returns:
        The comparison.

    Raises:
        ValueError: No samples, or not as many for both.
    """
    pairs = [(bool(one), bool(other)) for one, other in zip(first, second, strict=True)]
    first_only = sum(one and not other for one, other in pairs)
    second_only = sum(other and not one for one, other in pairs)
    return paired(first_only, second_only, len(pairs), confidence=confidence)


def paired(
    first_only: int, second_only: int, samples: int, *, confidence: float = CONFIDENCE
) -> Paired:
    """Compare two variants by their counts.

    Args:
        first_only: Samples on which only the first is right.
        second_only: Samples on which only the second is right.
        samples: All samples.
        confidence: Of the interval.

    Returns:
        The comparison.

    Raises:
        ValueError: No samples, or more unlike answers than samples.
    """
    if samples < 1 or first_only + second_only > samples:
        raise ValueError(f"{first_only} and {second_only} unlike answers of {samples} samples")
    ours, theirs = (first_only + 1) / (samples + 2), (second_only + 1) / (samples + 2)
    centre = ours - theirs
    spread = math.sqrt((ours + theirs - centre**2) / (samples + 2))
    reach = NormalDist().inv_cdf((1 + confidence) / 2) * spread
    return Paired(
        samples=samples,
        first_only=first_only,
        second_only=second_only,
        difference=(first_only - second_only) / samples,
        low=max(-1.0, centre - reach),
        high=min(1.0, centre + reach),
        p_value=_exact_p(min(first_only, second_only), first_only + second_only),
    )


def _exact_p(fewer: int, unlike: int) -> float:
    """Return twice the probability of at most `fewer` heads in `unlike` fair tosses, at most 1."""
    ways = total = 1
    for heads in range(fewer):
        ways = ways * (unlike - heads) // (heads + 1)
        total += ways
    share: float = 2 * total / (1 << unlike)
    return min(1.0, share)
