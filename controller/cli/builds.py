"""`fleet build`: a model becomes a package."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from controller.cli.arguments import JsonOption
from controller.cli.build_view import progress, show_plan, show_result
from controller.cli.commands import add_command
from controller.cli.errors import ArgumentError

if TYPE_CHECKING:
    from packager.request import BuildRequest
    from packager.result import BuildResult

ProfileOption = Annotated[
    list[str],
    typer.Option("--profile", "-p", metavar="PROFILE", help="Kind of device to build for."),
]
DEFAULT_CACHE = Path("~/.cache/edgefleet/build")
NEEDED: Final = ("numpy", "onnx", "onnxslim", "cyclonedx")
"""Modules without which no model can be built."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "build", build_command)


def build_command(  # noqa: PLR0913, PLR0917 - one parameter per option
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="An .onnx, .tflite or StableHLO file, or module:callable."
        ),
    ],
    profile: ProfileOption,
    evaluation: Annotated[
        str,
        typer.Option(
            metavar="DATA",
            help="Samples that judge every variant: an .npz file, a folder of .npy or .npz files, "
            "or module:callable. Its arrays have the names of the model's inputs, or `x` for the "
            "only one, and `label` for labels; other names are refused. When it is the only set, "
            "the build splits it.",
        ),
    ],
    calibration: Annotated[
        str, typer.Option(metavar="DATA", help="Other samples, to quantize with.")
    ] = "",
    tuning: Annotated[
        str, typer.Option(metavar="DATA", help="Other samples, to repair integer variants with.")
    ] = "",
    float_only: Annotated[
        bool, typer.Option("--float-only", help="Make no integer variants.")
    ] = False,
    preprocessing: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TOML file that says how raw samples become inputs."),
    ] = None,
    postprocessing: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TOML file that says how outputs become answers."),
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="INPUT=OUTPUT",
            help="Feed this output back as this input at the next step. The samples then are "
            "sequences, with the axes (sequences, steps, ...).",
        ),
    ] = None,
    apart_over: Annotated[
        int,
        typer.Option(
            metavar="BYTES",
            min=0,
            help="Leave the weights of a larger ONNX model in a file beside it, so that no step "
            "holds all of them. Some runtimes cannot be built for then.",
        ),
    ] = 1024**3,
    prune: Annotated[
        float,
        typer.Option(metavar="SHARE", help="Share of a PyTorch model's channels to take out."),
    ] = 0.0,
    training: Annotated[
        str,
        typer.Option(
            metavar="CALLABLE", help="Function module:callable that trains the pruned model."
        ),
    ] = "",
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="One of auto, top1, top5, agreement, mae, rmse, r2, cosine, miou, map, wer, cer "
            "and perplexity, also with options as in miou,axis=1; or module:callable. The default "
            "is auto. Once more for another output with a gate of its own: "
            "OUTPUT=METRIC[,labels=NAME][,min-retention=SHARE]; 8 of these at most.",
            metavar="METRIC",
        ),
    ] = None,
    min_retention: Annotated[
        float,
        typer.Option(
            help="Least share of the reference's metric that a variant must keep.", metavar="SHARE"
        ),
    ] = 0.99,
    max_disagreement: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Most samples whose top answer may differ from the reference's. The default for "
            "metrics of class scores is 0.05, or 5 times what --min-retention lets a variant lose.",
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Refuse a variant if the samples cannot show that it passes the gates of quality.",
        ),
    ] = False,
    max_size: Annotated[
        int | None, typer.Option(metavar="BYTES", help="Largest size of a variant.")
    ] = None,
    max_latency_ms: Annotated[
        float | None,
        typer.Option(
            "--max-latency",
            metavar="MS",
            help="Largest median latency on this machine, or in the field.",
        ),
    ] = None,
    max_memory: Annotated[
        int | None,
        typer.Option(metavar="BYTES", help="Largest memory of the process that runs a variant."),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="VARIANT", help="Keep this variant even when others are better."),
    ] = None,
    search: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD",
            help="Search among all that could be built: exhaustive, random or tpe. By default the "
            "plan's own rule says what is built.",
        ),
    ] = None,
    search_cap: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Candidates that a search builds and measures, beside the reference variant; 24 "
            "by default.",
        ),
    ] = None,
    search_seed: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Seed of a search; 0 by default.")
    ] = None,
    goal: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GOAL",
            help="What a search looks for, the most important first: accuracy, latency, memory or "
            'size, also with a limit, as in "accuracy: at most 1% worse" or "latency: at least 20% '
            'faster". accuracy is about every --metric; one of them is named as there, as in '
            '"boxes=mae: at most 2% worse". What misses a limit is dropped.',
        ),
    ] = None,
    drop_beaten: Annotated[
        bool,
        typer.Option(
            "--drop-beaten",
            help="Drop the fastest variant of a runtime when one of another runtime is better.",
        ),
    ] = False,
    max_variants: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Variants that a profile gets; more if more must stay."
        ),
    ] = 12,
    repair_trials: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="Trials to repair an int8 variant; 0 for no repairs."
        ),
    ] = 24,
    tune: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="Trials for each task to tune TVM; 0 takes known schedules."
        ),
    ] = 0,
    tuning_database: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Known schedules of TVM. The default is in the cache."),
    ] = None,
    min_runs: Annotated[
        int, typer.Option(metavar="N", min=1, help="Inferences of each measurement, at least.")
    ] = 200,
    min_duration_s: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0.0, max=3600.0, help="Length of each measurement, at least."
        ),
    ] = 0.3,
    emulation_s: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=1.0, help="Time to check a variant under emulation."),
    ] = 60.0,
    profile_layers: Annotated[
        bool,
        typer.Option(
            "--profile-layers",
            help="Profile each layer of the kept variants: time, precision, memory and fusions, "
            "for the report.",
        ),
    ] = False,
    measurements: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="JSON report, or figures of the field (`fleet measure figures --out`): they count "
            "for files that are the same.",
        ),
    ] = None,
    measure_on: Annotated[
        str | None,
        typer.Option(
            metavar="SELECTOR",
            help="Publish the candidates, let these lent devices measure them, and build with "
            "their figures.",
        ),
    ] = None,
    measure_timeout: Annotated[
        str, typer.Option(metavar="TIME", help="How long to wait for these devices.")
    ] = "10m",
    remeasure: Annotated[
        bool, typer.Option("--remeasure", help="Measure costs again, although they are known.")
    ] = False,
    name: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Name of the package. The default is the model's file name."
        ),
    ] = "",
    version: Annotated[
        str,
        typer.Option(
            metavar="VERSION", help="Version of the package. The default is made from its content."
        ),
    ] = "",
    licence: Annotated[
        str,
        typer.Option(
            metavar="SPDX",
            help="Licence of the model for the bill of materials, such as Apache-2.0.",
        ),
    ] = "",
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Release key to sign with.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Directory of the package to make."),
    ] = None,
    report: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Write a report to this .html or .json file."),
    ] = None,
    cache: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory of finished steps and measured figures.")
    ] = DEFAULT_CACHE,
    executor: Annotated[
        str, typer.Option(metavar="WHERE", help="Where steps run: local, or dask://HOST:PORT.")
    ] = "local",
    jobs: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="Steps at the same time; 0 for one per processor."),
    ] = 0,
    step_timeout_s: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.001, help="Longest time of a step.")
    ] = 1800.0,
    step_memory: Annotated[
        int,
        typer.Option(
            metavar="BYTES", min=0, help="Largest memory of a step; 0 for its share of 3/4 of all."
        ),
    ] = 0,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a package that is there.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan, and build nothing.")
    ] = False,
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
