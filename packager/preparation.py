"""Prepares a build up to its plan: checks what was given, reads the model, and plans.

Rules:
- What is at fault in a request ends the build here, before anything is built.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from packager.callables import plain_name
from packager.default_inputs import prepare_model
from packager.errors import BuildError, DataError
from packager.judge.further import reads_boxes
from packager.judge.metrics import is_matched
from packager.model_files import external_digests, is_apart, may_have_external_data
from packager.plan.figures import (
    Imported,
    Inspection,
    ModelFacts,
    ProcessingResult,
)
from packager.plan.model_steps import import_step, inspect_step, prepare_step, processing_step
from packager.plan.recipes import MODEL_FILE, PREPARE, SourceKind
from packager.plan.states import check_states, read_states
from packager.plan.step_names import (
    DATA,
    IMPORT,
    INSPECT,
    METRIC,
    PROCESSING,
    SOURCE,
    TUNING_DATABASE,
)
from packager.plan.values import Plan, PlanInputs, PlanSettings
from packager.request import (
    BuildRequest,
    check_request,
    other_sources,
    sample_sources,
)
from packager.run.cache import Cache
from packager.run.earlier_builds import Measurements, read_measurements
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
from packager.search.run import plan_with
from packager.sources.kinds import Kind, source_kind
from runtime_adapters.processor import machine_name


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A build that is prepared up to its plan."""

    pipeline: Pipeline
    plan: Plan
    declared: Declared
    measurements: Measurements
    notes: tuple[str, ...]


@contextlib.contextmanager
def prepared_build(
    request: BuildRequest, progress: Progress, *, plan_only: bool = False
) -> Iterator[Prepared]:
    """Prepare a build; the context keeps the executor of its steps.

    Args:
        request: What to build.
        progress: Called with one line for each step.
        plan_only: Whether only the plan is wanted, which needs no model that runs here.

    Yields:
        The build, up to its plan.

    Raises:
        BuildError: The request, the model, or the declared postprocessing is at fault.
    """
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
        kept = _tried(declared, given, plan, pipeline, progress, plan_only=plan_only)
        yield Prepared(
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
    pipeline.name_digests({f"{SOURCE}-data-{i}": external[n] for i, n in enumerate(external, 1)})
    if apart and not request.jobs:
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
    plan: Plan,
    pipeline: Pipeline,
    progress: Progress,
    *,
    plan_only: bool,
) -> tuple[str, ...]:
    """Read the samples, and try the declared postprocessing on real answers; return notes.

    Raises:
        BuildError: The samples do not fit the model, or the postprocessing its answers; or the
            model cannot run, unless only a plan is wanted.
    """
    pipeline.run(step for step in plan.steps if step.name == DATA)
    if not declared.postprocessing:
        return ()
    try:
        pipeline.run([processing_step(given, declared.postprocessing)])
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
