"""The result of a build: every candidate with its figures, what each profile got, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from packager.judge.further import needed_text, neediest
from packager.judge.gates import Gates
from packager.judge.ranking import spans
from packager.judge.verdicts import Verdict, Verdicts
from packager.layers.values import LayerProfile
from packager.package.compose import measured_variants
from packager.plan.figures import RepairResult, TuningResult
from packager.plan.steps import is_tuning
from packager.plan.values import Candidate, Impossible, Plan
from packager.run.pipeline import Pipeline, StepRecord
from packager.search.report import SearchReport
from wire.package.accuracy import Accuracy, Drift
from wire.package.performance import FieldFigures, Performance
from wire.package.variant import Variant, VariantInfo
from wire.profile import DeviceProfile

BUSY_CPUS: Final = 0.25
"""A quiet desktop keeps less busy than this."""


class CandidateReport(msgspec.Struct, frozen=True, kw_only=True):
    """The data on a candidate, whether it is in the package or not."""

    name: str
    runtime: str
    precision: str
    planned: tuple[str, ...] = ()
    """Profiles that it was planned for."""

    size_bytes: int | None = None
    accuracy: Accuracy | None = None
    performance: Performance | None = None
    """None if it cannot run on the building machine."""

    field: dict[str, FieldFigures] | msgspec.UnsetType = msgspec.UNSET
    """Profile to what it needed on devices of the fleet, where the build was given such figures."""

    files_sha256: str = ""
    """Digest of its files; a later build reuses the figures only for the same digest."""

    layers: LayerProfile | None = None
    """What each of its layers costs, where that was asked for and the variant is kept."""

    lost: str = ""
    """Why it could not be built, evaluated or measured; empty when it could, or was too slow to be
    evaluated."""

    profiles: dict[str, Verdict] = {}
    """Profile to verdict, for the profiles that it was planned for."""

    @property
    def kept(self) -> bool:
        """Whether it is in the package."""
        return any(verdict.kept for verdict in self.profiles.values())


class BuildResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was built, what was not, and why."""

    name: str
    version: str
    package: str
    """The directory."""

    digest: str
    size_bytes: int
    signed: bool
    machine: str
    """The building machine; figures from an earlier report name their own machine."""

    metric: str
    metric_reason: str = ""
    """Why `auto` chose this metric; empty where the user named it."""

    here: tuple[str, ...] | None = None
    """Profiles of such devices as the building machine is one: its latencies are theirs. None in
    the reports of earlier releases."""

    samples: int
    """Number of evaluation samples that judge the variants."""

    candidates: tuple[CandidateReport, ...]
    impossible: tuple[Impossible, ...]
    search: SearchReport | msgspec.UnsetType = msgspec.UNSET
    """What a search did; unset without one."""

    notes: tuple[str, ...]
    steps: tuple[StepRecord, ...]

    @property
    def cached(self) -> bool:
        """Whether every step came from the cache."""
        return all(step.state == "cached" for step in self.steps)


def candidate_reports(
    plan: Plan,
    variants: tuple[Variant, ...],
    verdicts: Verdicts,
    pipeline: Pipeline,
    *,
    slow: Mapping[str, str],
) -> tuple[CandidateReport, ...]:
    """Return a report on every candidate, in the order of the plan.

    Args:
        plan: The plan that was carried out.
        variants: The variants that were built.
        verdicts: Which of them are kept for which profile.
        pipeline: The results of the plan.
        slow: The candidates that are too slow to be evaluated, with the reason.

    Returns:
        The reports.
    """
    measured = measured_variants(plan.candidates, pipeline)
    known = {variant.name: variant.info for variant in (*measured, *variants)}
    reports: list[CandidateReport] = []
    for candidate in plan.candidates:
        info = known.get(candidate.name)
        skipped = Verdict(kept=False, reason=slow.get(candidate.name, ""), evaluated=False)
        reports.append(
            CandidateReport(
                name=candidate.name,
                runtime=candidate.info.runtime,
                precision=candidate.info.precision,
                planned=candidate.info.profiles,
                size_bytes=info.size_bytes if info else None,
                accuracy=info.accuracy if info else None,
                performance=info.performance if info else None,
                field=info.field if info else msgspec.UNSET,
                files_sha256=pipeline.files_digest(candidate.build, candidate.files)
                if info
                else "",
                layers=_layers(candidate, pipeline),
                lost="" if skipped.reason else pipeline.lost(*candidate.needed) or "",
                profiles=dict.fromkeys(candidate.info.profiles, skipped)
                if skipped.reason
                else {
                    profile: found[candidate.name]
                    for profile, found in verdicts.items()
                    if candidate.name in found
                },
            )
        )
    return tuple(reports)


def _layers(candidate: Candidate, pipeline: Pipeline) -> LayerProfile | None:
    if not pipeline.has(candidate.layers):
        return None
    return pipeline.result(candidate.layers, LayerProfile)


def layers_notes(plan: Plan, pipeline: Pipeline) -> tuple[str, ...]:
    """Say which profiles by layer failed, and why: that costs no variant.

    Args:
        plan: The plan that was carried out.
        pipeline: Its results.

    Returns:
        One line for each.
    """
    reasons = {candidate.name: pipeline.lost(candidate.layers) for candidate in plan.candidates}
    return tuple(f"{name} has no profile by layer: {why}" for name, why in reasons.items() if why)


def first_losses(plan: Plan, pipeline: Pipeline) -> dict[str, str]:
    """Return for each profile the first reason why a candidate was lost or could not be planned."""
    lost = [(c.info.profiles, pipeline.lost(*c.needed)) for c in plan.candidates]
    found = [(name, loss) for profiles, loss in lost if loss for name in profiles]
    found += [(i.profile, i.reason) for i in plan.impossible]
    return dict(reversed(found))


def repair_notes(plan: Plan, variants: tuple[Variant, ...], pipeline: Pipeline) -> tuple[str, ...]:
    """Say what each repair changed, gained and cost.

    Args:
        plan: The plan, with the repairs that were tried.
        variants: The variants that were built.
        pipeline: The results of the plan.

    Returns:
        One line per repair.
    """
    known = {variant.name: variant.info for variant in variants}
    notes: list[str] = []
    for repair in plan.repairs:
        name = repair.candidate.name
        if (lost := pipeline.lost(*repair.candidate.needed)) is not None:
            notes.append(f"{name}: {lost}")
            continue
        text = pipeline.result(repair.candidate.build, RepairResult).text
        what = text or f"the build tried it instead of {repair.of}"
        notes.append(f"{name}: {what}{_price(known.get(repair.of), known[name])}")
    return tuple(notes)


def doubt_notes(variants: tuple[Variant, ...], verdicts: Verdicts) -> tuple[str, ...]:
    """Warn of variants that are kept though the samples cannot tell whether they pass the gates.

    Args:
        variants: The variants that were built.
        verdicts: Which of them are kept for which profile.

    Returns:
        One line, or none.
    """
    kept = {name for found in verdicts.values() for name, v in found.items() if v.kept}
    doubtful = {name for found in verdicts.values() for name, v in found.items() if v.doubt}
    if not doubtful:
        return ()
    parts: list[str] = []
    for variant in variants:
        accuracy = variant.info.accuracy
        if variant.name in doubtful and accuracy is not None and (known := neediest(accuracy)):
            parts.append(f"{variant.name} ({accuracy.samples}, {needed_text(known)})")
    text = (
        f"warning: the samples cannot tell whether {len(doubtful)} of {len(kept)} kept variants "
        "pass the gates of quality, although their figures do. Samples that judged each, and "
        f"about how many are needed: {', '.join(parts)}. --strict refuses such variants"
    )
    return (text,)


def unused_gate_notes(variants: tuple[Variant, ...], gates: Gates) -> tuple[str, ...]:
    """Tell that a gate which the user set holds nothing here.

    Args:
        variants: The variants that were built.
        gates: The limits.

    Returns:
        One line, or none.
    """
    judged = [v.info.accuracy for v in variants if v.info.accuracy is not None]
    if gates.max_disagreement is None or any(a.agreement is not None for a in judged):
        return ()
    return tuple(
        f"warning: --max-disagreement is not applied: {accuracy.metric} reads an output that has "
        "no top answer"
        for accuracy in judged[:1]
    )


def drift_notes(variants: tuple[Variant, ...]) -> tuple[str, ...]:
    """Tell how far each variant with states drifts from the reference over a sequence.

    Args:
        variants: The variants that were built.

    Returns:
        One line for each that was played.
    """
    return tuple(
        f"{variant.name}: {drift_text(variant.info.accuracy.drift)}"
        for variant in variants
        if variant.info.accuracy is not None and variant.info.accuracy.drift
    )


def drift_text(known: Drift) -> str:
    """Say how far a variant drifts, in one clause."""
    return (
        f"drift over {known.sequences} sequences of {known.steps} steps: relative error "
        f"{known.start:.2g} at the start, {known.middle:.2g} in the middle, {known.end:.2g} at the "
        f"end; {known.worst:.2g} at the worst step, {known.worst_step}"
    )


def latency_notes(
    plan: Plan, variants: tuple[Variant, ...], profiles: tuple[DeviceProfile, ...], gates: Gates
) -> tuple[str, ...]:
    """Warn of latencies that are not what they seem.

    Args:
        plan: The plan that was carried out.
        variants: The variants that were measured.
        profiles: The profiles of the build for which these latencies count.
        gates: Its limits.

    Returns:
        One line for each kind: a busy machine, ratios that are not sure, an unused gate. None where
        figures of the field alone decide.
    """
    if not profiles:
        return ()
    notes: list[str] = []
    busy = [
        p.background_cpus
        for v in variants
        if (p := v.info.performance) is not None and p.background_cpus is not msgspec.UNSET
    ]
    often = [cpus for cpus in busy if cpus >= BUSY_CPUS]
    if often:
        notes.append(
            f"warning: other processes kept up to {max(often):.1f} processors busy while "
            f"{len(often)} of {len(busy)} variants were measured, so their latencies may be too "
            "long; on a quiet machine, --remeasure measures them again"
        )
    unsure = [
        f"{v.name} ({span.low:.3g} to {span.high:.3g})"
        for v in variants
        if v.info.performance is not None
        for span in spans((v,))
        if not span.is_sure
    ]
    if unsure:
        notes.append(
            "warning: it is not sure how long these take beside the unchanged model: "
            f"{', '.join(unsure)} times as long. Such a latency drops a variant only if its "
            "whole range does; --remeasure measures again"
        )
    foreign = [p.name for p in profiles if p.name not in plan.here]
    if gates.max_latency_ms is not None and foreign:
        notes.append(
            f"warning: --max-latency is not applied for {', '.join(foreign)}: this machine is "
            "no such device, so the latency there is not known"
        )
    return tuple(notes)


def tuning_notes(plan: Plan, pipeline: Pipeline) -> tuple[str, ...]:
    """Say what each search for schedules did.

    Args:
        plan: The plan that was carried out.
        pipeline: Its results.

    Returns:
        One line per search.
    """
    notes: list[str] = []
    for step in plan.steps:
        if is_tuning(step) and pipeline.lost(step.name) is None:
            found = pipeline.result(step.name, TuningResult)
            notes.append(
                f"{step.name}: {found.trials} schedules were tried for {found.tasks} kernels in "
                f"{found.seconds:.0f} s; {found.reused} were already known"
            )
    return tuple(notes)


def _price(before: VariantInfo | None, after: VariantInfo) -> str:
    if before is None or before.accuracy is None or after.accuracy is None:
        return ""
    text = (
        f"; retention {after.accuracy.retention:.4f} after {before.accuracy.retention:.4f}, "
        f"{after.size_bytes} after {before.size_bytes} B"
    )
    if before.performance is None or after.performance is None:
        return text
    return (
        f"{text}, {after.performance.latency_p50_ms:.3f} after "
        f"{before.performance.latency_p50_ms:.3f} ms"
    )
