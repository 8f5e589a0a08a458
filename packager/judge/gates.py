"""Decides which candidates pass the gates of a profile; `selection` chooses among those. Pure.

Rules:
- A verdict names the gate that a candidate fails, with the figure. No candidate is dropped without
  a reason.
- A gate of quality passes, fails, or cannot tell. It fails if the figure itself fails. It cannot
  tell if the figure passes and its bound does not; then the candidate is kept with a warning, or
  refused if the gates are strict.
- A variant that computes what the reference does, apart from the rounding of float32, needs no such
  proof.
- A build fails if a profile gets no variant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from packager.errors import BuildError, QualityGateError
from packager.judge import further
from packager.judge.intervals import ROUNDING, rounded_down
from packager.judge.ranking import figures, latency_ms, spans
from packager.judge.selection import Choice, select
from packager.judge.verdicts import Verdict, Verdicts
from packager.plan.further import FurtherMetric
from wire.package.accuracy import Accuracy, Certainty
from wire.package.variant import Variant
from wire.profile import DeviceProfile

UNFIT: Final = 1e9
"""The excess of a variant that cannot run on the device, far above that of other limits."""

MAX_SLOWDOWN: Final = 4.0
"""A variant that is this many times slower than the reference is not evaluated, unless it is among
the fastest of its runtime: hardly anybody would use it, and evaluation takes long."""

DISAGREEMENT_FLOOR: Final = 0.05
DISAGREEMENT_RATIO: Final = 5.0
"""Lost answers that are right are offset by gained ones, and both are disagreements. So the default
gate is several times the retention that may be lost."""

LEAST_SHOWN_MS: Final = 0.001

MAX_VARIANTS: Final = 12
"""Variants that a profile gets by default; a device fetches and tests every one of them."""


class Gates(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that every variant must keep, and that of their number, for every profile."""

    min_retention: float = 0.99
    """Share of the reference's metric; a loss of one hundredth is usually accepted for int8."""

    max_disagreement: float | None = None
    """Share of the samples whose top answer may differ from the reference's. None for
    `DISAGREEMENT_FLOOR`, or more where `min_retention` allows more, for metrics of class scores."""

    strict: bool = False
    """Whether the samples must show that the gates of quality pass."""

    further: tuple[FurtherMetric, ...] = ()
    """Metrics of other outputs; each has a gate of retention of its own."""

    max_size_bytes: int | None = None
    max_latency_ms: float | None = None
    """Median, on the machine that builds."""

    max_memory_bytes: int | None = None
    max_variants: int = MAX_VARIANTS
    """How many variants a profile gets; more only if more than these are always kept."""

    untimed: bool = False
    """Keep all that pass the gates of quality: devices are to measure what they cost."""

    @property
    def disagreement_limit(self) -> float:
        """The gate of disagreement, where a sample has one top answer."""
        if self.max_disagreement is not None:
            return self.max_disagreement
        return max(DISAGREEMENT_FLOOR, DISAGREEMENT_RATIO * (1.0 - self.min_retention))


class Miss(msgspec.Struct, frozen=True, kw_only=True):
    """A gate that was not passed."""

    text: str
    excess: float
    """How far off, as a share of the limit."""


def judge(
    variants: tuple[Variant, ...],
    profiles: tuple[DeviceProfile, ...],
    gates: Gates,
    *,
    references: frozenset[str],
    here: frozenset[str],
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
        here: Names of the profiles of such devices as the measuring machine is one; for others no
            latency is known.
        keep: Names of variants that are kept even if others beat them.
        families: Variant to the name that it shares with those that run the same instructions.
        drop_beaten: Drop what another beats even if it is the fastest of its runtime.

    Returns:
        The verdicts.
    """
    verdicts: Verdicts = {}
    for profile in profiles:
        planned = [v for v in variants if profile.name in v.info.profiles]
        foreign = gates.untimed or profile.name not in here
        limits = msgspec.structs.replace(gates, max_latency_ms=None) if foreign else gates
        missed = {v.name: miss for v in planned if (miss := _first_miss(v, profile, limits))}
        passed = [v for v in planned if v.name not in missed]
        found = {
            name: Verdict(kept=False, reason=miss.text, excess=miss.excess)
            for name, miss in missed.items()
        }
        choice = Choice(
            pinned=keep | references,
            families=families or {},
            foreign=foreign,
            drop_beaten=drop_beaten,
            budget=gates.max_variants,
        )
        chosen = (
            {v.name: Verdict(kept=True, reason="kept for devices to measure") for v in passed}
            if gates.untimed
            else select(passed, choice)
        )
        for variant in passed:
            verdict = chosen[variant.name]
            doubt = "; ".join(miss.text for miss in _doubts(variant, gates)) if verdict.kept else ""
            if doubt:
                verdict = msgspec.structs.replace(
                    verdict, reason=f"{verdict.reason}; {doubt}", doubt=doubt
                )
            found[variant.name] = verdict
        verdicts[profile.name] = found
    return verdicts


def too_slow(
    variants: tuple[Variant, ...],
    profiles: tuple[DeviceProfile, ...],
    gates: Gates,
    *,
    references: frozenset[str],
    here: frozenset[str],
    keep: frozenset[str] = frozenset(),
    drop_beaten: bool = False,
) -> dict[str, str]:
    """Return the variants that need no evaluation, because they are too slow to be used.

    A variant is too slow if a reference variant, which has the reference's quality, serves the same
    profiles surely many times as fast. Only a variant better than the reference could be lost this
    way. A variant that is not so slow among those of its own runtime is evaluated, because `judge`
    may keep it, and so is one for a device whose latencies are not known.

    Args:
        variants: Variants that are built and measured, but not evaluated yet.
        profiles: The profiles.
        gates: The limits.
        references: Names of variants that compute what the reference computes.
        here: As for `judge`.
        keep: Names of variants that are evaluated in any case.
        drop_beaten: As for `judge`.

    Returns:
        Variant to the reason.
    """
    if gates.untimed:
        return {}
    timed = [v for v in variants if v.info.performance is not None]
    able = [v for v in timed if v.name in references]
    found: dict[str, str] = {}
    for variant in timed:
        planned = [profile for profile in profiles if profile.name in variant.info.profiles]
        if variant.name in keep | references or any(p.name not in here for p in planned):
            continue
        own = [v for v in timed if v.info.runtime == variant.info.runtime]
        if not drop_beaten and not any(_is_slow(variant, other) for other in own):
            continue
        for other in able:
            serves = all(
                profile.name in other.info.profiles
                and next(_cost_misses(other, profile, gates), None) is None
                for profile in planned
            )
            if serves and _is_slow(variant, other):
                found[variant.name] = (
                    f"not evaluated: {latency_ms(variant):.3f} ms is over {MAX_SLOWDOWN:g} times "
                    f"the {latency_ms(other):.3f} ms of {other.name}"
                )
    return found


def _is_slow(variant: Variant, other: Variant) -> bool:
    """Tell whether a variant is surely many times as slow as another one."""
    mine, yours = spans((variant, other))
    return mine.low > MAX_SLOWDOWN * yours.high


def vouched(variant: Variant, accuracy: Accuracy, gates: Gates) -> str:
    """Judge how a variant answers with other kernels of its runtime.

    Args:
        variant: The variant, which is kept.
        accuracy: How it compares with the reference with those kernels.
        gates: The limits.

    Returns:
        The gate of quality that it fails; empty if it passes.
    """
    known = variant.info.accuracy
    if known is not None:  # it tells whether a sample has one top answer
        accuracy = msgspec.structs.replace(accuracy, certainty=known.certainty)
    info = msgspec.structs.replace(variant.info, accuracy=accuracy)
    misses = _quality_misses(msgspec.structs.replace(variant, info=info), gates)
    return next((miss.text for miss in misses), "")


def require_variants(verdicts: Verdicts, losses: Mapping[str, str]) -> None:
    """Refuse a build that leaves a profile without any variant.

    Args:
        verdicts: What `judge` found.
        losses: Profile to the reason why its first candidate could not be judged.

    Raises:
        BuildError: Nothing could be built for a profile.
        QualityGateError: No candidate of a profile passed; the nearest miss is named.
    """
    for profile, found in verdicts.items():
        if any(verdict.kept for verdict in found.values()):
            continue
        if not found:
            reason = losses.get(profile, "none was planned")
            raise BuildError(f"profile {profile}: no candidate could be built: {reason}")
        name, nearest = min(found.items(), key=lambda item: item[1].excess or 0.0)
        raise QualityGateError(
            f"profile {profile}: none of the {len(found)} candidates passed the gates; the "
            f"nearest is {name} with {nearest.reason}",
            remedy="relax the gate, or use another profile",
        )


def _first_miss(variant: Variant, profile: DeviceProfile, gates: Gates) -> Miss | None:
    """Return the gate that a variant misses by most; None when it passes all."""
    return max(_misses(variant, profile, gates), key=lambda miss: miss.excess, default=None)


def _misses(variant: Variant, profile: DeviceProfile, gates: Gates) -> Iterator[Miss]:
    yield from _quality_misses(variant, gates)
    if gates.strict:
        yield from _doubts(variant, gates)
    yield from _cost_misses(variant, profile, gates)


def _quality_misses(variant: Variant, gates: Gates) -> Iterator[Miss]:
    accuracy, _ = figures(variant)
    for text, excess in further.misses(accuracy, gates.further, gates.min_retention):
        yield Miss(text=text, excess=excess)
    known = _certainty(accuracy)
    if accuracy.retention < gates.min_retention - ROUNDING:
        bounds = "" if known is None else _bounds(known.retention_low, known.retention_high, known)
        yield Miss(
            text=f"retention {accuracy.retention:.4f} < {gates.min_retention:.4f}{bounds}",
            excess=gates.min_retention - accuracy.retention,
        )
    one_answer = known is not None and known.agreement_low is not None
    if accuracy.agreement is None:
        return
    disagreement, limit = 1.0 - accuracy.agreement, gates.disagreement_limit
    if (one_answer or gates.max_disagreement is not None) and disagreement > limit + ROUNDING:
        bounds = ""
        if (
            known is not None
            and known.agreement_low is not None
            and known.agreement_high is not None
        ):
            bounds = _bounds(1 - known.agreement_high, 1 - known.agreement_low, known)
        yield Miss(
            text=f"disagreement with the reference {disagreement:.4f} > {limit:.4f}{bounds}",
            excess=disagreement - limit,
        )


def _doubts(variant: Variant, gates: Gates) -> Iterator[Miss]:
    """Yield the doubts about the main metric, and about each further one."""
    yield from _main_doubts(variant, gates)
    accuracy, _ = figures(variant)
    for text, excess in further.doubts(accuracy, gates.further, gates.min_retention):
        yield Miss(text=text, excess=excess)


def _main_doubts(variant: Variant, gates: Gates) -> Iterator[Miss]:
    """Yield at most one miss: of the gates of quality that a figure passes, but not its bound."""
    accuracy, _ = figures(variant)
    known = _certainty(accuracy)
    if known is None or not known.samples_needed:
        return
    if known.retention_low is None:
        yield Miss(
            text=f"cannot tell: retention is {accuracy.retention:.4f}, but {accuracy.samples} "
            f"samples give no bound for {accuracy.metric}",
            excess=gates.min_retention,
        )
        return
    parts: list[str] = []
    excess = 0.0
    told = f"with {known.confidence:.2%} confidence"
    if known.retention_low < gates.min_retention - ROUNDING:
        parts.append(
            f"retention is {accuracy.retention:.4f}, but {told} only at least "
            f"{rounded_down(known.retention_low)}, below {gates.min_retention:.4f}"
        )
        excess = gates.min_retention - known.retention_low
    limit = gates.disagreement_limit
    most = 0.0 if known.agreement_low is None else 1.0 - known.agreement_low
    if accuracy.agreement is not None and most > limit + ROUNDING:
        parts.append(
            f"disagreement with the reference is {1.0 - accuracy.agreement:.4f}, but {told} up to "
            f"{most:.4f}, above {limit:.4f}"
        )
        excess = max(excess, most - limit)
    if parts:
        yield Miss(
            text=f"cannot tell: {', and '.join(parts)}; about {further.needed_text(known)} samples "
            f"would be needed instead of {accuracy.samples}",
            excess=excess,
        )


def _certainty(accuracy: Accuracy) -> Certainty | None:
    return accuracy.certainty if isinstance(accuracy.certainty, Certainty) else None


def _bounds(low: float | None, high: float | None, known: Certainty) -> str:
    if low is None or high is None:
        return ""
    return f" ({low:.4f} to {high:.4f}, each with {known.confidence:.2%} confidence)"


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
    if unit == "ms":
        return f"{value:.3f} ms" if value >= LEAST_SHOWN_MS else f"{value:.3g} ms"
    return f"{int(value)} bytes"
