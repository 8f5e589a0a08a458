"""`fleet rollout create`: from options, from a file or from both; or only what it would do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from controller.cli import completion
from controller.cli.arguments import JsonOption
from controller.cli.connecting import connect
from controller.cli.ending import EXIT_NO
from controller.cli.errors import ArgumentError
from controller.cli.output import write_json
from controller.cli.preflight import MAX_NAMED, SelectorOption
from controller.cli.rollout_answers import WatchOption, answer, tell_skipped
from controller.cli.rollout_control import (
    MaxRefusedOption,
    MaxTimedOutOption,
    OnHaltOption,
    OnHaltWord,
    PriorityOption,
    SupersedeOption,
    WindowOption,
    WorstCaseOption,
)
from controller.cli.rollout_plan_view import NAMED, write_plan
from controller.client.fleet import Fleet
from controller.client.rollout_files import check_options, read_file, request_of
from controller.client.rollout_words import RolloutFile, schema
from controller.rollout_schemas import RolloutRequest
from wire.codec import to_pretty_json
from wire.console.output import write_exact


def rollout_create(  # noqa: PLR0913, PLR0917 - one parameter for each option
    context: typer.Context,
    release: Annotated[
        str,
        typer.Argument(
            metavar="RELEASE",
            help="The release as NAME:VERSION or its digest; a file may name it, too.",
            autocompletion=completion.releases,
        ),
    ] = "",
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            help="TOML file with the rollout: docs/rollouts.md. Options that are given come first.",
            metavar="FILE",
        ),
    ] = None,
    selector: SelectorOption = "",
    stage: Annotated[
        list[str] | None,
        typer.Option(
            help="How many devices, in all: 10, 50%, x3 for three times as many as before until "
            "all have it, or a selector such as site=lab. The default is 100%.",
            metavar="N",
        ),
    ] = None,
    spread: Annotated[
        str,
        typer.Option(
            help="Start in each stage about the same share of the devices of each value of this "
            "label, such as site.",
            metavar="LABEL",
        ),
    ] = "",
    rate: Annotated[
        float | None,
        typer.Option(help="At most so many devices start in a minute, evenly.", metavar="N"),
    ] = None,
    rate_factor: Annotated[
        float | None,
        typer.Option(help="By what the rate grows with devices that succeed.", metavar="FACTOR"),
    ] = None,
    rate_after: Annotated[
        int | None,
        typer.Option(
            help="After how many successes it grows, each time. The default is 10.", metavar="N"
        ),
    ] = None,
    rate_max: Annotated[
        float | None, typer.Option(help="The rate does not grow further.", metavar="N")
    ] = None,
    max_in_flight: Annotated[
        int,
        typer.Option(
            help="No device starts while this many install. Devices that return go on at once.",
            metavar="N",
        ),
    ] = 100,
    soak: Annotated[
        str,
        typer.Option(
            help="How long a stage must stay good before the next begins.", metavar="TIME"
        ),
    ] = "0s",
    deadline: Annotated[
        str,
        typer.Option(
            help="A device that is online for longer than this without an outcome has failed.",
            metavar="TIME",
        ),
    ] = "1h",
    offline_limit: Annotated[
        str,
        typer.Option(help="How long a stage waits for devices that are offline.", metavar="TIME"),
    ] = "1d",
    max_failures: Annotated[
        int, typer.Option(help="More failed devices than this halt the rollout.", metavar="N")
    ] = 0,
    max_failure_percent: Annotated[
        float | None,
        typer.Option(
            help="A larger share of failed devices than this halts the rollout.", metavar="PERCENT"
        ),
    ] = None,
    min_finished: Annotated[
        int,
        typer.Option(help="How many devices must finish before that share counts.", metavar="N"),
    ] = 10,
    gate: Annotated[
        list[str] | None,
        typer.Option(
            help="What the release may do to what devices measure, such as "
            "'p95(inference_latency_ms) <= +10%'. Each stage waits until all gates have passed; "
            "one that fails halts the rollout. docs/gates.md has a gate for each thing that "
            "devices tell, and says what 'in the worst case' adds.",
            metavar="GATE",
        ),
    ] = None,
    control: Annotated[
        str,
        typer.Option(
            help="With gates: the share of devices that keep the old release to the end, to "
            "compare the others with. 0 compares devices with themselves before.",
            metavar="PERCENT",
        ),
    ] = "10%",
    max_refused: MaxRefusedOption = None,
    max_timed_out: MaxTimedOutOption = None,
    worst_case: WorstCaseOption = False,
    on_halt: OnHaltOption = OnHaltWord.KEEP,
    window: WindowOption = None,
    supersede: SupersedeOption = False,
    priority: PriorityOption = 0,
    shadow_agreement: Annotated[
        str | None,
        typer.Option(
            help="Nothing begins unless the release, as a shadow, answered so many requests as the "
            "one that serves.",
            metavar="PERCENT",
        ),
    ] = None,
    approval: Annotated[
        bool,
        typer.Option(
            "--approval/--no-approval", help="Wait for `fleet rollout approve` between stages."
        ),
    ] = False,
    exclude_unfit: Annotated[
        bool,
        typer.Option("--exclude-unfit", help="Leave out devices that cannot take the release."),
    ] = False,
    allow_unfit: Annotated[
        bool,
        typer.Option(
            "--allow-unfit",
            help="Try devices that cannot take the release, too; each decides itself.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what the rollout would do; nothing begins.")
    ] = False,
    identifier: Annotated[
        str | None,
        typer.Option(
            "--id",
            help="The identifier that a dry run has shown: the same devices start first.",
            metavar="ROLLOUT",
        ),
    ] = None,
    follow: WatchOption = False,
    as_json: JsonOption = False,
) -> int:
    """Bring a release to devices, stage by stage.

    The rollout halts by itself when too many devices fail. Devices that are offline have not
    failed: the rollout waits for them, up to the offline limit. Those that are still offline when
    it ends get the release when they return.

    If a device cannot take the release, as `fleet rollout check` shows, nothing begins unless you
    say what becomes of such devices.

    In a large fleet the answer comes before all devices are taken in. None starts before that;
    `fleet rollout show` says how many are left.

    A stage of the file may wait until the release, as a shadow on devices that have not begun,
    answers as the one that serves: the rollout starts that shadow and stops it.

    With --dry-run nothing begins: the stages are shown with their devices, who would refuse, what
    is sent at most, and about how long it takes. The exit status is 1 if it would not begin.

    Examples:
        fleet rollout create detector:1.0.0
        fleet rollout create detector:1.0.0 --stage 1 --stage 100% --watch
        fleet rollout create detector:1.0.0 --stage site=lab --stage 1% --stage x3
        fleet rollout create detector:1.0.0 --rate 10 --rate-factor 2 --rate-max 200
        fleet rollout create detector:1.0.0 --selector site=berlin --soak 10m
        fleet rollout create detector:1.0.0 --offline-limit 2d
        fleet rollout create detector:1.0.0 --exclude-unfit
        fleet rollout create detector:1.0.0 --window 'mon-fri 22:00-05:00'
        fleet rollout create detector:1.0.1 --supersede --on-halt revert
        fleet rollout create -f rollout.toml --dry-run
        fleet rollout create detector:1.1.0 --gate 'p95(inference_latency_ms) <= +10%'
    """  # noqa: DOC501 - is the help text
    if dry_run and follow:
        raise ArgumentError(
            "--dry-run begins nothing that --watch could follow", remedy="give one of them"
        )
    words = {
        "release": release,
        "selector": selector,
        "stage": stage,
        "spread": spread,
        "rate": rate,
        "rate_factor": rate_factor,
        "rate_after": rate_after,
        "rate_max": rate_max,
        "max_in_flight": max_in_flight,
        "soak": soak,
        "deadline": deadline,
        "offline_limit": offline_limit,
        "max_failures": max_failures,
        "max_failure_percent": max_failure_percent,
        "min_finished": min_finished,
        "gate": gate,
        "control": control,
        "max_refused": max_refused,
        "max_timed_out": max_timed_out,
        "worst_case": worst_case,
        "on_halt": on_halt.value,
        "window": window,
        "supersede": supersede,
        "priority": priority,
        "shadow_agreement": shadow_agreement,
        "approval": approval,
        "exclude_unfit": exclude_unfit,
        "allow_unfit": allow_unfit,
    }
    given = {key: value for key, value in words.items() if _is_given(context, key)}
    spec = RolloutFile() if file is None else read_file(file)
    settings = _settings(given)
    body = request_of(msgspec.structs.replace(spec, **settings))
    check_options(settings, body)
    body.id = identifier
    if not body.release:
        raise ArgumentError(
            "no release is named", remedy='give RELEASE, or write release = "NAME:VERSION"'
        )
    with connect(context) as api:
        if dry_run:
            return _tell_plan(api, body, as_json=as_json)
        rollout = api.rollouts.create(body)
        tell_skipped(rollout)
        return answer(api, rollout, follow=follow, as_json=as_json)


def rollout_schema() -> None:
    """Print the JSON schema of the file that `fleet rollout create -f` reads.

    Examples:
        fleet rollout schema > rollout.schema.json
    """
    write_exact(to_pretty_json(schema()).decode().rstrip())


def _is_given(context: typer.Context, parameter: str) -> bool:
    """Tell whether a parameter stands on the line, so that it comes before the file."""
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was given on the line, with the keys of the file.

    Raises:
        ArgumentError: Two options contradict each other.
    """
    settings = {key: value for key, value in given.items() if key in RolloutFile.__struct_fields__}
    for option, key in (("stage", "stages"), ("gate", "gates"), ("window", "windows")):
        if option in given:
            settings[key] = list(given[option])
    exclude, allow = given.get("exclude_unfit", False), given.get("allow_unfit", False)
    if exclude and allow:
        raise ArgumentError(
            "--exclude-unfit and --allow-unfit contradict each other", remedy="give one of them"
        )
    if exclude or allow:
        settings["unfit"] = "exclude" if exclude else "allow"
    return settings


def _tell_plan(api: Fleet, body: RolloutRequest, *, as_json: bool) -> int:
    """Write what a rollout would do; return the exit status."""
    limit = MAX_NAMED if as_json else NAMED
    plan = api.rollouts.plan(body, limit=limit)
    if as_json:
        write_json(plan)
    else:
        write_plan(plan)
    return EXIT_NO if plan.refused else 0
