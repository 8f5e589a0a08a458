"""Builds a package from a model, data and profiles: plans, runs steps, judges, writes.

With one cache, two builds of the same inputs give the same bytes. With two caches, the model files
and golden samples are still the same, but each build measures its own figures (latency, load time,
first inference, peak memory, and so `requirements.memory_bytes`). They are in the manifest and may
decide which variants are kept. If the second build uses the figures in the first one's report
(`measurements`), both give the same bytes.

Rules:
- The build refuses a wrong key, output, name or file before the first step.
- The result lists every candidate that is not in the package, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec

from packager.errors import BuildError
from packager.judge.field import field_notes, judge_each, untold
from packager.judge.gates import require_variants, too_slow
from packager.judge.shapes import weak_notes
from packager.materials.documents import documents
from packager.materials.making import making_of
from packager.materials.values import Described
from packager.package.compose import (
    assemble,
    built_variants,
    default_version,
    measured_variants,
    needed_repairs,
    tried_variant,
)
from packager.package.directory import write_package
from packager.package.field import put_field
from packager.package.keys import load_key
from packager.package.other_kernels import try_other_kernels
from packager.package.reservation import reserved
from packager.plan.figures import (
    DataResult,
    ReferenceResult,
)
from packager.plan.step_names import DATA, REFERENCE
from packager.plan.steps import golden_step, layers_step
from packager.plan.values import Candidate, Plan, Step
from packager.preparation import Prepared, prepared_build
from packager.request import (
    BuildRequest,
    package_name,
    tuning_database,
)
from packager.result import (
    BuildResult,
    candidate_reports,
    doubt_notes,
    drift_notes,
    first_losses,
    latency_notes,
    layers_notes,
    repair_notes,
    tuning_notes,
    unused_gate_notes,
)
from packager.run.cache import file_sha256
from packager.run.earlier_builds import keep_schedules
from packager.run.pipeline import Pipeline, Progress
from packager.runtimes.table import RUNTIMES
from packager.search.report import SearchRun, search_notes
from packager.search.run import carry_out, judge_with, report_of
from wire.package.manifest import Manifest
from wire.package.variant import Variant


def build(request: BuildRequest, progress: Progress) -> BuildResult:
    """Build a package.

    Args:
        request: What to build.
        progress: Called with one line for each step.

    Returns:
        The result.

    Raises:
        BuildError: The model, the data or the request is at fault, or a vital step failed.
        QualityGateError: A profile is left without any variant.
        PackageError: The output exists or cannot be written.
        KeyFileError: The key cannot be used.
    """
    name = package_name(request)
    output = request.output or Path(f"{name}-package")
    key = load_key(request.key) if request.key else None
    with reserved(output, force=request.force), prepared_build(request, progress) as prepared:
        pipeline, plan, slow, search = _carried_out(prepared, request)
        found = pipeline.result(REFERENCE, ReferenceResult)
        metric = found.metric
        variants = built_variants(plan, pipeline, metric, prepared.declared, request.gates)
        told = prepared.measurements.field
        variants = put_field(variants, told, plan, pipeline)
        verdicts = judge_each(
            partial(judge_with, request.search),
            variants,
            request.profiles,
            gates=request.gates,
            references=plan.references,
            here=plan.here,
            keep=frozenset(request.keep),
            families={c.name: RUNTIMES.recipes[c.recipe].family or c.name for c in plan.candidates},
            drop_beaten=request.drop_beaten,
        )
        require_variants(verdicts, first_losses(plan, pipeline))
        kept = {n for verdict in verdicts.values() for n, v in verdict.items() if v.kept}
        winners = tuple(c for c in plan.candidates if c.name in kept)
        after = prepared.declared.postprocessing
        others = try_other_kernels(
            winners, variants, plan=plan, pipeline=pipeline, gates=request.gates
        )
        pipeline.run(
            [golden_step(winners, others=others.tolerances, metric=metric, declared=after)]
        )
        if request.profile_layers:
            pipeline.run(_layers_steps(winners, variants))
        manifest, files = assemble(
            name,
            request.version,
            variants,
            verdicts,
            pipeline=pipeline,
            plan=plan,
            metric=metric,
            others=others.tolerances,
        )
        manifest, origin = _with_origin(manifest, files, request, prepared, plan)
        index = write_package(output, manifest, {**files, **origin}, key=key, force=request.force)
    data = pipeline.result(DATA, DataResult)
    searched = report_of(request.search, search, variants, request.profiles, verdicts, plan)
    return BuildResult(
        name=name,
        version=manifest.version,
        package=str(output),
        digest=index.digest,
        size_bytes=index.size_bytes,
        signed=key is not None,
        machine=pipeline.toolchain.machine,
        metric=metric,
        metric_reason=found.reason,
        here=tuple(sorted(plan.here)),
        samples=max(
            (v.info.accuracy.samples for v in variants if v.info.accuracy is not None),
            default=data.samples["gate"],
        ),
        candidates=candidate_reports(plan, variants, verdicts, pipeline, slow=slow),
        impossible=plan.impossible,
        search=searched or msgspec.UNSET,
        notes=(
            *prepared.notes,
            *data.notes,
            *found.notes,
            *search_notes(searched),
            *tuning_notes(plan, pipeline),
            *repair_notes(plan, variants, pipeline),
            *doubt_notes(variants, verdicts),
            *unused_gate_notes(variants, request.gates),
            *drift_notes(variants),
            *weak_notes(variants, kept, request.gates.min_retention),
            *latency_notes(
                plan,
                measured_variants(plan.candidates, pipeline),
                untold(variants, request.profiles),
                request.gates,
            ),
            *field_notes(variants, request.profiles, told),
            *layers_notes(plan, pipeline),
            *others.notes,
        ),
        steps=tuple(pipeline.records),
    )


def _with_origin(
    manifest: Manifest,
    files: Mapping[str, Path],
    request: BuildRequest,
    prepared: Prepared,
    plan: Plan,
) -> tuple[Manifest, dict[str, bytes]]:
    """Write what a package says of its origin, and give it a version if it has none.

    Returns:
        The manifest, and the documents by their paths in the package.
    """
    known = Described(
        manifest=manifest,
        digests={path: file_sha256(source) for path, source in files.items()},
        making=making_of(
            request,
            manifest,
            plan=plan,
            pipeline=prepared.pipeline,
            measurements=prepared.measurements,
        ),
    )
    origin = documents(known)
    if request.version:
        return manifest, origin
    version = default_version(manifest, known.digests, origin)
    manifest = msgspec.structs.replace(manifest, version=version)
    return manifest, documents(msgspec.structs.replace(known, manifest=manifest))


def _layers_steps(kept: tuple[Candidate, ...], variants: tuple[Variant, ...]) -> list[Step]:
    """Return the steps that profile those of the kept variants that were measured."""
    known = {variant.name: variant.info.performance for variant in variants}
    found = [(candidate, known[candidate.name]) for candidate in kept if candidate.measured]
    return [layers_step(c, figures, RUNTIMES) for c, figures in found if figures is not None]


def plan_build(request: BuildRequest, progress: Progress) -> Plan:
    """Plan a build without carrying it out.

    The model is read. If postprocessing is declared, it is tried on some samples, where the model
    can run here.

    Args:
        request: What to plan.
        progress: Called with one line for each step.

    Returns:
        The plan.

    Raises:
        BuildError: The model or the request is at fault, or the declared postprocessing.
    """
    with prepared_build(request, progress, plan_only=True) as prepared:
        return prepared.plan


def _carried_out(
    prepared: Prepared, request: BuildRequest
) -> tuple[Pipeline, Plan, dict[str, str], SearchRun | None]:
    """Run the plan, then the repairs that its results need.

    Returns:
        The results, the plan that was carried out, which candidates are too slow and why, and what
        a search tried.

    Raises:
        BuildError: The plan is empty, or a vital step failed.
    """
    pipeline, plan = prepared.pipeline, prepared.plan
    if not plan.candidates:
        raise BuildError(
            f"there is no candidate: {plan.impossible[0].reason}",
            remedy="--dry-run says of each why it cannot be built",
        )
    if request.search is not None:
        plan, slow, run = carry_out(
            request.search,
            plan,
            pipeline,
            lambda now, candidates, steps: _make_and_check(
                candidates, steps, msgspec.structs.replace(prepared, plan=now), request
            ),
            lambda candidate: tried_variant(candidate, pipeline),
            runtimes=RUNTIMES,
            keep=request.keep,
        )
        if request.tune:
            keep_schedules(pipeline, plan, tuning_database(request))
        return pipeline, plan, slow, run
    done = {record.name for record in pipeline.records}  # the samples may be read already
    steps = {step.name: step for step in plan.steps if step.name not in done}
    slow = _make_and_check(plan.candidates, tuple(steps.values()), prepared, request)
    if request.tune:
        keep_schedules(pipeline, plan, tuning_database(request))
    needed = needed_repairs(plan, pipeline, request.gates)
    steps = {step.name: step for repair in needed for step in repair.steps}
    slow |= _make_and_check(
        tuple(repair.candidate for repair in needed), tuple(steps.values()), prepared, request
    )
    tried = (*plan.candidates, *(repair.candidate for repair in needed))
    return pipeline, msgspec.structs.replace(plan, candidates=tried, repairs=needed), slow, None


def _make_and_check(
    candidates: tuple[Candidate, ...],
    steps: tuple[Step, ...],
    prepared: Prepared,
    request: BuildRequest,
) -> dict[str, str]:
    """Make candidates, measure them, and evaluate those that are fast enough to be useful.

    Returns:
        Those that are too slow, with the reason.
    """
    pipeline, plan = prepared.pipeline, prepared.plan
    evaluating = {candidate.evaluate for candidate in candidates}
    making = [
        s
        for s in steps
        if s.kind != "measure" and s.name not in evaluating and not pipeline.has(s.name)
    ]
    pipeline.run(making)
    prepared.measurements.apply(candidates, steps, pipeline)
    measuring = [step for step in steps if step.kind == "measure"]
    if request.remeasure:
        pipeline.forget(measuring)
    pipeline.run(measuring)
    hopeless = too_slow(
        measured_variants((*plan.candidates, *candidates), pipeline),
        request.profiles,
        request.gates,
        references=plan.references,
        here=plan.here,
        keep=frozenset(request.keep),
        drop_beaten=request.drop_beaten,
    )
    reasons = {c.evaluate: hopeless[c.name] for c in candidates if c.name in hopeless}
    for step in steps:
        if step.name in reasons:
            pipeline.skip(step, reasons[step.name])
    pipeline.run(s for s in steps if s.name in evaluating and s.name not in reasons)
    return hopeless
