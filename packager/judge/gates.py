"""Decides which candidates go into the package: those that pass the gates and that no other beats.

The functions are pure: they get figures and return verdicts with reasons.

Rules:
- A verdict names the gate that a candidate fails, with the figure. No candidate is dropped without
  a reason.
- The reference variant is kept wherever it passes, because a device falls back to it.
- The fastest variant of each runtime is kept too, because a device may have that runtime alone.
  `drop_beaten` turns this off.
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
from packager.judge.ranking import (
    MAX_SLOWDOWN,
    SIZE_TOLERANCE,
    beats,
    defeat,
    figures,
    latency_ms,
    rank,
    worth,
)
from wire.package.manifest import Variant
from wire.profile import DeviceProfile

UNFIT: Final = 1e9
"""The excess of a variant that cannot run on the device, far above that of other limits."""

_FLOAT: Final = "fp"
"""The prefix of the precisions that compute in floats."""


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
    drop_beaten: bool = False,
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
        drop_beaten: Drop what another beats even if it is the fastest of its runtime.

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
            fastest = frozenset[str]() if drop_beaten else _fastest(finalists)
            found |= _front(finalists, pinned=pinned, fastest=fastest)
        verdicts[profile.name] = found
    return verdicts


def too_slow(
    variants: tuple[Variant, ...],
    profiles: tuple[DeviceProfile, ...],
    gates: Gates,
    *,
    references: frozenset[str],
    keep: frozenset[str] = frozenset(),
    drop_beaten: bool = False,
) -> dict[str, str]:
    """Return the variants that need no evaluation, because they are too slow to be used.

    A variant is too slow if a reference variant, which has the reference's quality, serves the same
    profiles many times as fast. Only a variant better than the reference could be lost this way. A
    variant that is not so slow among those of its own runtime is evaluated: `judge` may keep it.

    Args:
        variants: Variants that are built and measured, but not evaluated yet.
        profiles: The profiles.
        gates: The limits.
        references: Names of variants that compute what the reference computes.
        keep: Names of variants that are evaluated in any case.
        drop_beaten: As for `judge`.

    Returns:
        Variant to the reason.
    """
    able = [v for v in variants if v.name in references and v.info.performance]
    found: dict[str, str] = {}
    least_ms: dict[str, float] = {}
    for variant in () if drop_beaten else variants:
        runtime, taken_ms = variant.info.runtime, latency_ms(variant)
        least_ms[runtime] = min(taken_ms, least_ms.get(runtime, taken_ms))
    for variant in variants:
        slow = variant.info.performance
        if slow is None or variant.name in keep | references:
            continue
        if slow.latency_p50_ms <= MAX_SLOWDOWN * least_ms.get(variant.info.runtime, 0.0):
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


def _front(
    passed: list[Variant], *, pinned: frozenset[str], fastest: frozenset[str]
) -> dict[str, Verdict]:
    """Keep the pinned and the fastest variants and those that no other beats, the worst first."""
    found: dict[str, Verdict] = {}
    remaining = sorted(passed, key=rank)
    for variant in reversed(tuple(remaining)):
        winner = next((v for v in remaining if v is not variant and beats(v, variant)), None)
        if winner is None or variant.name in pinned:
            found[variant.name] = Verdict(kept=True, reason="kept")
        elif variant.name in fastest:
            reason = f"kept: a device may have {variant.info.runtime} alone"
            found[variant.name] = Verdict(kept=True, reason=reason)
        else:
            remaining.remove(variant)
            found[variant.name] = Verdict(kept=False, reason=defeat(winner, variant))
    return found


def _fastest(passed: list[Variant]) -> frozenset[str]:
    """Return the name of the fastest variant of each runtime that no other of it beats."""
    found: set[str] = set()
    for runtime in {v.info.runtime for v in passed}:
        own = [v for v in passed if v.info.runtime == runtime]
        unbeaten = [v for v in own if not any(beats(other, v) for other in own)]
        found.add(min(unbeaten or own, key=lambda v: (latency_ms(v), rank(v))).name)
    return frozenset(found)


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
            and worth(figures(other)[0]) >= worth(figures(variant)[0])
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


def _quantity(value: float, unit: str) -> str:
    return f"{value:.3f} ms" if unit == "ms" else f"{int(value)} bytes"
