"""`fleet build`: a model becomes a package."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from controller.cli import build_options as options
from controller.cli.arguments import JsonOption
from controller.cli.build_view import progress, show_plan, show_result
from controller.cli.commands import add_command
from controller.cli.errors import ArgumentError

if TYPE_CHECKING:
    from packager.request import BuildRequest
    from packager.result import BuildResult

DEFAULT_CACHE = Path("~/.cache/edgefleet/build")
NEEDED: Final = ("numpy", "onnx", "onnxslim", "cyclonedx")
"""Modules without which no model can be built."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "build", build_command)


def build_command(  # noqa: PLR0913, PLR0917 - one parameter per option
    context: typer.Context,
    model: options.Model,
    profile: options.Profile,
    evaluation: options.Evaluation,
    calibration: options.Calibration = "",
    tuning: options.Tuning = "",
    float_only: options.FloatOnly = False,
    preprocessing: options.Preprocessing = None,
    postprocessing: options.Postprocessing = None,
    state: options.State = None,
    apart_over: options.ApartOver = 1024**3,
    prune: options.Prune = 0.0,
    training: options.Training = "",
    metric: options.Metric = None,
    min_retention: options.MinRetention = 0.99,
    max_disagreement: options.MaxDisagreement = None,
    strict: options.Strict = False,
    max_size: options.MaxSize = None,
    max_latency_ms: options.MaxLatency = None,
    max_memory: options.MaxMemory = None,
    keep: options.Keep = None,
    search: options.Search = None,
    search_cap: options.SearchCap = None,
    search_seed: options.SearchSeed = None,
    goal: options.Goal = None,
    drop_beaten: options.DropBeaten = False,
    max_variants: options.MaxVariants = 12,
    repair_trials: options.RepairTrials = 24,
    tune: options.Tune = 0,
    tuning_database: options.TuningDatabase = None,
    min_runs: options.MinRuns = 200,
    min_duration_s: options.MinDuration = 0.3,
    emulation_s: options.Emulation = 60.0,
    profile_layers: options.ProfileLayers = False,
    measurements: options.Measurements = None,
    measure_on: options.MeasureOn = None,
    measure_timeout: options.MeasureTimeout = "10m",
    remeasure: options.Remeasure = False,
    name: options.Name = "",
    version: options.Version = "",
    licence: options.Licence = "",
    key: options.Key = None,
    output: options.Output = None,
    report: options.Report = None,
    cache: options.Cache = DEFAULT_CACHE,
    executor: options.Executor = "local",
    jobs: options.Jobs = 0,
    step_timeout_s: options.StepTimeout = 1800.0,
    step_memory: options.StepMemory = 0,
    force: options.Force = False,
    dry_run: options.DryRun = False,
    json: JsonOption = False,
) -> None:
    """Build a package from a model.

    The package holds the best variants for each profile, and at least the fastest one for each of
    its runtimes: a device may have that one alone.

    A second build takes finished steps from the cache, measured figures among them, and gives the
    same bytes. With another cache the model files are the same and the measured figures are new,
    unless --measurements names the first build's report.

    With --measure-on the latencies of lent devices of the fleet count for their profiles
    (docs/measuring.md).

    Examples:
        fleet build model.onnx -p rpi4 --evaluation samples.npz -o detector-1.0.0
        fleet build model.onnx -p rpi4 --evaluation samples.npz --dry-run
    """
    _check_packager()
    from controller.cli.measured_builds import measured_on
    from packager.build import build, plan_build
    from packager.device_profiles import load_profile
    from packager.judge.further import read_further
    from packager.judge.gates import Gates
    from packager.report.page import check_report_path, write_report
    from packager.request import BuildRequest
    from packager.run.process import StepLimits
    from packager.search.settings import read_search

    for path in report or ():
        check_report_path(path, output)
    further = read_further((metric or [])[1:])
    request = BuildRequest(
        model=model,
        profiles=tuple(load_profile(text) for text in profile),
        evaluation=evaluation,
        calibration=calibration,
        tuning=tuning,
        float_only=float_only,
        preprocessing=preprocessing,
        postprocessing=postprocessing,
        states=tuple(state or ()),
        apart_over_bytes=apart_over,
        prune=prune,
        training=training,
        output=output,
        cache=_expanded(cache),
        name=name,
        version=version,
        licence=licence,
        metric=(metric or ["auto"])[0],
        gates=Gates(
            min_retention=min_retention,
            max_disagreement=max_disagreement,
            strict=strict,
            further=further,
            max_size_bytes=max_size,
            max_latency_ms=max_latency_ms,
            max_memory_bytes=max_memory,
            max_variants=max_variants,
        ),
        search=read_search(
            search,
            search_cap,
            tuple(goal or ()),
            search_seed,
            metric=(metric or ["auto"])[0],
            further=further,
        ),
        keep=tuple(keep or ()),
        drop_beaten=drop_beaten,
        repair_trials=repair_trials,
        tune=tune,
        tuning_database=tuning_database,
        min_runs=min_runs,
        min_duration_s=min_duration_s,
        emulation_s=emulation_s,
        profile_layers=profile_layers,
        measurements=measurements,
        remeasure=remeasure,
        key=key,
        force=force,
        executor=executor,
        jobs=jobs,
        limits=StepLimits(timeout_s=step_timeout_s, memory_bytes=step_memory),
    )
    if dry_run:
        with progress() as tell:
            plan = plan_build(request, tell)
        show_plan(request, plan, json=json)
        return

    def carry_out(wanted: BuildRequest) -> BuildResult:
        with progress() as tell:
            return build(wanted, tell)

    with measured_on(context, request, measure_on, measure_timeout, carry_out) as told:
        result = carry_out(told)
    for path in report or ():
        write_report(path, result, request.profiles, gates=request.gates)
    show_result(request, result, json=json)


def _check_packager() -> None:
    """Refuse to begin without the extra: a step in a process of its own would fail much later.

    Raises:
        ArgumentError: It is not installed.
    """
    missing = next((name for name in NEEDED if importlib.util.find_spec(name) is None), None)
    if missing is not None:
        raise ArgumentError(
            f"{missing} is not installed here, and building needs it",
            remedy="pip install 'edgefleet[packager]'",
        )


def _expanded(path: Path) -> Path:
    """Replace `~` by a home directory.

    Raises:
        ArgumentError: There is no such user.
    """
    try:
        return path.expanduser()
    except RuntimeError as exc:
        raise ArgumentError(
            f"{path}: no such user", remedy="write the path without ~, or correct the name after it"
        ) from exc
