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

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec

from packager.callables import plain_name
from packager.default_inputs import prepare_model
from packager.errors import BuildError, DataError
from packager.judge.field import field_notes, judge_each, untold
from packager.judge.further import reads_boxes
from packager.judge.gates import require_variants, too_slow
from packager.judge.metrics import is_matched
from packager.judge.shapes import weak_notes
from packager.model_files import external_digests, is_apart, may_have_external_data
from packager.package.compose import (
    assemble,
    built_variants,
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
    Imported,
    Inspection,
    ModelFacts,
    ProcessingResult,
    ReferenceResult,
)
from packager.plan.recipes import MODEL_FILE, PREPARE, SourceKind
from packager.plan.states import check_states, read_states
from packager.plan.steps import (
    DATA,
    IMPORT,
    INSPECT,
    METRIC,
    PROCESSING,
    REFERENCE,
    SOURCE,
    TUNING_DATABASE,
    data_step,
    golden_step,
    import_step,
    inspect_step,
    layers_step,
    prepare_step,
    processing_step,
)
from packager.plan.values import Candidate, Plan, PlanInputs, PlanSettings, Step
from packager.request import (
    BuildRequest,
    check_request,
    other_sources,
    package_name,
    sample_sources,
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
from packager.run.cache import Cache
from packager.run.earlier_builds import Measurements, keep_schedules, read_measurements
from packager.run.executors import default_jobs, open_executor
from packager.run.pipeline import Pipeline, Progress, Toolchain
from packager.runtimes.host import code_digest, describe_host
from packager.runtimes.table import RUNTIMES
from packager.samples.declarations import (
    Declared,
    declared_lines,
    read_postprocessing,
    read_preprocessing,
)
from packager.search.report import SearchRun, search_notes
from packager.search.run import carry_out, judge_with, plan_with, report_of
from packager.sources.kinds import Kind, source_kind
from runtime_adapters.processor import machine_name
from wire.package.manifest import Variant


class _Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A build that is prepared up to its plan."""

    pipeline: Pipeline
    plan: Plan
    declared: Declared
    measurements: Measurements
    notes: tuple[str, ...]


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
    with reserved(output, force=request.force), _prepared(request, progress) as prepared:
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
        index = write_package(output, manifest, files, key=key, force=request.force)
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
        samples=data.samples["gate"],
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
    with _prepared(request, progress, plan_only=True) as prepared:
        return prepared.plan


def _carried_out(
    prepared: _Prepared, request: BuildRequest
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
        raise BuildError(f"there is no candidate: {plan.impossible[0].reason}")
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
    prepared: _Prepared,
    request: BuildRequest,
) -> dict[str, str]:
    """Make candidates, measure them, and evaluate those that are fast enough to be useful.

    Returns:
        Those that are too slow, with the reason.
    """
    pipeline, plan = prepared.pipeline, prepared.plan
    evaluating = {candidate.evaluate for candidate in candidates}
    making = [s for s in steps if s.kind != "measure" and s.name not in evaluating]
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


@contextlib.contextmanager
def _prepared(
    request: BuildRequest, progress: Progress, *, plan_only: bool = False
) -> Iterator[_Prepared]:
    check_request(request)
    kind = source_kind(request.model)
    sets, callables = sample_sources(request)
    sources = {**sets, **other_sources(request)}
    measurements = read_measurements(request.measurements)
    host = describe_host(request.profiles, RUNTIMES)
    toolchain = Toolchain(tools=host.tools, code=code_digest(), machine=machine_name())
    jobs = request.jobs or default_jobs()
    with open_executor(request.executor, jobs) as executor:
        pipeline = Pipeline(
            sources,
            cache=Cache(request.cache),
            toolchain=toolchain,
            limits=request.limits,
            executor=executor,
            jobs=jobs,
            progress=progress,
        )
        notes = _take_in(request, kind, pipeline)
        facts = pipeline.result(PREPARE, ModelFacts)
        states = read_states(request.states)
        check_states(states, facts.inputs, facts.outputs)
        declared = _declared(request, facts)
        settings = PlanSettings(
            metric=plain_name(request.metric) if METRIC in sources else request.metric,
            further=request.gates.further,
            boxes=declared.boxes if reads_boxes(request.metric, request.gates.further) else {},
            own_metric=METRIC in sources,
            matched=METRIC not in sources and is_matched(request.metric),
            sets=tuple(sets),
            callables=callables,
            preprocessing=request.preprocessing is not None,
            states=states,
            integers=not request.float_only,
            keep=frozenset(request.keep),
            min_retention=request.gates.min_retention,
            repair_trials=request.repair_trials,
            tuning_trials=request.tune,
            tuned=TUNING_DATABASE in sources,
            min_runs=request.min_runs,
            min_duration_s=request.min_duration_s,
            emulation_s=request.emulation_s,
        )
        given = PlanInputs(facts=facts, host=host, settings=settings, runtimes=RUNTIMES)
        plan = plan_with(
            request.search,
            facts,
            request.profiles,
            runtimes=RUNTIMES,
            host=host,
            settings=settings,
        )
        if measurements.here is not None:
            plan = msgspec.structs.replace(plan, here=frozenset(measurements.here))
        _check_keep(request.keep, plan)
        kept = _tried(declared, given, pipeline, progress, plan_only=plan_only)
        yield _Prepared(
            pipeline=pipeline,
            plan=plan,
            declared=declared,
            measurements=measurements,
            notes=(*notes, *facts.notes, *facts.interface, *declared_lines(declared), *kept),
        )


def _take_in(request: BuildRequest, kind: Kind, pipeline: Pipeline) -> tuple[str, ...]:
    """Run the steps that end with a checked, clean model; return notes about them."""
    notes: tuple[str, ...] = ()
    model, external = SOURCE, dict[str, str]()
    format_: SourceKind = "onnx"
    if kind == "function":
        pipeline.run([import_step(request.model, prune=request.prune, training=request.training)])
        model, notes = IMPORT, pipeline.result(IMPORT, Imported).notes
    elif kind != "onnx":
        format_ = kind
    elif may_have_external_data(Path(request.model)):
        pipeline.run([inspect_step(SOURCE)])
        external = external_digests(Path(request.model), pipeline.result(INSPECT, Inspection))
    path = pipeline.folder(IMPORT) / MODEL_FILE if model == IMPORT else Path(request.model)
    files = [path, *(path.parent / name for name in external)]
    apart = format_ == "onnx" and is_apart(files, request.apart_over_bytes)
    if apart:
        pipeline.name_digests(
            {f"{SOURCE}-data-{i}": external[n] for i, n in enumerate(external, 1)}
        )
        if not request.jobs:
            pipeline.one_at_a_time()  # the memory that a build needs is then that of one step
    _, source = RUNTIMES.of_source(format_)
    prepare_model(pipeline, prepare_step(source, model, external, apart=apart), request)
    return notes


def _declared(request: BuildRequest, facts: ModelFacts) -> Declared:
    before, after = request.preprocessing, request.postprocessing
    return Declared(
        preprocessing=read_preprocessing(before, facts.inputs) if before else {},
        postprocessing=read_postprocessing(after, facts.outputs) if after else {},
    )


def _tried(
    declared: Declared,
    given: PlanInputs,
    pipeline: Pipeline,
    progress: Progress,
    *,
    plan_only: bool,
) -> tuple[str, ...]:
    """Try the declared postprocessing on real answers before anything is built; return notes.

    Raises:
        BuildError: It does not fit the answers; or the model cannot run, unless only a plan is
            wanted.
    """
    if not declared.postprocessing:
        return ()
    try:
        pipeline.run([data_step(given), processing_step(given, declared.postprocessing)])
    except BuildError as exc:
        if not plan_only or isinstance(exc, DataError):
            raise
        progress(f"the postprocessing was not tried: {exc}")
        return ()
    return pipeline.result(PROCESSING, ProcessingResult).notes


def _check_keep(keep: tuple[str, ...], plan: Plan) -> None:
    known = [candidate.name for candidate in plan.candidates]
    known += [repair.candidate.name for repair in plan.repairs]
    for name in keep:
        if name not in known:
            reasons = [i.reason for i in plan.impossible if i.candidate == name]
            detail = f": {reasons[0]}" if name in RUNTIMES.recipes and reasons else ""
            raise BuildError(
                f"{name[:80]!r} cannot be kept, because it is not a candidate{detail}",
                remedy=f"candidates are {', '.join(known)}",
            )
