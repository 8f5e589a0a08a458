"""Which figures count for a profile, of what its devices measured.

Rules:
- Of a device and a release the newest whole answer counts; only without one the newest of those
  that broke off.
- Each figure of a variant is the middle one of the devices that measured it, of two the lower one,
  for each figure on its own. What is ordered in every answer stays so.
- From three devices of a profile on, a figure counts only if three of them have it: one device that
  lies moves none outside of what the others say, and brings none in alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Final

import msgspec

from wire.measuring import ENOUGH_DEVICES, MeasuredVariant
from wire.package.performance import Performance, Relative

_Optional = float | msgspec.UnsetType | None
_FEW: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What one device measured of one release."""

    device: str
    profile: str
    release: str
    """Digest."""

    answered_at_s: float
    whole: bool
    """Whether nothing broke it off."""

    variants: tuple[MeasuredVariant, ...]
    """Those that the release has for the profile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The figures that count for a variant of a release on devices of a profile."""

    profile: str
    release: str
    """Digest."""

    variant: str
    performance: Performance
    devices: int
    """How many devices measured it."""

    at_s: float
    """When the newest of them answered."""


def by_profile(answers: Iterable[Answered]) -> list[Counted]:
    """Return the figures that count for each profile, release and variant.

    Args:
        answers: What devices measured.

    Returns:
        The figures, by profile, release and name.
    """
    newest: dict[tuple[str, str, str], Answered] = {}
    for answer in sorted(answers, key=lambda answer: (answer.whole, answer.answered_at_s)):
        if any(variant.performance is not None for variant in answer.variants):
            newest[answer.profile, answer.release, answer.device] = answer
    groups: dict[tuple[str, str], list[Answered]] = {}
    for (profile, release, _), answer in sorted(newest.items()):
        groups.setdefault((profile, release), []).append(answer)
    return [counted for group in groups.values() for counted in _counted(group)]


def _counted(group: Sequence[Answered]) -> list[Counted]:
    """Return the figures of one release on devices of one profile."""
    enough = ENOUGH_DEVICES if len(group) >= ENOUGH_DEVICES else _FEW
    known: dict[str, list[tuple[Performance, float]]] = {}
    for answer in group:
        for variant in answer.variants:
            if variant.performance is not None:
                told = variant.performance, answer.answered_at_s
                known.setdefault(variant.name, []).append(told)
    return [
        Counted(
            profile=group[0].profile,
            release=group[0].release,
            variant=name,
            performance=_middle([performance for performance, _ in told], enough),
            devices=len(told),
            at_s=max(at_s for _, at_s in told),
        )
        for name, told in sorted(known.items())
        if len(told) >= enough
    ]


def _middle(found: Sequence[Performance], enough: int) -> Performance:
    busy = _known((each.background_cpus for each in found), enough)
    energy = _known((each.energy_j for each in found), enough)
    return Performance(
        latency_p50_ms=median_low(each.latency_p50_ms for each in found),
        latency_p95_ms=median_low(each.latency_p95_ms for each in found),
        latency_iqr_ms=_known((each.latency_iqr_ms for each in found), enough),
        load_ms=median_low(each.load_ms for each in found),
        first_inference_ms=median_low(each.first_inference_ms for each in found),
        peak_memory_bytes=median_low(each.peak_memory_bytes for each in found),
        runs=median_low(each.runs for each in found),
        threads=median_low(each.threads for each in found),
        machine=_most_common(each.machine for each in found),
        relative=_relative([each.relative for each in found if each.relative], enough),
        background_cpus=msgspec.UNSET if busy is None else busy,
        energy_j=msgspec.UNSET if energy is None else energy,
    )


def _known(values: Iterable[_Optional], enough: int) -> float | None:
    """Return the middle one of the values that are known; None if they are too few."""
    known = [value for value in values if isinstance(value, float | int)]
    return median_low(known) if len(known) >= enough else None


def _relative(found: Sequence[Relative], enough: int) -> Relative | msgspec.UnsetType:
    """Return the middle ratio to the most common reference; unset if too few have that."""
    if not found:
        return msgspec.UNSET
    reference = _most_common(each.reference for each in found)
    same = [each for each in found if each.reference == reference]
    if len(same) < enough:
        return msgspec.UNSET
    return Relative(
        reference=reference,
        ratio=median_low(each.ratio for each in same),
        low=median_low(each.low for each in same),
        high=median_low(each.high for each in same),
        pairs=median_low(each.pairs for each in same),
    )


def _most_common(names: Iterable[str]) -> str:
    """Return the most common name, of several the first."""
    counts = Counter(names)
    return min(counts, key=lambda name: (-counts[name], name))
