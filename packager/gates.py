"""Which candidates go into the package: gates first, then what no other candidate beats.

Pure: figures in, verdicts with reasons out.

Rules:
- A gate that a candidate fails is named with the figure; nothing is dropped in silence.
- The float reference variant is kept wherever it passes: a device falls back to it.
- Latency says nothing about another architecture than the one it was measured on, so there no
  candidate is dropped for being beaten.
- A profile without any variant is a failed build.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from packager.errors import QualityGateError
from wire.manifest import Accuracy, Performance, Variant
from wire.profile import DeviceProfile

LATENCY_TOLERANCE: Final = 0.05
MEMORY_TOLERANCE: Final = 0.03
SIZE_TOLERANCE: Final = 0.01
"""Differences that measurement noise makes, or that nobody would keep a variant for."""

MIB: Final = 1024**2


class Gates(msgspec.Struct, frozen=True, kw_only=True):
    """What every variant must keep, whatever the profile."""

    min_retention: float = 0.99
    """Of the reference's metric; one point in a hundred is the usual bargain for int8."""

    max_size_bytes: int | None = None
    max_latency_ms: float | None = None
    """Median, on the machine that builds."""

    max_memory_bytes: int | None = None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a candidate for a profile."""

    kept: bool
    reason: str


class Miss(msgspec.Struct, frozen=True, kw_only=True):
    """A gate that was not passed."""

    text: str
    excess: float
    """How far off, as a share of the limit."""


Verdicts = dict[str, dict[str, Verdict]]
"""Profile to candidate to verdict."""


def judge(
    variants: tuple[Variant, ...],
    profiles: tuple[DeviceProfile, ...],
    gates: Gates,
    *,
    reference: str,
    architecture: str,
    keep: frozenset[str] = frozenset(),
) -> Verdicts:
    """Decide for every profile which variants it gets.

    Args:
        variants: Measured candidates; `info.profiles` says for which profiles each was planned.
        profiles: The profiles.
        gates: The limits.
        reference: Name of the variant that is always kept where it passes.
        architecture: Of the machine that measured, as `uname -m`.
        keep: Names of variants that are kept though others beat them.

    Returns:
        The verdicts.

    Raises:
        QualityGateError: A profile is left without any variant.
    """
    verdicts: Verdicts = {}
    for profile in profiles:
        planned = [v for v in variants if profile.name in v.info.profiles]
        missed = {v.name: miss for v in planned if (miss := _first_miss(v, profile, gates))}
        passed = [v for v in planned if v.name not in missed]
        if not passed:
            raise QualityGateError(
                _nearest(profile, missed), remedy="loosen the gate or the profile"
            )
        found = {name: Verdict(kept=False, reason=miss.text) for name, miss in missed.items()}
        pinned = keep | {reference}
        foreign = profile.architecture != architecture
        found |= _front(passed, pinned=pinned, foreign=foreign)
        verdicts[profile.name] = found
    return verdicts


def _front(passed: list[Variant], *, pinned: frozenset[str], foreign: bool) -> dict[str, Verdict]:
    """Keep the pinned and what none of the others beats, judging the worst first."""
    found: dict[str, Verdict] = {}
    remaining = sorted(passed, key=_rank)
    for variant in reversed(tuple(remaining)):
        winner = None
        if variant.name not in pinned and not foreign:
            winner = next((v for v in remaining if v is not variant and _beats(v, variant)), None)
        if winner is not None:
            remaining.remove(variant)
            found[variant.name] = Verdict(kept=False, reason=_defeat(winner, variant))
        else:
            unknown = foreign and variant.name not in pinned
            reason = "kept; its latency there is not known" if unknown else "kept"
            found[variant.name] = Verdict(kept=True, reason=reason)
    return found


def _first_miss(variant: Variant, profile: DeviceProfile, gates: Gates) -> Miss | None:
    """Return the gate that a variant misses by most; None when it passes all."""
    return max(_misses(variant, profile, gates), key=lambda miss: miss.excess, default=None)


def _misses(variant: Variant, profile: DeviceProfile, gates: Gates) -> Iterator[Miss]:
    accuracy, performance = figures(variant)
    if accuracy.retention < gates.min_retention:
        yield Miss(
            text=f"retention {accuracy.retention:.4f} < {gates.min_retention:.4f}",
            excess=gates.min_retention - accuracy.retention,
        )
    limits = (
        ("size", variant.info.size_bytes, gates.max_size_bytes, "B"),
        ("storage", variant.info.size_bytes, profile.storage_bytes, "B"),
        ("memory", performance.peak_memory_bytes, gates.max_memory_bytes, "B"),
        ("memory", variant.info.requirements.memory_bytes, profile.memory_bytes, "B"),
        ("latency", performance.latency_p50_ms, gates.max_latency_ms, "ms"),
    )
    for name, value, limit, unit in limits:
        if limit is not None and value > limit:
            yield Miss(
                text=f"{name} {_quantity(value, unit)} > {_quantity(limit, unit)}",
                excess=(value - limit) / limit if limit else float(value),
            )
    misfit = variant.misfit(profile)
    if misfit is not None and variant.info.requirements.memory_bytes <= profile.memory_bytes:
        yield Miss(text=misfit, excess=float("inf"))


def figures(variant: Variant) -> tuple[Accuracy, Performance]:
    """Return the figures of a measured variant.

    Args:
        variant: A candidate after its evaluation and measurement.

    Returns:
        Accuracy and performance.

    Raises:
        QualityGateError: It was not measured, so nothing can be said of it.
    """
    accuracy, performance = variant.info.accuracy, variant.info.performance
    if accuracy is None or performance is None:
        raise QualityGateError(f"{variant.name} was not measured")
    return accuracy, performance


def _quality(variant: Variant) -> float:
    """Return what counts as quality: the metric, or closeness where the metric is closeness."""
    accuracy, _ = figures(variant)
    return -accuracy.worst_error if accuracy.metric == "cosine" else accuracy.value


def _rank(variant: Variant) -> tuple[float, float, int, str]:
    _, performance = figures(variant)
    return (
        -_quality(variant),
        performance.latency_p50_ms,
        performance.peak_memory_bytes,
        variant.name,
    )


def _beats(one: Variant, other: Variant) -> bool:
    """Tell whether one is as good in everything and better in something, beyond noise."""
    ours, theirs = figures(one)[1], figures(other)[1]
    if _quality(one) < _quality(other):
        return False
    axes = (
        (ours.latency_p50_ms, theirs.latency_p50_ms, LATENCY_TOLERANCE),
        (ours.peak_memory_bytes, theirs.peak_memory_bytes, MEMORY_TOLERANCE),
        (one.info.size_bytes, other.info.size_bytes, SIZE_TOLERANCE),
    )
    if any(mine > yours * (1 + tolerance) for mine, yours, tolerance in axes):
        return False
    better = any(mine * (1 + tolerance) < yours for mine, yours, tolerance in axes)
    return better or _quality(one) > _quality(other)


def _defeat(winner: Variant, loser: Variant) -> str:
    (good, fast), (worse, slow) = figures(winner), figures(loser)
    return (
        f"beaten by {winner.name}: {good.metric} {good.value:.4f} to {worse.value:.4f}, "
        f"{fast.latency_p50_ms:.3f} to {slow.latency_p50_ms:.3f} ms, "
        f"{fast.peak_memory_bytes / MIB:.0f} to {slow.peak_memory_bytes / MIB:.0f} MiB, "
        f"{winner.info.size_bytes} to {loser.info.size_bytes} B"
    )


def _nearest(profile: DeviceProfile, missed: dict[str, Miss]) -> str:
    if not missed:
        return f"profile {profile.name}: no candidate could be built"
    name, miss = min(missed.items(), key=lambda item: item[1].excess)
    return (
        f"profile {profile.name}: none of {len(missed)} candidates passed; nearest is {name} "
        f"with {miss.text}"
    )


def _quantity(value: float, unit: str) -> str:
    return f"{value:.3f} ms" if unit == "ms" else f"{int(value)} bytes"
