"""`fleet rollout ...`."""

from __future__ import annotations

from typing import Annotated

import typer

from controller.cli.arguments import (
    JsonOption,
    parse_duration,
    parse_percent,
    parse_stage,
    selected,
)
from controller.cli.client import ApiClient, connect, segment, tell_cut_off
from controller.cli.commands import Commands, add_group
from controller.cli.errors import ArgumentError
from controller.cli.gates import rollout_gates, write_gates
from controller.cli.output import write_json
from controller.cli.preflight import SelectorOption, rollout_check
from controller.cli.releases import ReleaseArgument
from controller.cli.transfers import share_text
from controller.cli.watch import counts_text, event_text, state_text, transfer_lines, watch
from controller.domain.rollout_policy import counted
from controller.rollout_schemas import (
    RetryRequest,
    RollbackRequest,
    Rollout,
    RolloutRequest,
    Stage,
    UnfitRule,
)
from controller.schemas import Request
from wire.console.output import remark, write, write_fields, write_lines, write_table
from wire.console.text import local_time

RolloutArgument = Annotated[
    str, typer.Argument(metavar="ROLLOUT", help="Identifier of the rollout.")
]
WatchOption = Annotated[bool, typer.Option("--watch", help="Follow the rollout until it ends.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    commands: Commands = {
        "check": rollout_check,
        "create": rollout_create,
        "list": rollout_list,
        "show": rollout_show,
        "watch": rollout_watch,
        "gates": rollout_gates,
        "pause": rollout_pause,
        "resume": rollout_resume,
        "abort": rollout_abort,
        "approve": rollout_approve,
        "retry": rollout_retry,
        "rollback": rollout_rollback,
    }
    add_group(app, "rollout", "Bring releases to devices, in stages.", commands)


def rollout_create(  # noqa: PLR0913, PLR0917 - one parameter for each option
    context: typer.Context,
    release: ReleaseArgument,
    selector: SelectorOption = "",
    stage: Annotated[
        list[str] | None,
        typer.Option(
            help="Number or share of the devices, such as 10 or 50%. The default is 100%.",
            metavar="N",
        ),
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
            "one that fails halts the rollout.",
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
    approval: Annotated[
        bool, typer.Option("--approval", help="Wait for `fleet rollout approve` between stages.")
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
    follow: WatchOption = False,
    as_json: JsonOption = False,
) -> int:
    """Bring a release to devices, stage by stage.

    The rollout halts by itself when too many devices fail. Devices that are offline have not
    failed: the rollout waits for them, up to the offline limit. Those that are still offline when
    it ends get the release when they return.

    If a device cannot take the release, as `fleet rollout check` shows, nothing begins unless you
    say what becomes of such devices.

    Examples:
        fleet rollout create detector:1.0.0
        fleet rollout create detector:1.0.0 --stage 1 --stage 100% --watch
        fleet rollout create detector:1.0.0 --selector site=berlin --soak 10m
        fleet rollout create detector:1.0.0 --offline-limit 2d
        fleet rollout create detector:1.0.0 --exclude-unfit
        fleet rollout create detector:1.1.0 --gate 'p95(inference_latency_ms) <= +10%'
    """
    unfit = _unfit_rule(exclude=exclude_unfit, allow=allow_unfit)
    stages = [parse_stage(text) for text in stage or ["100%"]]
    soak_s = parse_duration(soak, option="--soak")
    device_deadline_s = parse_duration(deadline, option="--deadline")
    offline_limit_s = parse_duration(offline_limit, option="--offline-limit")
    body = RolloutRequest(
        release=release,
        selector=selector,
        stages=[Stage(count=s.count, percent=s.percent) for s in stages],
        max_in_flight=max_in_flight,
        soak_s=soak_s,
        device_deadline_s=device_deadline_s,
        offline_limit_s=offline_limit_s,
        max_failures=max_failures,
        max_failure_percent=max_failure_percent,
        min_finished=min_finished,
        gates=gate or [],
        control_percent=parse_percent(control, option="--control"),
        approval=approval,
        unfit=unfit,
    )
    with connect(context) as api:
        rollout = _post(api, "/v1/rollouts", body)
        _tell_skipped(rollout)
        return _answer(api, rollout, follow=follow, as_json=as_json)


def rollout_list(context: typer.Context, as_json: JsonOption = False) -> None:
    """List rollouts.

    Examples:
        fleet rollout list
    """
    with connect(context) as api:
        rollouts = api.get("/v1/rollouts", list[Rollout])
        tell_cut_off(api)
    if as_json:
        write_json(rollouts)
        return
    write_table(
        ("ROLLOUT", "MODEL", "RELEASE", "STATE", "DEVICES", "SELECTOR", "CREATED", "FINISHED"),
        [
            (
                r.id, _model(r), r.release, r.state, counts_text(r), selected(r.selector),
                local_time(r.created_at_s), local_time(r.finished_at_s),
            )
            for r in rollouts
        ],
        minor=("MODEL", "FINISHED", "CREATED", "SELECTOR"),
    )  # fmt: skip


def rollout_show(
    context: typer.Context, rollout: RolloutArgument, as_json: JsonOption = False
) -> None:
    """Show a rollout: its stages, devices and decisions.

    Examples:
        fleet rollout show r-7f3a
    """
    with connect(context) as api:
        found = _fetch(api, rollout)
        tell_cut_off(api)
    if as_json:
        write_json(found)
        return
    _show(found)


def rollout_watch(context: typer.Context, rollout: RolloutArgument) -> int:
    """Follow a rollout until it ends.

    The exit status is 0 when it succeeded, also without devices that are offline, and 1 when it was
    halted or aborted.

    Examples:
        fleet rollout watch r-7f3a
    """
    with connect(context) as api:
        tell_cut_off(api)
        return watch(lambda: _fetch(api, rollout))


def rollout_pause(context: typer.Context, rollout: RolloutArgument) -> None:
    """Pause a rollout: no more devices start.

    Examples:
        fleet rollout pause r-7f3a
    """
    _change(context, rollout, "pause")


def rollout_resume(context: typer.Context, rollout: RolloutArgument) -> None:
    """Go on with a paused or halted rollout.

    After a halt, the devices that failed so far no longer count, and the others go on. They can be
    tried again with `fleet rollout retry --failed`.

    Examples:
        fleet rollout resume r-7f3a
    """
    _change(context, rollout, "resume")


def rollout_abort(context: typer.Context, rollout: RolloutArgument) -> None:
    """End a rollout.

    Devices that have not finished go back; the others keep the release.

    Examples:
        fleet rollout abort r-7f3a
    """
    _change(context, rollout, "abort")


def rollout_approve(context: typer.Context, rollout: RolloutArgument) -> None:
    """Let the next stage of a rollout begin, or a stage end despite gates that hold it.

    Examples:
        fleet rollout approve r-7f3a
    """
    _change(context, rollout, "approve")


def rollout_retry(
    context: typer.Context,
    rollout: RolloutArgument,
    failed: Annotated[
        bool, typer.Option("--failed", help="Only the devices that failed, not the unreached ones.")
    ] = False,
    follow: WatchOption = False,
    as_json: JsonOption = False,
) -> int:
    """Bring the release of a rollout to the devices that do not run it.

    This starts a new rollout over the devices that failed or were not reached.

    Examples:
        fleet rollout retry r-7f3a --watch
        fleet rollout retry r-7f3a --failed
    """
    with connect(context) as api:
        body = RetryRequest(only_failed=failed)
        created = _post(api, f"/v1/rollouts/{segment(rollout)}/retry", body)
        return _answer(api, created, follow=follow, as_json=as_json)


def rollout_rollback(
    context: typer.Context,
    rollout: RolloutArgument,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="RELEASE",
            help="Release to go to. The default is what each device had before the rollout.",
        ),
    ] = None,
    follow: WatchOption = False,
    as_json: JsonOption = False,
) -> int:
    """Bring the devices of a rollout back to what they had before, or to a release that you name.

    This starts a new rollout. Without --to it leaves alone the devices that have nothing to go back
    to, and says which.

    Examples:
        fleet rollout rollback r-7f3a --watch
        fleet rollout rollback r-7f3a --to detector:0.9.0
    """
    with connect(context) as api:
        body = RollbackRequest(release=to)
        created = _post(api, f"/v1/rollouts/{segment(rollout)}/rollback", body)
        _tell_skipped(created)
        return _answer(api, created, follow=follow, as_json=as_json)


def _fetch(api: ApiClient, rollout: str) -> Rollout:
    return api.get(f"/v1/rollouts/{segment(rollout)}", Rollout)


def _post(api: ApiClient, path: str, body: Request | None = None) -> Rollout:
    return api.send("POST", path, Rollout, body)


def _unfit_rule(*, exclude: bool, allow: bool) -> UnfitRule | None:
    if exclude and allow:
        raise ArgumentError(
            "--exclude-unfit and --allow-unfit contradict each other", remedy="give one of them"
        )
    if exclude:
        return "exclude"
    return "allow" if allow else None


def _tell_skipped(rollout: Rollout) -> None:
    for event in rollout.events:
        if event.action == "skip":
            remark(event_text(event))


def _change(context: typer.Context, rollout: str, change: str) -> None:
    with connect(context) as api:
        changed = _post(api, f"/v1/rollouts/{segment(rollout)}/{change}")
    write(f"rollout {changed.id} {changed.state}: {counts_text(changed)}")


def _answer(api: ApiClient, rollout: Rollout, *, follow: bool, as_json: bool) -> int:
    if as_json:
        write_json(rollout)
    else:
        write(rollout.id)
        remark(f"rollout of {rollout.release} {rollout.state}: {counts_text(rollout)}")
    tell_cut_off(api)
    if not follow:
        return 0
    return watch(lambda: _fetch(api, rollout.id))


def _model(rollout: Rollout) -> str:
    """Return the model of a rollout; controllers of before do not tell it."""
    return rollout.model or rollout.release.partition(":")[0]


def _control_text(rollout: Rollout) -> str:
    return f"{counted(rollout.control)} with the old release" if rollout.control else ""


def _show(rollout: Rollout) -> None:
    previous = [f"{count} x {release or 'none'}" for release, count in rollout.previous.items()]
    write_fields(
        [
            ("rollout", rollout.id),
            ("model", _model(rollout)),
            ("release", rollout.release),
            ("previous", ", ".join(sorted(previous))),
            ("selector", selected(rollout.selector)),
            ("state", rollout.state),
            ("reason", rollout.reason),
            ("rolls back", rollout.rollback_of),
            ("tries again", rollout.retry_of),
            ("devices", counts_text(rollout)),
            *(("transfers", line) for line in transfer_lines(rollout)),
            ("control group", _control_text(rollout)),
            ("acknowledged", f"{rollout.acknowledged} of the failed"),
            ("created", local_time(rollout.created_at_s)),
            ("created by", rollout.created_by),
            ("finished", local_time(rollout.finished_at_s)),
        ]
    )
    write()
    write_table(
        ("STAGE", "TO DEVICES", "STATE"),
        [(s.number, s.target, s.state.replace("_", " ")) for s in rollout.stages],
    )
    if rollout.gates:
        write()
        write_gates(rollout.gates)
    if rollout.deployments:
        write()
        write_table(
            ("DEVICE", "STATE", "RELEASE", "STAGE", "PHASE", "FINISHED", "ERROR", "DETAIL"),
            [
                (
                    d.device, state_text(d), d.release, d.stage or None,
                    share_text(d.phase, d.transfer), local_time(d.finished_at_s), d.error_code,
                    d.detail,
                )
                for d in rollout.deployments
            ],
            minor=("RELEASE", "FINISHED", "PHASE", "STAGE", "ERROR"),
        )  # fmt: skip
    if rollout.events:
        write()
        write_lines([event_text(event) for event in rollout.events])
