"""From what the steps found to the variants, the manifest and the report of a build.

Rules:
- Nothing here depends on time or on where files lie: equal findings, equal manifest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from packager.judge.gates import MIB, Gates, Verdict, Verdicts
from packager.plan.figures import Comparison, GoldenResult, ModelFacts, RepairResult, TuningResult
from packager.plan.recipes import PREPARE
from packager.plan.steps import GOLDEN, is_tuning
from packager.plan.values import Candidate, Plan, Repair
from packager.result import CandidateReport
from packager.run.cache import file_sha256
from packager.run.job import GOLDEN_FOLDER
from packager.run.pipeline import Pipeline
from packager.runtimes.table import RUNTIMES
from packager.samples.declarations import Declared
from wire.codec import sha256_hex, to_json
from wire.package.index import asset_directory, asset_uri
from wire.package.manifest import Golden, Manifest, Performance, Variant, VariantInfo

VERSION_DIGITS: Final = 12


def measured_variants(candidates: tuple[Candidate, ...], pipeline: Pipeline) -> tuple[Variant, ...]:
    """Return the candidates that were built and measured, before anything else is known of them."""
    return tuple(
        Variant(name=c.name, directory=c.name, info=_costs(c, pipeline))
        for c in {c.name: c for c in candidates}.values()
        if c.measured and pipeline.lost(c.build, c.measure) is None
    )


def built_variants(
    plan: Plan, pipeline: Pipeline, metric: str, declared: Declared
) -> tuple[Variant, ...]:
    """Return the candidates that were built, evaluated and measured, with their figures.

    Args:
        plan: The plan that was carried out.
        pipeline: What came of it.
        metric: The metric of the build.
        declared: What goes into every variant.

    Returns:
        The variants; without golden samples yet.
    """
    return tuple(
        _variant(candidate, pipeline, metric, declared)
        for candidate in plan.candidates
        if _loss(candidate, pipeline) is None
    )


def assemble(
    name: str,
    version: str,
    variants: tuple[Variant, ...],
    verdicts: Verdicts,
    *,
    pipeline: Pipeline,
    plan: Plan,
    metric: str,
) -> tuple[Manifest, dict[str, Path]]:
    """Put the package together.

    Args:
        name: Of the package.
        version: Of the package; empty for one that follows from the content.
        variants: All measured variants.
        verdicts: Which of them are kept for which profile.
        pipeline: Holds the files, and the golden samples of the kept ones.
        plan: Names the files.
        metric: The metric of the build.

    Returns:
        The manifest, and every other file of the package by its path there.
    """
    folder = pipeline.folder(GOLDEN) / GOLDEN_FOLDER
    golden = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    asset = asset_uri(golden)
    files = {f"{asset_directory(asset)}/{file}": folder / file for file in golden}
    kept: list[Variant] = []
    for variant in variants:
        profiles = tuple(p for p, found in verdicts.items() if _is_kept(found, variant.name))
        if not profiles:
            continue
        candidate = next(c for c in plan.candidates if c.name == variant.name)
        info = msgspec.structs.replace(
            variant.info,
            profiles=profiles,
            golden=_golden(candidate, asset, pipeline),
        )
        kept.append(msgspec.structs.replace(variant, info=info))
        source = pipeline.folder(candidate.build)
        files |= {f"{variant.directory}/{file}": source / file for file in candidate.files}
    manifest = Manifest(
        name=name,
        version=version or "0",
        variants=tuple(kept),
        metadata=_metadata(pipeline, plan, {variant.name for variant in kept}, metric),
    )
    if not version:
        manifest = msgspec.structs.replace(manifest, version=default_version(manifest, files))
    return manifest, files


def candidate_reports(
    plan: Plan, variants: tuple[Variant, ...], verdicts: Verdicts, pipeline: Pipeline
) -> tuple[CandidateReport, ...]:
    """Return what became of every candidate, in the order of the plan."""
    measured = measured_variants(plan.candidates, pipeline)
    known = {variant.name: variant.info for variant in (*measured, *variants)}
    reports: list[CandidateReport] = []
    for candidate in plan.candidates:
        info = known.get(candidate.name)
        reports.append(
            CandidateReport(
                name=candidate.name,
                runtime=candidate.info.runtime,
                precision=candidate.info.precision,
                planned=candidate.info.profiles,
                size_bytes=info.size_bytes if info else None,
                accuracy=info.accuracy if info else None,
                performance=info.performance if info else None,
                files_sha256=pipeline.files_digest(candidate.build, candidate.files)
                if info
                else "",
                lost=_loss(candidate, pipeline) or "",
                profiles={
                    profile: found[candidate.name]
                    for profile, found in verdicts.items()
                    if candidate.name in found
                },
            )
        )
    return tuple(reports)


def first_losses(plan: Plan, pipeline: Pipeline) -> dict[str, str]:
    """Return by profile why the first of its candidates was lost, or could not be planned."""
    lost = [(c.info.profiles, _loss(c, pipeline)) for c in plan.candidates]
    found = [(name, loss) for profiles, loss in lost if loss for name in profiles]
    found += [(i.profile, i.reason) for i in plan.impossible]
    return dict(reversed(found))


def default_version(manifest: Manifest, files: dict[str, Path]) -> str:
    """Return a version that follows from the content: two packages of one version are the same.

    Args:
        manifest: With any version.
        files: Every other file of the package.

    Returns:
        The version.
    """
    digests = {path: file_sha256(source) for path, source in files.items()}
    digest = sha256_hex(to_json([manifest, digests]))
    return f"0-{digest[:VERSION_DIGITS]}"


def needed_repairs(plan: Plan, pipeline: Pipeline, gates: Gates) -> tuple[Repair, ...]:
    """Return the repairs of what was built and misses the gate of quality.

    Args:
        plan: The plan that was carried out.
        pipeline: What came of it.
        gates: The limits.

    Returns:
        The repairs.
    """
    missed: set[str] = set()
    for candidate in plan.candidates:
        if _loss(candidate, pipeline) is None:
            accuracy = pipeline.result(candidate.evaluate, Comparison).accuracy
            if accuracy.retention < gates.min_retention:
                missed.add(candidate.name)
    return tuple(repair for repair in plan.repairs if repair.of in missed)


def repair_notes(plan: Plan, variants: tuple[Variant, ...], pipeline: Pipeline) -> tuple[str, ...]:
    """Say what each repair took, gave and cost.

    Args:
        plan: With the repairs that were tried.
        variants: What was built.
        pipeline: What came of the plan.

    Returns:
        One line per repair.
    """
    known = {variant.name: variant.info for variant in variants}
    notes: list[str] = []
    for repair in plan.repairs:
        name = repair.candidate.name
        if (lost := _loss(repair.candidate, pipeline)) is not None:
            notes.append(f"{name}: {lost}")
            continue
        text = pipeline.result(repair.candidate.build, RepairResult).text
        what = text or f"tried in the place of {repair.of}"
        notes.append(f"{name}: {what}{_price(known.get(repair.of), known[name])}")
    return tuple(notes)


def tuning_notes(plan: Plan, pipeline: Pipeline) -> tuple[str, ...]:
    """Say what each search for schedules did.

    Args:
        plan: The plan that was carried out.
        pipeline: What came of it.

    Returns:
        One line per search.
    """
    notes: list[str] = []
    for step in plan.steps:
        if is_tuning(step) and pipeline.lost(step.name) is None:
            found = pipeline.result(step.name, TuningResult)
            notes.append(
                f"{step.name}: {found.trials} schedules tried for {found.tasks} kernels in "
                f"{found.seconds:.0f} s; {found.reused} were known"
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


def _variant(
    candidate: Candidate,
    pipeline: Pipeline,
    metric: str,
    declared: Declared,
) -> Variant:
    comparison = pipeline.result(candidate.evaluate, Comparison)
    info = msgspec.structs.replace(
        _costs(candidate, pipeline),
        accuracy=comparison.accuracy,
        provenance=_provenance(candidate, pipeline, metric),
    )
    return Variant(
        name=candidate.name,
        directory=candidate.name,
        info=declared.put_into(info),
        ort=_ort(candidate.info),
    )


def _costs(candidate: Candidate, pipeline: Pipeline) -> VariantInfo:
    """Return the declaration with what the files take, and what a measurement found."""
    performance = pipeline.result(candidate.measure, Performance) if candidate.measured else None
    peak_bytes = performance.peak_memory_bytes if performance else 0
    folder = pipeline.folder(candidate.build)
    return msgspec.structs.replace(
        candidate.info,
        size_bytes=sum((folder / file).stat().st_size for file in candidate.files),
        requirements=msgspec.structs.replace(
            candidate.info.requirements, memory_bytes=-(-peak_bytes // MIB) * MIB
        ),
        performance=performance,
    )


def _ort(info: VariantInfo) -> dict[str, Any] | None:
    """Return what ONNX Runtime itself needs to run a variant; None where it cannot."""
    return {"model_file": info.model_file} if RUNTIMES.named(info.runtime).reads_packages else None


def _provenance(candidate: Candidate, pipeline: Pipeline, metric: str) -> dict[str, str]:
    tools = pipeline.toolchain.tools
    return {
        "steps": ", ".join(candidate.steps),
        "metric": metric,
        **{f"tool.{tool}": tools[tool] for tool in candidate.tools if tool in tools},
        **{f"sha256.{name}": digest for name, digest in pipeline.source_digests().items()},
    }


def _golden(candidate: Candidate, asset: str, pipeline: Pipeline) -> Golden:
    chosen = pipeline.result(GOLDEN, GoldenResult)
    return Golden(
        asset=asset,
        samples=len(chosen.samples),
        tolerances=pipeline.result(candidate.evaluate, Comparison).tolerances(),
        min_agreement=chosen.min_agreement,
    )


def _metadata(pipeline: Pipeline, plan: Plan, kept: set[str], metric: str) -> dict[str, Any]:
    """Return what is known of the build as a whole: of its tools only those that made a file."""
    tools = pipeline.toolchain.tools
    _, source = RUNTIMES.of_source(pipeline.result(PREPARE, ModelFacts).kind)
    used = set(source.tools)
    used |= {tool for c in plan.candidates if c.name in kept for tool in c.tools}
    return {
        "built_by": "edgefleet",
        "machine": pipeline.toolchain.machine,
        "metric": metric,
        "sources_sha256": pipeline.source_digests(),
        "tools": {name: tools[name] for name in sorted(used) if name in tools},
    }


def _loss(candidate: Candidate, pipeline: Pipeline) -> str | None:
    return pipeline.lost(*candidate.needed)


def _is_kept(found: dict[str, Verdict], variant: str) -> bool:
    return variant in found and found[variant].kept
