"""`fleet rollout ...`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli.arguments import JsonOption, parse_duration, parse_stage
from controller.cli.client import connect, request_body, segment
from controller.cli.output import (
    local_time,
    plain_text,
    remark,
    write,
    write_fields,
    write_json,
    write_table,
)
from controller.cli.watch import counts_text, watch

if TYPE_CHECKING:
    from pydantic import BaseModel

    from controller.cli.client import ApiClient
    from controller.schemas import Rollout

RolloutArgument = Annotated[str, typer.Argument(metavar="ROLLOUT", help="Identifier.")]
WatchOption = Annotated[bool, typer.Option("--watch", help="Follow it until it ends.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="Staged rollouts of releases.", no_args_is_help=True)
    group.command("create")(rollout_create)
    group.command("list")(rollout_list)
    group.command("show")(rollout_show)
    group.command("watch")(rollout_watch)
    group.command("pause")(rollout_pause)
    group.command("resume")(rollout_resume)
    group.command("abort")(rollout_abort)
    group.command("approve")(rollout_approve)
    group.command("rollback")(rollout_rollback)
    app.add_typer(group, name="rollout")


def rollout_create(  # noqa: PLR0913, PLR0917 - one parameter for each option
    context: typer.Context,
    release: Annotated[str, typer.Argument(metavar="RELEASE", help="NAME:VERSION, or a digest.")],
    selector: Annotated[str, typer.Option(help="Label expression; all devices if empty.")] = "",
    stage: Annotated[
        list[str] | None,
        typer.Option(help="Devices to bring to the release, 10 or 50%; repeatable.", metavar="N"),
    ] = None,
    max_in_flight: Annotated[int, typer.Option(help="Devices that install at once.")] = 100,
    soak: Annotated[str, typer.Option(help="How long a stage must stay good.")] = "0s",
    deadline: Annotated[str, typer.Option(help="A device silent for longer has failed.")] = "1h",
    max_failures: Annotated[int, typer.Option(help="More failed devices halt it.")] = 0,
    max_failure_percent: Annotated[
        float | None, typer.Option(help="A larger share of failed devices halts it.")
    ] = None,
    min_finished: Annotated[
        int, typer.Option(help="Finished devices before the share is judged.")
    ] = 10,
    approval: Annotated[bool, typer.Option("--approval", help="Wait between stages.")] = False,
    follow: WatchOption = False,
    as_json: JsonOption = False,
) -> int:
    """Bring a release to devices, stage by stage; halts by itself on failures."""
    stages = [parse_stage(text) for text in stage or ["100%"]]
    soak_s = parse_duration(soak, option="--soak")
    device_deadline_s = parse_duration(deadline, option="--deadline")
    from controller.schemas import RolloutRequest, Stage

    body = request_body(
        RolloutRequest,
        release=release,
        selector=selector,
        stages=[Stage(count=s.count, percent=s.percent) for s in stages],
        max_in_flight=max_in_flight,
        soak_s=soak_s,
        device_deadline_s=device_deadline_s,
        max_failures=max_failures,
        max_failure_percent=max_failure_percent,
        min_finished=min_finished,
        approval=approval,
    )
    with connect(context) as api:
        rollout = _post(api, "/v1/rollouts", body)
        return _answer(api, rollout, follow=follow, as_json=as_json)


def rollout_list(context: typer.Context, as_json: JsonOption = False) -> None:
    """List rollouts."""
    from controller.schemas import Rollout

    with connect(context) as api:
        rollouts = api.get("/v1/rollouts", list[Rollout])
    if as_json:
        write_json(rollouts)
        return
    write_table(
        ("ROLLOUT", "RELEASE", "STATE", "DEVICES", "SELECTOR", "CREATED", "FINISHED"),
        [
            (
                r.id, r.release, r.state, counts_text(r), r.selector,
                local_time(r.created_at_s), local_time(r.finished_at_s),
            )
            for r in rollouts
        ],
    )  # fmt: skip


def rollout_show(
    context: typer.Context, rollout: RolloutArgument, as_json: JsonOption = False
) -> None:
    """Show a rollout: stages, devices, and every decision with its reason."""
    with connect(context) as api:
        found = _fetch(api, rollout)
    if as_json:
        write_json(found)
        return
    _show(found)


def rollout_watch(context: typer.Context, rollout: RolloutArgument) -> int:
    """Follow a rollout until it ends; exit code 1 when it was halted or aborted."""
    with connect(context) as api:
        return watch(lambda: _fetch(api, rollout))


def rollout_pause(context: typer.Context, rollout: RolloutArgument) -> None:
    """Start no more devices until it is resumed."""
    _order(context, rollout, "pause")


def rollout_resume(context: typer.Context, rollout: RolloutArgument) -> None:
    """Go on with a paused rollout."""
    _order(context, rollout, "resume")


def rollout_abort(context: typer.Context, rollout: RolloutArgument) -> None:
    """End a rollout: unfinished devices go back, the others keep the release."""
    _order(context, rollout, "abort")


def rollout_approve(context: typer.Context, rollout: RolloutArgument) -> None:
    """Let the next stage begin."""
    _order(context, rollout, "approve")


def rollout_rollback(
    context: typer.Context,
    rollout: RolloutArgument,
    to: Annotated[str, typer.Option("--to", metavar="RELEASE", help="The release to go to.")],
    follow: WatchOption = False,
    as_json: JsonOption = False,
) -> int:
    """Bring the devices of a rollout to a named release: a rollout of its own."""
    from controller.schemas import RollbackRequest

    with connect(context) as api:
        body = request_body(RollbackRequest, release=to)
        created = _post(api, f"/v1/rollouts/{segment(rollout)}/rollback", body)
        return _answer(api, created, follow=follow, as_json=as_json)


def _fetch(api: ApiClient, rollout: str) -> Rollout:
    from controller.schemas import Rollout

    return api.get(f"/v1/rollouts/{segment(rollout)}", Rollout)


def _post(api: ApiClient, path: str, body: BaseModel | None = None) -> Rollout:
    from controller.schemas import Rollout

    return api.send("POST", path, Rollout, body)


def _order(context: typer.Context, rollout: str, order: str) -> None:
    with connect(context) as api:
        changed = _post(api, f"/v1/rollouts/{segment(rollout)}/{order}")
    write(f"rollout {changed.id} {changed.state}: {counts_text(changed)}")


def _answer(api: ApiClient, rollout: Rollout, *, follow: bool, as_json: bool) -> int:
    if as_json:
        write_json(rollout)
    else:
        write(rollout.id)
        remark(f"rollout of {rollout.release} {rollout.state}: {counts_text(rollout)}")
    if not follow:
        return 0
    return watch(lambda: _fetch(api, rollout.id))


def _show(rollout: Rollout) -> None:
    previous = [f"{count} x {release or 'none'}" for release, count in rollout.previous.items()]
    write_fields(
        [
            ("rollout", rollout.id),
            ("release", rollout.release),
            ("previous", ", ".join(sorted(previous))),
            ("selector", rollout.selector),
            ("state", rollout.state),
            ("reason", rollout.reason),
            ("rolls back", rollout.rollback_of),
            ("devices", counts_text(rollout)),
            ("created", local_time(rollout.created_at_s)),
            ("finished", local_time(rollout.finished_at_s)),
        ]
    )
    write()
    write_table(
        ("STAGE", "TO DEVICES", "STATE"),
        [(s.number, s.target, s.state.replace("_", " ")) for s in rollout.stages],
    )
    if rollout.deployments:
        write()
        write_table(
            ("DEVICE", "STATE", "STAGE", "PHASE", "FINISHED", "ERROR", "DETAIL"),
            [
                (
                    d.device, d.state, d.stage, d.phase, local_time(d.finished_at_s),
                    d.error_code, d.detail,
                )
                for d in rollout.deployments
            ],
        )  # fmt: skip
    if rollout.events:
        write()
        for event in rollout.events:
            write(
                f"{local_time(event.at_s)}  {plain_text(event.action)}: {plain_text(event.reason)}"
            )
