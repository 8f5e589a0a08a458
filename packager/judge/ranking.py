"""Compares two variants by their figures: which is better, and which one beats the other. Pure.

Rules:
- One variant beats another if it is as good in everything and better in something, beyond noise.
- A variant that is many times slower is beaten, whatever it saves.
- Without a measured latency a variant neither beats nor is beaten.
"""

from __future__ import annotations

from typing import Final

import msgspec

from packager.errors import QualityGateError
from packager.judge.metrics import quality
from wire.package.manifest import Accuracy, Performance, Variant

LATENCY_TOLERANCE: Final = 0.05
MEMORY_TOLERANCE: Final = 0.03
SIZE_TOLERANCE: Final = 0.01
"""Smaller differences are measurement noise, or too small to keep a variant for."""

MAX_SLOWDOWN: Final = 4.0
"""A variant that is this many times slower than one of at least its quality is dropped, whatever
memory or disk it saves: nobody would use it, and every answer costs battery."""

MIB: Final = 1024**2


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
    if ours is None or theirs is None or worth(good) < worth(worse):
        return False
    if theirs.latency_p50_ms > MAX_SLOWDOWN * ours.latency_p50_ms:
        return True
    axes = (
        (ours.latency_p50_ms, theirs.latency_p50_ms, LATENCY_TOLERANCE),
        (ours.peak_memory_bytes, theirs.peak_memory_bytes, MEMORY_TOLERANCE),
        (one.info.size_bytes, other.info.size_bytes, SIZE_TOLERANCE),
    )
    if any(mine > yours * (1 + tolerance) for mine, yours, tolerance in axes):
        return False
    better = any(mine * (1 + tolerance) < yours for mine, yours, tolerance in axes)
    return better or worth(good) > worth(worse)


def defeat(winner: Variant, loser: Variant) -> str:
    """Say by which figures a variant beats another."""
    (good, fast), (worse, slow) = figures(winner), figures(loser)
    text = f"{winner.name} is better: {good.metric} {good.value:.4f} against {worse.value:.4f}"
    if fast is None or slow is None:
        return text
    return (
        f"{text}, {fast.latency_p50_ms:.3f} against {slow.latency_p50_ms:.3f} ms, "
        f"{fast.peak_memory_bytes / MIB:.0f} against {slow.peak_memory_bytes / MIB:.0f} MiB, "
        f"{winner.info.size_bytes} against {loser.info.size_bytes} B"
    )


def latency_ms(variant: Variant) -> float:
    """Return the measured latency; infinite where there is none."""
    performance = variant.info.performance
    return performance.latency_p50_ms if performance else float("inf")
