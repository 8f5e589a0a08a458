"""Confidence bounds of a variant's figures of quality, and the samples that a gate needs. Pure.

Rules:
- What no sample showed may happen all the same: of n samples none of which lost anything, no more
  follows than that less than z^2 / n of what devices will see is lost. So every range, whatever the
  metric, has what Wilson's has for right and wrong answers: z^2 more samples, half of them lost.
- Both models answer the same samples, so every interval is that of paired data.
- Each bound holds with `1 - ALPHA / k`, where `k` is the number of compared candidates, times that
  of the metrics. Then all of them hold together with `1 - ALPHA`, whichever candidate looks best
  (Bonferroni's inequality).
- Bounds are rounded, so that the last bit of a sum decides nothing on another processor.

Source:
    O. J. Dunn, "Multiple comparisons among means", JASA 56 (1961), 52-64: simultaneous intervals by
    Bonferroni's inequality.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Final

from packager.judge.metrics import AGREEMENT, MAX_RETENTION
from packager.plan.figures import ABSOLUTE_FLOOR, Comparison, Evidence, FurtherComparison
from wire.package.accuracy import Accuracy, Certainty, FurtherAccuracy

ALPHA: Final = 0.05
"""Probability that chance makes any of a build's lower bounds of a figure too high."""

ROUNDING: Final = 1e-9
"""What a share may be off by the rounding of floats."""

POWER: Final = 0.8
"""Probability with which as many samples as a gate asks for show that it passes, if it does."""

MOST_SAMPLES: Final = 1_000_000
"""A gate that needs more says that it needs so many."""

FLOAT32_SQNR_DB: Final = 100.0
"""Sums of float32 in another order are some 120 to 140 dB above their noise, float16 some 70 dB."""

FLOAT32_ROUNDING: Final = 1e-5
"""Share of the greatest output: what sums of some 25,000 products differ by in another order, as in
a random walk of steps of 2^-24."""

DIGITS: Final = 6
_HALVINGS: Final = 60
_SHOWN: Final = 1e4
_EXACT_DEGREES: Final = 200


def certainty(
    comparison: Comparison | FurtherComparison,
    *,
    compared: int,
    gates: int = 1,
    least_retention: float,
    most_disagreement: float | None,
    same: bool = False,
) -> Certainty:
    """Return the bounds of a variant's figures, and the samples that its gates would need.

    Args:
        comparison: The variant beside the reference.
        compared: Number of candidates that one is chosen from.
        gates: Number of the gates of retention that each must pass: one for each metric.
        least_retention: The gate of retention.
        most_disagreement: The gate of disagreement; None for none.
        same: Whether the variant computes what the reference does; then no sample need show that it
            passes.

    Returns:
        The bounds.
    """
    accuracy, evidence = comparison.accuracy, comparison.evidence
    confidence = 1.0 - ALPHA / (max(compared, 1) * gates)
    retention = _retention(accuracy, evidence, confidence)
    agreement: tuple[float | None, float | None] = (None, None)
    if evidence.agreed is not None:
        agreement = wilson(evidence.agreed, accuracy.samples, confidence)
    needed = 0
    if not same:
        needed = _needed_for_retention(accuracy, evidence, confidence, least_retention)
        if evidence.agreed is not None and most_disagreement is not None:
            agreed, samples = evidence.agreed, accuracy.samples

            def low_agreed(factor: float) -> float:
                differ = _unlucky(samples - agreed, factor)
                return wilson(factor * samples - differ, factor * samples, confidence)[0]

            needed = max(
                needed,
                needed_samples(
                    low_agreed,
                    1.0 - most_disagreement,
                    samples,
                ),
            )
    low, high = (None, None) if retention is None else retention
    return Certainty(
        retention_low=_rounded(low),
        retention_high=_rounded(high),
        agreement_low=_rounded(agreement[0]),
        agreement_high=_rounded(agreement[1]),
        confidence=round(confidence, DIGITS),
        compared=max(compared, 1),
        samples_needed=needed,
    )


def computes_the_same(comparison: Comparison) -> bool:
    """Tell whether answers differ from the reference's by no more than the rounding of float32."""
    noise_db = comparison.accuracy.sqnr_db
    close = all(
        error <= ABSOLUTE_FLOOR + FLOAT32_ROUNDING * comparison.greatest.get(name, 0.0)
        for name, error in comparison.worst_errors.items()
    )
    return close and (noise_db is None or noise_db >= FLOAT32_SQNR_DB)


def wilson(successes: float, trials: float, confidence: float) -> tuple[float, float]:
    """Return the bounds of a probability.

    Args:
        successes: How often it happened.
        trials: How often it could.
        confidence: The probability with which each bound holds.

    Returns:
        The lower and the upper bound.

    Source:
        E. B. Wilson, "Probable inference, the law of succession, and statistical inference", JASA
        22 (1927), 209-212.
    """
    z2 = NormalDist().inv_cdf(confidence) ** 2
    share = successes / trials
    middle = share + z2 / (2 * trials)
    half = math.sqrt(z2 * (share * (1 - share) + z2 / (4 * trials)) / trials)
    whole = 1 + z2 / trials
    return max((middle - half) / whole, 0.0), min((middle + half) / whole, 1.0)


def ratio_of_right(
    right: tuple[float, float, float, float], confidence: float
) -> tuple[float, float]:
    """Return the bounds of the ratio of two models' shares of right answers to the same samples.

    Args:
        right: How many samples both models answer rightly, only the variant, only the reference,
            and neither.
        confidence: The probability with which each bound holds.

    Returns:
        The lower and the upper bound, at most `MAX_RETENTION`.

    Source:
        J. Nam, W. C. Blackwelder, "Analysis of the ratio of marginal probabilities in a
        matched-pair setting", Statistics in Medicine 21 (2002), 689-699: the score interval, with
        the variance at the constrained maximum of the likelihood.
    """
    both, ours, theirs, _ = right
    if both + theirs == 0:
        return 0.0, MAX_RETENTION
    wanted = NormalDist().inv_cdf(confidence)
    best = (both + ours) / (both + theirs)
    low = _bisected(lambda ratio: ratio_score(right, ratio) > wanted, 0.0, best) if best else 0.0
    high = MAX_RETENTION
    if best < MAX_RETENTION:
        high = _bisected(lambda ratio: ratio_score(right, ratio) > -wanted, best, MAX_RETENTION)
    return min(low, MAX_RETENTION), high


def ratio_score(right: tuple[float, float, float, float], ratio: float) -> float:
    """Return by how many standard deviations the counts contradict a ratio of right answers.

    Args:
        right: As for `ratio_of_right`.
        ratio: The assumed ratio, above 0.

    Returns:
        The score; positive where the counts speak for a larger ratio.
    """
    both, ours, theirs, _ = right
    known = both + ours + theirs
    # The most likely share of "only the variant is right" if the ratio is the assumed one.
    middle = (both + ours) * (ratio**2 - 1) + (ours + theirs) * ratio**2
    square = 4 * ratio * (1 + ratio) * known * ours * ratio * (ratio - 1)
    only = (middle + math.sqrt(max(middle**2 - square, 0.0))) / (2 * ratio * (1 + ratio) * known)
    only = max(only, 0.0, (ratio - 1) / ratio)
    variance = ratio * known * (only * (1 + ratio) - (ratio - 1))
    gain = (both + ours) - ratio * (both + theirs)
    if variance <= 0:
        return math.copysign(math.inf, gain) if gain else 0.0
    return gain / math.sqrt(variance)


def mean_kept(
    retention: float, half: float, samples: float, confidence: float
) -> tuple[float, float]:
    """Return the bounds of a retention to which each sample adds what it keeps, mostly 0 to 1.

    It is Wilson's interval with the variance that was observed in place of that of right and wrong
    answers, so that both are the same where each sample keeps all or nothing. Where none loses
    anything, the lower bound is `n / (n + z^2)` and not 1.

    Args:
        retention: The mean.
        half: The standard error times the quantile for the confidence.
        samples: Number of samples of equal weight.
        confidence: The probability with which each bound holds.

    Returns:
        The lower and the upper bound, at most `MAX_RETENTION`.

    Source:
        E. B. Wilson (1927), as for `wilson`; J. A. Hanley, A. Lippman-Hand, "If nothing goes wrong,
        is everything all right?", JAMA 249 (1983), 1743-1745, for samples without a loss.
    """
    unseen = NormalDist().inv_cdf(confidence) ** 2 / samples
    spread = math.sqrt(half**2 + unseen**2 / 4)
    kept = min(retention, 1.0)
    low = (kept + unseen / 2 - spread) / (1 + unseen)
    high = (kept + unseen / 2 + spread) / (1 + unseen)
    return (
        max(min(low, retention - half), 0.0),
        min(max(high, retention + half), MAX_RETENTION),
    )


def student(confidence: float, degrees: int) -> float:
    """Return a quantile of Student's t distribution.

    Args:
        confidence: The probability below it, at least one half.
        degrees: The degrees of freedom, at least 1.

    Returns:
        The quantile.

    Source:
        M. Abramowitz, I. A. Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4 (exact),
        26.7.5 (for many degrees of freedom).
    """
    z = NormalDist().inv_cdf(confidence)
    if degrees > _EXACT_DEGREES:
        first = (z**3 + z) / (4 * degrees)
        second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
        return z + first + second
    angle = _bisected(lambda a: _between(a, degrees) < 2 * confidence - 1, 0.0, math.pi / 2)
    return math.sqrt(degrees) * math.tan(angle)


def needed_samples(low: Callable[[float], float], least: float, samples: int) -> int:
    """Return about how many samples would show that a figure passes, if it stays as it is.

    Args:
        low: The lower bound if there were this many times as many samples, and they lost as much
            more by chance as is exceeded with one minus `POWER`.
        least: What it must reach.
        samples: How many there are.

    Returns:
        The number, rounded up to two digits; 0 if the samples suffice, `MOST_SAMPLES` if even those
        would not.
    """
    if low(1.0) >= least:
        return 0
    most = MOST_SAMPLES / samples
    if most <= 1.0 or low(most) < least:
        return MOST_SAMPLES
    factor = _bisected(lambda f: low(f) < least, 1.0, most)
    needed = math.ceil(factor * samples)
    unit: int = 10 ** max(len(str(needed)) - 2, 0)
    return min(-(-needed // unit) * unit, MOST_SAMPLES)


def _retention(
    accuracy: Accuracy | FurtherAccuracy, evidence: Evidence, confidence: float
) -> tuple[float, float] | None:
    """Return the bounds of the retention; None where the samples give none."""
    if evidence.right is not None:
        if accuracy.metric == AGREEMENT:  # the reference agrees with itself, whatever the sample
            return wilson(evidence.right[0], accuracy.samples, confidence)
        return ratio_of_right(evidence.right, confidence)
    if evidence.standard_error is None:
        return None
    return mean_kept(
        accuracy.retention,
        student(confidence, evidence.degrees) * evidence.standard_error,
        evidence.equal_samples or accuracy.samples,
        confidence,
    )


def _needed_for_retention(
    accuracy: Accuracy | FurtherAccuracy, evidence: Evidence, confidence: float, least: float
) -> int:
    if evidence.right is None and evidence.standard_error is None:
        return MOST_SAMPLES

    def low(factor: float) -> float:
        if evidence.right is not None:
            both, ours, theirs, neither = evidence.right
            lost = _unlucky(theirs, factor)
            if accuracy.metric == AGREEMENT:
                whole = factor * accuracy.samples
                agreed = whole - _unlucky(accuracy.samples - both, factor)
                return wilson(agreed, whole, confidence)[0]
            kept = factor * (both + theirs) - lost
            return ratio_of_right((kept, factor * ours, lost, factor * neither), confidence)[0]
        error = (evidence.standard_error or 0.0) / math.sqrt(factor)
        luck = 0.0 if factor == 1.0 else NormalDist().inv_cdf(POWER) * error
        return mean_kept(
            accuracy.retention - luck,
            student(confidence, evidence.degrees) * error,
            factor * (evidence.equal_samples or accuracy.samples),
            confidence,
        )[0]

    return needed_samples(low, least, accuracy.samples)


def _unlucky(losses: float, factor: float) -> float:
    """Return how many losses so many times as many samples may have, by chance too (Poisson)."""
    if factor == 1.0:
        return losses
    scaled = factor * losses
    return scaled + NormalDist().inv_cdf(POWER) * math.sqrt(scaled)


def _between(angle: float, degrees: int) -> float:
    """Return the probability between -t and t, where `tan(angle) = t / sqrt(degrees)`."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = degrees % 2
    term = cosine if odd else 1.0
    total = 0.0
    for number in range(2 + odd, degrees + 1, 2):
        total += term
        term *= cosine**2 * (number - 1) / number
    if odd:
        return 2 / math.pi * (angle + sine * total)
    return sine * total


def _bisected(below: Callable[[float], bool], low: float, high: float) -> float:
    """Return where a condition that holds for small numbers ends."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return (low + high) / 2


def rounded_down(low: float) -> str:
    """Return a lower bound with four decimals, which it is at least."""
    return f"{math.floor(low * _SHOWN) / _SHOWN:.4f}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)
