"""Compares two variants by their figures: which one beats the other, and how well it stands for it.

Rules:
- One variant beats another if it is at least as good in quality, by every metric of the build, in
  latency, peak memory and size, and better in one of them. Of latency, memory and size, differences
  within a tolerance do not count.
- Without a measured latency a variant neither beats nor is beaten.
- Latencies are compared by their ratios to that of the unchanged model, which were measured in turn
  with it. Where a ratio is not sure, only a variant whose whole range is below counts as as fast.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from packager.errors import QualityGateError
from packager.judge.further import kept_shares
from packager.judge.metrics import quality
from wire.package.accuracy import Accuracy
from wire.package.performance import LATENCY_TOLERANCE, Performance
from wire.package.variant import Variant

MEMORY_TOLERANCE: Final = 0.03
SIZE_TOLERANCE: Final = 0.01
"""Smaller differences are measurement noise, or too small to keep a variant for."""

RETENTION_WEIGHT: Final = 10.0
"""When one variant stands for another, a point of retention counts as much as 10 % of a cost."""

TOLERANCES: Final = (
    f"{LATENCY_TOLERANCE:.0%} of latency, {MEMORY_TOLERANCE:.0%} of memory and "
    f"{SIZE_TOLERANCE:.0%} of size count as equal"
)

LEAST_MS: Final = 1e-6
MIB: Final = 1024**2


class Span(NamedTuple):
    """A latency with its range; what was measured without a range has its value at both ends."""

    value: float
    low: float
    high: float

    @property
    def is_sure(self) -> bool:
        """Whether it is known well enough to be compared by its value."""
        return self.high <= self.low * (1 + LATENCY_TOLERANCE)


def spans(variants: Sequence[Variant]) -> list[Span]:
    """Return the latencies of measured variants in a common unit.

    Args:
        variants: They have measured latencies.

    Returns:
        Ratios to the unchanged model's latency, if all have one; else medians in milliseconds.
    """
    measured = [v.info.performance for v in variants if v.info.performance is not None]
    ratios = [p.relative for p in measured if p.relative is not msgspec.UNSET]
    if len(ratios) == len(variants) and len({ratio.reference for ratio in ratios}) == 1:
        return [Span(ratio.ratio, ratio.low, ratio.high) for ratio in ratios]
    return [Span(*3 * (p.latency_p50_ms,)) for p in measured]


def figures(variant: Variant) -> tuple[Accuracy, Performance | None]:
    """Return the figures of a variant.

    Args:
        variant: A candidate after its evaluation.

    Returns:
        Accuracy, and performance where it could be measured on the building machine.

    Raises:
        QualityGateError: It was not evaluated.
    """
    accuracy = variant.info.accuracy
    if accuracy is None:
        raise QualityGateError(f"{variant.name} was not evaluated")
    return accuracy, variant.info.performance


def worth(accuracy: Accuracy) -> float:
    """Return the quality by which variants are compared, at most that of the reference.

    If a quantized variant is better than its reference, that is chance.
    """
    return quality(accuracy) if accuracy.retention <= 1.0 else _ideal(accuracy)


def _ideal(accuracy: Accuracy) -> float:
    return quality(msgspec.structs.replace(accuracy, value=accuracy.reference))


def rank(variant: Variant) -> tuple[float, float, int, str]:
    """Return a sort key, the best first: quality, then latency, then memory."""
    accuracy, performance = figures(variant)
    if performance is None:
        return (-worth(accuracy), float("inf"), 0, variant.name)
    return (
        -worth(accuracy),
        performance.latency_p50_ms,
        performance.peak_memory_bytes,
        variant.name,
    )


def beats(one: Variant, other: Variant) -> bool:
    """Tell whether one is as good in everything and better in something, apart from noise."""
    (good, ours), (worse, theirs) = figures(one), figures(other)
    further = list(zip(kept_shares(good), kept_shares(worse), strict=True))
    if ours is None or theirs is None or worth(good) < worth(worse):
        return False
    if any(mine < yours for mine, yours in further):
        return False
    first, second = spans((one, other))
    latencies = (first.value, second.value)
    if not (first.is_sure and second.is_sure):
        # As fast only if the whole range is below: this takes back what the tolerance allows.
        latencies = (first.high * (1 + LATENCY_TOLERANCE), second.low)
    axes = (
        (*latencies, LATENCY_TOLERANCE),
        (ours.peak_memory_bytes, theirs.peak_memory_bytes, MEMORY_TOLERANCE),
        (one.info.size_bytes, other.info.size_bytes, SIZE_TOLERANCE),
    )
    if any(mine > yours * (1 + tolerance) for mine, yours, tolerance in axes):
        return False
    better = any(mine * (1 + tolerance) < yours for mine, yours, tolerance in axes)
    better = better or any(mine > yours for mine, yours in further)
    return better or worth(good) > worth(worse)


def remoteness(one: Variant, other: Variant, *, timed: bool) -> float:
    """Return how much worse one variant is than another where it is worst; 0.0 if nowhere.

    Args:
        one: The variant that would stand for the other.
        other: The other.
        timed: Whether latency and memory, as measured here, are those of the device.

    Returns:
        The logarithm of the ratio of a cost, or the lost retention times `RETENTION_WEIGHT`.

    Source:
        E. Zitzler et al., "Performance assessment of multiobjective optimizers", IEEE Transactions
        on Evolutionary Computation 7 (2003), 117-132: the multiplicative epsilon indicator.
    """
    (good, ours), (worse, theirs) = figures(one), figures(other)
    lost = min(worse.retention, 1.0) - min(good.retention, 1.0)
    pairs = zip(kept_shares(worse), kept_shares(good), strict=True)
    lost = max((lost, *(theirs - mine for theirs, mine in pairs)))
    costs = [(one.info.size_bytes, other.info.size_bytes)]
    if timed and ours is not None and theirs is not None:
        costs.append((ours.peak_memory_bytes, theirs.peak_memory_bytes))
        first, second = spans((one, other))
        times = math.log(max(first.value, LEAST_MS) / max(second.value, LEAST_MS))
    else:
        times = 0.0
    more = (math.log(max(mine, 1) / max(yours, 1)) for mine, yours in costs)
    return max(0.0, RETENTION_WEIGHT * lost, times, *more)


def defeat(winner: Variant, loser: Variant) -> str:
    """Say by which figures a variant beats another."""
    luck = ""
    if figures(loser)[0].retention > 1.0:
        luck = "; what is above the reference counts as chance"
    return (
        f"{winner.name} is as good in everything and better in something: "
        f"{beside(winner, loser)}; {TOLERANCES}{luck}"
    )


def beside(one: Variant, other: Variant, *, timed: bool = True) -> str:
    """Return the judged figures of one variant beside those of another."""
    (good, ours), (worse, theirs) = figures(one), figures(other)
    text = f"{good.metric} {good.value:.4f} against {worse.value:.4f}"
    if timed and ours is not None and theirs is not None:
        first, second = spans((one, other))
        ratios = ours.relative is not msgspec.UNSET and first.value == ours.relative.ratio
        unit = " times the reference's latency" if ratios else " ms"
        text += (
            f", {first.value:.3f} against {second.value:.3f}{unit}, "
            f"{ours.peak_memory_bytes / MIB:.0f} against {theirs.peak_memory_bytes / MIB:.0f} MiB"
        )
    return f"{text}, {one.info.size_bytes} against {other.info.size_bytes} B"


def latency_ms(variant: Variant) -> float:
    """Return the measured latency; infinite where there is none."""
    performance = variant.info.performance
    return performance.latency_p50_ms if performance else float("inf")
