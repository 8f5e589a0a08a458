"""`fleet build` and `tool`: a model becomes a package."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli.arguments import JsonOption
from controller.cli.output import (
    bytes_text,
    remark,
    write,
    write_fields,
    write_plain_json,
    write_table,
)

if TYPE_CHECKING:
    from packager.plan.values import Plan
    from packager.request import BuildRequest
    from packager.result import BuildResult

ProfileOption = Annotated[
    list[str],
    typer.Option(
        "--profile", "-p", metavar="NAME_OR_FILE", help="Kind of device; may be given repeatedly."
    ),
]
DEFAULT_CACHE = Path("~/.cache/edgefleet/build")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("build")(build_command)
    tool = typer.Typer(help="Tools that the packager calls.", no_args_is_help=True)
    tool.command("list")(tool_list)
    tool.command("install")(tool_install)
    app.add_typer(tool, name="tool")


def build_command(  # noqa: PLR0913, PLR0917 - one parameter per option
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
            help="Samples on which every variant is judged: an .npz file, a folder of .npy files, "
            "or module:callable. As the only set it is split.",
        ),
    ],
    calibration: Annotated[
        str, typer.Option(metavar="DATA", help="Other samples, for integer variants.")
    ] = "",
    tuning: Annotated[
        str, typer.Option(metavar="DATA", help="Other samples, to steer repairs.")
    ] = "",
    float_only: Annotated[
        bool, typer.Option("--float-only", help="No integer variants; every sample judges.")
    ] = False,
    preprocessing: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="How raw samples become what the model takes."),
    ] = None,
    postprocessing: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="How the model's outputs become answers."),
    ] = None,
    prune: Annotated[
        float, typer.Option(metavar="SHARE", help="Of a PyTorch model's channels, to take out.")
    ] = 0.0,
    training: Annotated[
        str, typer.Option(metavar="CALLABLE", help="Trains the model after that.")
    ] = "",
    metric: Annotated[
        str,
        typer.Option(help="auto, top1, top5, mae, cosine, agreement, or module:callable."),
    ] = "auto",
    min_retention: Annotated[
        float, typer.Option(help="Least share of the reference's metric that a variant keeps.")
    ] = 0.99,
    max_size: Annotated[int | None, typer.Option(metavar="BYTES", help="Of a variant.")] = None,
    max_latency_ms: Annotated[
        float | None,
        typer.Option("--max-latency", metavar="MS", help="Median on this machine."),
    ] = None,
    max_memory: Annotated[
        int | None, typer.Option(metavar="BYTES", help="Peak of a variant's process.")
    ] = None,
    keep: Annotated[
        list[str] | None, typer.Option(metavar="VARIANT", help="Keep it though others beat it.")
    ] = None,
    repair_trials: Annotated[
        int, typer.Option(min=0, help="Trials to repair an int8 variant; 0 for no repairs.")
    ] = 24,
    tune: Annotated[
        int,
        typer.Option(metavar="TRIALS", min=0, help="Per task, to tune TVM; 0 takes what is known."),
    ] = 0,
    tuning_database: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Known schedules; else in the cache.")
    ] = None,
    min_runs: Annotated[int, typer.Option(min=1, help="Inferences per measurement.")] = 200,
    min_duration_s: Annotated[
        float, typer.Option(min=0.0, max=3600.0, help="Of each measurement.")
    ] = 0.3,
    emulation_s: Annotated[
        float, typer.Option(min=1.0, help="To check a variant for a foreign processor.")
    ] = 60.0,
    measurements: Annotated[
        Path | None,
        typer.Option(metavar="REPORT.json", help="Take figures over for files that are the same."),
    ] = None,
    name: Annotated[str, typer.Option(help="Of the package; else the model's file name.")] = "",
    version: Annotated[str, typer.Option(help="Of the package; else made from the content.")] = "",
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Release key to sign with.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Package to make.")
    ] = None,
    report: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Write the report there, as .html or .json."),
    ] = None,
    cache: Annotated[
        Path, typer.Option(metavar="DIR", help="Finished steps, measured figures among them.")
    ] = DEFAULT_CACHE,
    executor: Annotated[
        str, typer.Option(help="Where steps run: local, or dask://HOST:PORT.")
    ] = "local",
    jobs: Annotated[
        int, typer.Option(min=0, help="Steps at once on this machine; 0 for one per processor.")
    ] = 0,
    step_timeout_s: Annotated[float, typer.Option(min=0.001, help="For one step.")] = 1800.0,
    step_memory: Annotated[
        int,
        typer.Option(metavar="BYTES", min=0, help="For one step; 0 for its share of 3/4 of all."),
    ] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace a package.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan.")] = False,
    json: JsonOption = False,
) -> None:
    """Build a package: every profile's best variants of one model.

    A second build takes finished steps from the cache, measured figures among them, and gives the
    same bytes. With another cache the model files are the same and the measured figures are new,
    unless --measurements names the first build's report.
    """
    from packager.build import build, plan_build
    from packager.device_profiles import load_profile
    from packager.judge.gates import Gates
    from packager.report.page import check_report_path, write_report
    from packager.request import BuildRequest
    from packager.run.process import StepLimits

    for path in report or ():
        check_report_path(path, output)
    request = BuildRequest(
        model=model,
        profiles=tuple(load_profile(text) for text in profile),
        evaluation=evaluation,
        calibration=calibration,
        tuning=tuning,
        float_only=float_only,
        preprocessing=preprocessing,
        postprocessing=postprocessing,
        prune=prune,
        training=training,
        output=output,
        cache=cache.expanduser(),
        name=name,
        version=version,
        metric=metric,
        gates=Gates(
            min_retention=min_retention,
            max_size_bytes=max_size,
            max_latency_ms=max_latency_ms,
            max_memory_bytes=max_memory,
        ),
        keep=tuple(keep or ()),
        repair_trials=repair_trials,
        tune=tune,
        tuning_database=tuning_database,
        min_runs=min_runs,
        min_duration_s=min_duration_s,
        emulation_s=emulation_s,
        measurements=measurements,
        key=key,
        force=force,
        executor=executor,
        jobs=jobs,
        limits=StepLimits(timeout_s=step_timeout_s, memory_bytes=step_memory),
    )
    if dry_run:
        with _progress() as progress:
            plan = plan_build(request, progress)
        _show_plan(request, plan, json=json)
        return
    with _progress() as progress:
        result = build(request, progress)
    for path in report or ():
        write_report(path, result, request.profiles, gates=request.gates)
    _show_result(request, result, json=json)


def tool_list(
    *,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the names alone.")] = False,
    json: JsonOption = False,
) -> None:
    """List the tools that have an environment of their own."""
    from packager.tools.environments import default_root, environment_python, names

    if quiet:
        write("\n".join(names()))
        return
    found = {name: environment_python(name, default_root()) for name in names()}
    if json:
        write_plain_json(
            {name: None if path is None else str(path) for name, path in found.items()}
        )
        return
    write_table(
        ("TOOL", "INSTALLED AS"),
        [(name, None if path is None else str(path)) for name, path in found.items()],
    )


def tool_install(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the tool.")],
) -> None:
    """Install a tool whose dependencies conflict with ours, in an environment of its own."""
    from packager.tools.environments import default_root, install

    with _progress() as progress:
        path = install(name, default_root(), progress)
    remark(f"installed {name}: {path}")


def _show_plan(request: BuildRequest, plan: Plan, *, json: bool) -> None:
    from packager.report.tables import (
        IMPOSSIBLE_COLUMNS,
        STEP_COLUMNS,
        VERDICT_COLUMNS,
        impossible_rows,
        plan_rows,
        step_rows,
    )

    if json:
        write_plain_json(plan)
        return
    write_table(VERDICT_COLUMNS, plan_rows(plan, request.profiles))
    write()
    write_table(IMPOSSIBLE_COLUMNS, impossible_rows(plan.impossible, request.profiles))
    write()
    write_table(STEP_COLUMNS, step_rows(plan))


def _show_result(request: BuildRequest, result: BuildResult, *, json: bool) -> None:
    from packager.report.tables import VERDICT_COLUMNS, figure_columns, figure_rows, verdict_rows

    if json:
        write_plain_json(result)
        return
    measured = any(candidate.performance for candidate in result.candidates)
    place = f"latency measured on {result.machine}" if measured else "no latency could be measured"
    write(f"{result.samples} evaluation samples; {place}")
    write_table(figure_columns(result.metric), figure_rows(result.candidates))
    write()
    write_table(VERDICT_COLUMNS, verdict_rows(result, request.profiles))
    for note in result.notes:
        remark(f"note: {note}")
    write()
    cached = sum(step.state == "cached" for step in result.steps)
    write_fields(
        (
            ("package", result.package),
            ("name", f"{result.name}:{result.version}"),
            ("digest", result.digest),
            ("size", bytes_text(result.size_bytes)),
            ("signed", result.signed),
            ("steps", f"{len(result.steps)}, {cached} from the cache"),
            ("impossible", f"{len(result.impossible)}; --dry-run and --report say why"),
        )
    )


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Tell a person in one line what is going on; say nothing to a pipe or a log."""
    if not sys.stderr.isatty():
        yield lambda _line: None
        return
    from rich.console import Console

    with Console(stderr=True).status("building ...") as status:
        yield status.update
