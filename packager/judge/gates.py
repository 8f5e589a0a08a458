"""Decides which candidates go into the package: those that pass the gates and that no other beats.

The functions are pure: they get figures and return verdicts with reasons.

Rules:
- A verdict names the gate that a candidate fails, with the figure. No candidate is dropped without
  a reason.
- The reference variant is kept wherever it passes, because a device falls back to it.
- A latency is valid only for the architecture that it was measured on. For another architecture, a
  candidate is dropped only in favour of a closer one that runs the same instructions, or of a float
  variant of the same runtime that is as good and as small.
- A build fails if a profile gets no variant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from packager.errors import QualityGateError
from packager.judge.metrics import quality
from wire.package.manifest import Accuracy, Performance, Variant
from wire.profile import DeviceProfile

LATENCY_TOLERANCE: Final = 0.05
MEMORY_TOLERANCE: Final = 0.03
SIZE_TOLERANCE: Final = 0.01
"""Smaller differences are measurement noise, or too small to keep a variant for."""

MAX_SLOWDOWN: Final = 4.0
"""A variant that is this many times slower than one of at least its quality is dropped, whatever
memory or disk it saves: nobody would use it, and every answer costs battery."""

UNFIT: Final = 1e9
"""The excess of a variant that cannot run on the device, far above that of other limits."""

_FLOAT: Final = "fp"
"""The prefix of the precisions that compute in floats."""

MIB: Final = 1024**2


class Gates(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that every variant must keep, for every profile."""

    min_retention: float = 0.99
    """Share of the reference's metric; a loss of one hundredth is usually accepted for int8."""

    max_size_bytes: int | None = None
    max_latency_ms: float | None = None
    """Median, on the machine that builds."""

    max_memory_bytes: int | None = None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The decision about a candidate for a profile."""

    kept: bool
    reason: str
    excess: float | None = None
    """How far it misses the gate that refused it, as a share of the limit; None without a miss."""


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
    references: frozenset[str],
    architecture: str,
    keep: frozenset[str] = frozenset(),
    families: Mapping[str, str] | None = None,
) -> Verdicts:
    """Decide for every profile which variants it gets.

    Args:
        variants: Measured candidates; `info.profiles` says for which profiles each was planned.
        profiles: The profiles.
        gates: The limits.
        references: Names of variants that are always kept if they pass.
        architecture: Architecture of the measuring machine, as `uname -m` prints it.
        keep: Names of variants that are kept even if others beat them.
        families: Variant to the name that it shares with those that run the same instructions.

    Returns:
        The verdicts.
    """
    verdicts: Verdicts = {}
    for profile in profiles:
        planned = [v for v in variants if profile.name in v.info.profiles]
        foreign = profile.architecture != architecture
        limits = msgspec.structs.replace(gates, max_latency_ms=None) if foreign else gates
        missed = {v.name: miss for v in planned if (miss := _first_miss(v, profile, limits))}
        passed = [v for v in planned if v.name not in missed]
        found = {
            name: Verdict(kept=False, reason=miss.text, excess=miss.excess)
            for name, miss in missed.items()
        }
        pinned = keep | references
        finalists, inferior = _best_of_families(passed, families or {}, pinned=pinned)
        found |= inferior
        if foreign:
            found |= {v.name: _unmeasured(v, finalists, pinned=pinned) for v in finalists}
        else:
            found |= _front(finalists, pinned=pinned)
        verdicts[profile.name] = found
    return verdicts


def too_slow(
    variants: tuple[Variant, ...],
    profiles: tuple[DeviceProfile, ...],
    gates: Gates,
    *,
    references: frozenset[str],
    keep: frozenset[str] = frozenset(),
) -> dict[str, str]:
    """Return the variants that need no evaluation, because they are too slow to be used.

    A variant is too slow if a reference variant, which has the reference's quality, serves the same
    profiles many times as fast. Only a variant better than the reference could be lost this way.

    Args:
        variants: Variants that are built and measured, but not evaluated yet.
        profiles: The profiles.
        gates: The limits.
        references: Names of variants that compute what the reference computes.
        keep: Names of variants that are evaluated in any case.

    Returns:
        Variant to the reason.
    """
    able = [v for v in variants if v.name in references and v.info.performance]
    found: dict[str, str] = {}
    for variant in variants:
        slow = variant.info.performance
        if slow is None or variant.name in keep | references:
            continue
        for other in able:
            fast = other.info.performance
            serves = all(
                profile.name in other.info.profiles
                and next(_cost_misses(other, profile, gates), None) is None
                for profile in profiles
                if profile.name in variant.info.profiles
            )
            if fast and serves and slow.latency_p50_ms > MAX_SLOWDOWN * fast.latency_p50_ms:
                found[variant.name] = (
                    f"not evaluated: {slow.latency_p50_ms:.3f} ms is over {MAX_SLOWDOWN:g} times "
                    f"the {fast.latency_p50_ms:.3f} ms of {other.name}"
                )
    return found


def require_variants(verdicts: Verdicts, losses: Mapping[str, str]) -> None:
    """Refuse a build that leaves a profile without any variant.

    Args:
        verdicts: What `judge` found.
        losses: Profile to the reason why its first candidate could not be judged.

    Raises:
        QualityGateError: There is such a profile; the nearest miss is named.
    """
    for profile, found in verdicts.items():
        if any(verdict.kept for verdict in found.values()):
            continue
        if not found:
            reason = losses.get(profile, "none was planned")
            raise QualityGateError(f"profile {profile}: no candidate could be built: {reason}")
        name, nearest = min(found.items(), key=lambda item: item[1].excess or 0.0)
        raise QualityGateError(
            f"profile {profile}: none of the {len(found)} candidates passed the gates; the "
            f"nearest is {name} with {nearest.reason}",
            remedy="relax the gate, or use another profile",
        )


def _front(passed: list[Variant], *, pinned: frozenset[str]) -> dict[str, Verdict]:
    """Keep the pinned variants and those that no other beats; start with the worst."""
    found: dict[str, Verdict] = {}
    remaining = sorted(passed, key=_rank)
    for variant in reversed(tuple(remaining)):
        winner = None
        if variant.name not in pinned:
            winner = next((v for v in remaining if v is not variant and _beats(v, variant)), None)
        if winner is not None:
            remaining.remove(variant)
            found[variant.name] = Verdict(kept=False, reason=_defeat(winner, variant))
        else:
            found[variant.name] = Verdict(kept=True, reason="kept")
    return found


def _best_of_families(
    passed: list[Variant], families: Mapping[str, str], *, pinned: frozenset[str]
) -> tuple[list[Variant], dict[str, Verdict]]:
    """Select the pinned variants and, of each family, the one closest to the reference.

    A family runs the same instructions, so its time and memory differ only by noise.
    """
    finalists: list[Variant] = []
    inferior: dict[str, Verdict] = {}
    best: dict[str, Variant] = {}
    for variant in sorted(passed, key=_exactness):
        winner = best.setdefault(families.get(variant.name, variant.name), variant)
        if winner is variant or variant.name in pinned:
            finalists.append(variant)
        else:
            inferior[variant.name] = Verdict(kept=False, reason=_inferior(winner, variant))
    return finalists, inferior


def _unmeasured(variant: Variant, others: list[Variant], *, pinned: frozenset[str]) -> Verdict:
    """Decide about a variant whose speed on the device is unknown.

    A quantized variant that is neither smaller nor better than a float one is dropped: it could
    only be faster.
    """
    for other in others:
        if (
            other is not variant
            and variant.name not in pinned
            and other.info.runtime == variant.info.runtime
            and other.info.precision.startswith(_FLOAT)
            and not variant.info.precision.startswith(_FLOAT)
            and _worth(figures(other)[0]) >= _worth(figures(variant)[0])
            and other.info.size_bytes <= variant.info.size_bytes * (1 + SIZE_TOLERANCE)
        ):
            return Verdict(
                kept=False,
                reason=f"it is neither smaller nor better than {other.name}, and its latency "
                "cannot be measured on this machine",
            )
    return Verdict(kept=True, reason="kept; its latency cannot be measured on this machine")


def _exactness(variant: Variant) -> tuple[float, float, str]:
    """Return a sort key, the closest to the reference first; their metrics differ by chance."""
    accuracy, _ = figures(variant)
    sqnr_db = float("inf") if accuracy.sqnr_db is None else accuracy.sqnr_db
    return (-sqnr_db, accuracy.worst_error, variant.name)


def _inferior(winner: Variant, loser: Variant) -> str:
    good, worse = figures(winner)[0], figures(loser)[0]
    close, far = ("exact" if a.sqnr_db is None else f"{a.sqnr_db:.1f}" for a in (good, worse))
    return (
        f"it runs the same instructions as {winner.name} and is no closer to the reference: SQNR "
        f"{far} against {close} dB"
    )


def _first_miss(variant: Variant, profile: DeviceProfile, gates: Gates) -> Miss | None:
    """Return the gate that a variant misses by most; None when it passes all."""
    return max(_misses(variant, profile, gates), key=lambda miss: miss.excess, default=None)


def _misses(variant: Variant, profile: DeviceProfile, gates: Gates) -> Iterator[Miss]:
    accuracy, _ = figures(variant)
    if accuracy.retention < gates.min_retention:
        yield Miss(
            text=f"retention {accuracy.retention:.4f} < {gates.min_retention:.4f}",
            excess=gates.min_retention - accuracy.retention,
        )
    yield from _cost_misses(variant, profile, gates)


def _cost_misses(variant: Variant, profile: DeviceProfile, gates: Gates) -> Iterator[Miss]:
    performance = variant.info.performance
    peak_bytes = performance.peak_memory_bytes if performance else None
    latency_ms = performance.latency_p50_ms if performance else None
    limits = (
        ("size", variant.info.size_bytes, gates.max_size_bytes, "B"),
        ("storage", variant.info.size_bytes, profile.storage_bytes, "B"),
        ("memory", peak_bytes, gates.max_memory_bytes, "B"),
        ("memory", variant.info.requirements.memory_bytes, profile.memory_bytes, "B"),
        ("latency", latency_ms, gates.max_latency_ms, "ms"),
    )
    for name, value, limit, unit in limits:
        if limit is not None and value is not None and value > limit:
            yield Miss(
                text=f"{name} {_quantity(value, unit)} > {_quantity(limit, unit)}",
                excess=(value - limit) / limit if limit else float(value),
            )
    misfit = variant.misfit(profile)
    if misfit is not None and variant.info.requirements.memory_bytes <= profile.memory_bytes:
        yield Miss(text=misfit, excess=UNFIT)


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


def _worth(accuracy: Accuracy) -> float:
    """Return the quality by which variants are compared, at most that of the reference.

    If a quantized variant is better than its reference, that is chance.
    """
    return quality(accuracy) if accuracy.retention <= 1.0 else _ideal(accuracy)


def _ideal(accuracy: Accuracy) -> float:
    return quality(msgspec.structs.replace(accuracy, value=accuracy.reference))


def _rank(variant: Variant) -> tuple[float, float, int, str]:
    accuracy, performance = figures(variant)
    if performance is None:
        return (-_worth(accuracy), float("inf"), 0, variant.name)
    return (
        -_worth(accuracy),
        performance.latency_p50_ms,
        performance.peak_memory_bytes,
        variant.name,
    )


def _beats(one: Variant, other: Variant) -> bool:
    """Tell whether one is as good in everything and better in something, apart from noise."""
    (good, ours), (worse, theirs) = figures(one), figures(other)
    if ours is None or theirs is None or _worth(good) < _worth(worse):
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
    return better or _worth(good) > _worth(worse)


def _defeat(winner: Variant, loser: Variant) -> str:
    (good, fast), (worse, slow) = figures(winner), figures(loser)
    text = f"{winner.name} is better: {good.metric} {good.value:.4f} against {worse.value:.4f}"
    if fast is None or slow is None:
        return text
    return (
        f"{text}, {fast.latency_p50_ms:.3f} against {slow.latency_p50_ms:.3f} ms, "
        f"{fast.peak_memory_bytes / MIB:.0f} against {slow.peak_memory_bytes / MIB:.0f} MiB, "
        f"{winner.info.size_bytes} against {loser.info.size_bytes} B"
    )


def _quantity(value: float, unit: str) -> str:
    return f"{value:.3f} ms" if unit == "ms" else f"{int(value)} bytes"
