"""From a model, data and profiles to a package: composes planner, pipeline, gates and bundle.

What is the same when: with one cache, two builds of the same inputs give the same bytes. With two
caches the model files and golden samples are still the same, but the measured figures (latency,
load time, first inference, peak memory, and so `requirements.memory_bytes`) are new ones; they are
in the manifest, and may decide which variants are kept.

Rules:
- What can be refused early (key, output, names, files) is refused before the first step.
- Every candidate that is not in the package is in the result, with the reason.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec

from packager.bundle import check_output, write_package
from packager.cache import Cache, file_sha256
from packager.compose import (
    CandidateReport,
    assemble,
    built_variants,
    candidate_reports,
)
from packager.errors import BuildError, DataError, ModelError
from packager.figures import DataResult, Inspection, ReferenceResult
from packager.gates import Gates, judge
from packager.keys import load_key
from packager.machine import code_digest, machine_name, tool_versions
from packager.pipeline import Pipeline, Progress, Source, StepRecord, Toolchain
from packager.plan import (
    CALIBRATION,
    CLASS_METRICS,
    EVALUATION,
    EVALUATION_DATA,
    INSPECT,
    METRICS,
    REFERENCE,
    SOURCE,
    Impossible,
    ModelFacts,
    Plan,
    golden_step,
    inspect_step,
    make_plan,
    prepare_step,
)
from packager.process import StepLimits
from packager.recipes import PREPARE, RECIPES, REFERENCE_CANDIDATE
from wire.clock import Clock, SystemClock
from wire.profile import NAME_PATTERN, DeviceProfile

MAX_NAME: Final = 63


class BuildRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be built."""

    model: Path
    profiles: tuple[DeviceProfile, ...]
    evaluation: Path
    """Samples that no quantizer sees: every figure and gate is about them."""

    calibration: Path | None = None
    """Samples from which integer variants take their ranges; None for no integer variants."""

    output: Path | None = None
    """None for `<name>-package` in the working directory."""

    cache: Path
    name: str = ""
    """Empty for the model's file name."""

    version: str = ""
    """Empty for one that follows from the content, so that a version is never two packages."""

    metric: str = "auto"
    gates: Gates = Gates()
    keep: tuple[str, ...] = ()
    """Variants that are kept though others beat them."""

    key: Path | None = None
    """Release key to sign with; None for an unsigned package."""

    force: bool = False
    limits: StepLimits = StepLimits()


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
    """Where all figures were measured."""

    metric: str
    samples: int
    """Of the evaluation data."""

    candidates: tuple[CandidateReport, ...]
    impossible: tuple[Impossible, ...]
    notes: tuple[str, ...]
    steps: tuple[StepRecord, ...]

    @property
    def cached(self) -> bool:
        """Whether every step came from the cache."""
        return all(step.state == "cached" for step in self.steps)


def build(request: BuildRequest, progress: Progress, *, clock: Clock | None = None) -> BuildResult:
    """Build a package.

    Args:
        request: What is to be built.
        progress: Told one line per step.
        clock: The source of durations; None for the machine's own.

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
    check_output(output, force=request.force)
    key = load_key(request.key) if request.key else None
    pipeline, plan = _plan(request, progress, clock or SystemClock())
    if not plan.candidates:
        raise BuildError(f"there is no candidate: {plan.impossible[0].reason}")
    _check_keep(request.keep, plan)
    pipeline.run(plan.steps)
    metric = pipeline.result(REFERENCE, ReferenceResult).metric
    variants = built_variants(plan, pipeline, metric)
    verdicts = judge(
        variants,
        request.profiles,
        request.gates,
        reference=REFERENCE_CANDIDATE,
        architecture=pipeline.toolchain.machine.split()[0],
        keep=frozenset(request.keep),
    )
    kept = {n for verdict in verdicts.values() for n, v in verdict.items() if v.kept}
    winners = tuple(c for c in plan.candidates if c.name in kept)
    pipeline.run([golden_step(winners, classes=metric in CLASS_METRICS)])
    manifest, files = assemble(
        name, request.version, variants, verdicts, pipeline=pipeline, plan=plan, metric=metric
    )
    index = write_package(output, manifest, files, key=key, force=request.force)
    data = pipeline.result(EVALUATION_DATA, DataResult)
    facts = pipeline.result(PREPARE, ModelFacts)
    return BuildResult(
        name=name,
        version=manifest.version,
        package=str(output),
        digest=index.digest,
        size_bytes=index.size_bytes,
        signed=key is not None,
        machine=pipeline.toolchain.machine,
        metric=metric,
        samples=data.samples,
        candidates=candidate_reports(plan, variants, verdicts, pipeline),
        impossible=plan.impossible,
        notes=(*facts.notes, *_data_notes(data)),
        steps=tuple(pipeline.records),
    )


def plan_build(request: BuildRequest, progress: Progress, *, clock: Clock | None = None) -> Plan:
    """Plan a build without carrying it out; only the model is read.

    Args:
        request: What would be built.
        progress: Told one line per step.
        clock: The source of durations; None for the machine's own.

    Returns:
        The plan.

    Raises:
        BuildError: The model or the request is at fault.
    """
    _, plan = _plan(request, progress, clock or SystemClock())
    _check_keep(request.keep, plan)
    return plan


def package_name(request: BuildRequest) -> str:
    """Return the package's name: as asked, else from the model's file.

    Args:
        request: What is to be built.

    Returns:
        A plain name.

    Raises:
        BuildError: The name or version that was asked for is not plain.
    """
    for role, text in (("name", request.name), ("version", request.version)):
        if text and NAME_PATTERN.fullmatch(text) is None:
            raise BuildError(
                f"{role} {text[:80]!r} is not plain",
                remedy="use up to 63 lower-case letters, digits, dots, dashes, underscores",
            )
    plain = re.sub(r"[^a-z0-9._-]+", "-", request.model.stem.lower()).strip("._-")
    return request.name or plain[:MAX_NAME] or "model"


def _plan(request: BuildRequest, progress: Progress, clock: Clock) -> tuple[Pipeline, Plan]:
    _check_request(request)
    sources = _sources(request)
    toolchain = Toolchain(tools=tool_versions(), code=code_digest(), machine=machine_name())
    pipeline = Pipeline(
        sources,
        cache=Cache(request.cache),
        toolchain=toolchain,
        limits=request.limits,
        clock=clock,
        progress=progress,
    )
    pipeline.run([inspect_step()])
    pipeline.run([prepare_step(_external(request.model, pipeline.result(INSPECT, Inspection)))])
    plan = make_plan(
        pipeline.result(PREPARE, ModelFacts),
        request.profiles,
        tools=toolchain.tools,
        metric=request.metric,
        calibrated=request.calibration is not None,
    )
    return pipeline, plan


def _check_request(request: BuildRequest) -> None:
    names = [profile.name for profile in request.profiles]
    if not names:
        raise BuildError("no profile was named", remedy="add --profile; see: fleet profile list")
    if len(set(names)) != len(names):
        raise BuildError("a profile was named twice")
    if request.metric not in METRICS:
        raise BuildError(
            f"there is no metric {request.metric!r}", remedy=f"use {', '.join(METRICS)}"
        )
    if not 0.0 <= request.gates.min_retention <= 1.0:
        raise BuildError(f"retention {request.gates.min_retention} is not within 0 to 1")


def _sources(request: BuildRequest) -> dict[str, Source]:
    paths = {SOURCE: request.model, EVALUATION: request.evaluation}
    if request.calibration is not None:
        paths[CALIBRATION] = request.calibration
    sources = {
        name: Source(path=path.resolve(), sha256=file_sha256(path)) for name, path in paths.items()
    }
    if CALIBRATION in sources and sources[CALIBRATION].sha256 == sources[EVALUATION].sha256:
        raise DataError(
            "calibration and evaluation are the same data",
            remedy="figures are only worth something on data that no quantizer saw; split them",
        )
    return sources


def _external(model: Path, inspection: Inspection) -> dict[str, str]:
    for name in inspection.external:
        if not (model.parent / name).is_file():
            raise ModelError(
                f"the model's external data are missing: {name}",
                remedy="put the file beside the model",
            )
    return {name: file_sha256(model.parent / name) for name in inspection.external}


def _check_keep(keep: tuple[str, ...], plan: Plan) -> None:
    known = [candidate.name for candidate in plan.candidates]
    for name in keep:
        if name not in known:
            reasons = [i.reason for i in plan.impossible if i.candidate == name]
            known_recipe = any(recipe.name == name for recipe in RECIPES)
            detail = f": {reasons[0]}" if known_recipe and reasons else ""
            raise BuildError(
                f"{name[:80]!r} cannot be kept, it is no candidate{detail}",
                remedy=f"candidates are {', '.join(known)}",
            )


def _data_notes(data: DataResult) -> tuple[str, ...]:
    if not data.overlap:
        return ()
    return (f"{data.overlap:.2%} of the evaluation samples are calibration samples too",)
