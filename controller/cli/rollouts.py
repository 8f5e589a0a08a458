"""`fleet rollout ...`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

import typer

from controller.cli.arguments import JsonOption, selected
from controller.cli.commands import Commands, add_group
from controller.cli.connecting import connect, tell_cut_off
from controller.cli.explain import rollout_explain
from controller.cli.gates import rollout_gates, write_gates
from controller.cli.named_arguments import RolloutArgument
from controller.cli.output import write_json
from controller.cli.paging import CountOption, CursorOption, ReverseOption, take
from controller.cli.preflight import rollout_check
from controller.cli.rollout_answers import WatchOption, answer, tell_skipped
from controller.cli.rollout_control import failures_text, limits_text
from controller.cli.rollout_create import rollout_create, rollout_schema
from controller.cli.rollout_members import rollout_add, rollout_exclude
from controller.cli.rollout_rehearse import rollout_rehearse
from controller.cli.stage_view import rate_text, rules_text, shadow_lines
from controller.cli.transfers import share_text
from controller.cli.watch import counts_text, event_text, state_text, transfer_lines, watch
from controller.client.rollouts import Rollouts
from controller.domain.wording import counted
from controller.rollout_schemas import RetryRequest, RollbackRequest, Rollout
from wire.console.output import write, write_fields, write_lines, write_table
from wire.console.text import local_time

NEWEST: Final = 100


def register(app: typer.Typer) -> None:
    """Add the commands."""
    commands: Commands = {
        "check": rollout_check,
        "create": rollout_create,
        "rehearse": rollout_rehearse,
        "schema": rollout_schema,
        "list": rollout_list,
        "show": rollout_show,
        "watch": rollout_watch,
        "explain": rollout_explain,
        "gates": rollout_gates,
        "pause": rollout_pause,
        "resume": rollout_resume,
        "abort": rollout_abort,
        "approve": rollout_approve,
        "retry": rollout_retry,
        "rollback": rollout_rollback,
        "add": rollout_add,
        "exclude": rollout_exclude,
    }
    add_group(app, "rollout", "Bring releases to devices, in stages.", commands)


def rollout_list(  # noqa: PLR0913, PLR0917 - one parameter for each option
    context: typer.Context,
    state: Annotated[
        str,
        typer.Option(
            help="Only running, paused, halted, succeeded or aborted ones.", metavar="STATE"
        ),
    ] = "",
    model: Annotated[str, typer.Option(help="Only those of this model.", metavar="MODEL")] = "",
    release: Annotated[
        str, typer.Option(help="Only those of this release.", metavar="RELEASE")
    ] = "",
    sort: Annotated[
        str, typer.Option("--sort", metavar="KEY", help="By created, finished, id, model or state.")
    ] = "",
    reverse: ReverseOption = False,
    limit: CountOption = NEWEST,
    cursor: CursorOption = "",
    as_json: JsonOption = False,
) -> None:
    """List rollouts, the newest first.

    Examples:
        fleet rollout list
        fleet rollout list --state halted --model detector
        fleet rollout list --sort finished --limit 10
    """
    with connect(context) as api:
        listing = api.rollouts.list(
            state=state, model=model, release=release, sort=sort, reverse=reverse
        )
        rollouts = take(listing, limit, cursor)
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
        found = api.rollouts.get(rollout)
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
        return watch(lambda: api.rollouts.get(rollout))


def rollout_pause(context: typer.Context, rollout: RolloutArgument) -> None:
    """Pause a rollout: no more devices start.

    Examples:
        fleet rollout pause r-7f3a
    """
    _change(context, rollout, Rollouts.pause)


def rollout_resume(context: typer.Context, rollout: RolloutArgument) -> None:
    """Go on with a paused or halted rollout.

    After a halt, the devices that failed so far no longer count, and the others go on. They can be
    tried again with `fleet rollout retry --failed`.

    Examples:
        fleet rollout resume r-7f3a
    """
    _change(context, rollout, Rollouts.resume)


def rollout_abort(context: typer.Context, rollout: RolloutArgument) -> None:
    """End a rollout.

    Devices that have not finished go back; the others keep the release. Those
    of a rollback that have begun finish it.

    Examples:
        fleet rollout abort r-7f3a
    """
    _change(context, rollout, Rollouts.abort)


def rollout_approve(context: typer.Context, rollout: RolloutArgument) -> None:
    """Let the next stage of a rollout begin, or one go on despite gates or a shadow that hold it.

    Examples:
        fleet rollout approve r-7f3a
    """
    _change(context, rollout, Rollouts.approve)


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
        created = api.rollouts.retry(rollout, body)
        return answer(api, created, follow=follow, as_json=as_json)


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
    keep_pace: Annotated[
        bool,
        typer.Option(
            "--keep-pace",
            help="Soak, keep the rate, and wait for approvals and for devices that are offline, as "
            "the rollout did.",
        ),
    ] = False,
    follow: WatchOption = False,
    as_json: JsonOption = False,
) -> int:
    """Bring the devices of a rollout back to what they had before, or to a release that you name.

    This starts a new rollout with the stages and limits of the first. Back to what the devices had,
    it goes as fast as these let it; to another release, or of a rollback, it keeps the pace.
    Without --to it leaves alone the devices that have nothing to go back to, and says which.

    Examples:
        fleet rollout rollback r-7f3a --watch
        fleet rollout rollback r-7f3a --to detector:0.9.0
    """
    with connect(context) as api:
        body = RollbackRequest(release=to, keep_pace=keep_pace)
        created = api.rollouts.roll_back(rollout, body)
        tell_skipped(created)
        return answer(api, created, follow=follow, as_json=as_json)


def _change(
    context: typer.Context, rollout: str, order: Callable[[Rollouts, str], Rollout]
) -> None:
    with connect(context) as api:
        changed = order(api.rollouts, rollout)
    write(f"rollout {changed.id} {changed.state}: {counts_text(changed)}")


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
            *([("spread over", rollout.spread)] if rollout.spread else []),
            *(
                [("devices start", rate_text(rollout.rate, rollout.rate_now))]
                if rollout.rate
                else []
            ),
            *(("transfers", line) for line in transfer_lines(rollout)),
            ("control group", _control_text(rollout)),
            ("acknowledged", f"{rollout.acknowledged} of the failed"),
            ("failures", failures_text(rollout.failures)),
            ("limits", limits_text(rollout.limits)),
            ("priority", rollout.priority or None),
            ("superseded by", rollout.superseded_by),
            ("windows", ", ".join(rollout.windows)),
            ("created", local_time(rollout.created_at_s)),
            ("created by", rollout.created_by),
            ("finished", local_time(rollout.finished_at_s)),
        ]
    )
    write()
    write_table(
        ("STAGE", "TO DEVICES", "RULES", "STATE"),
        [(s.number, s.target, rules_text(s), s.state.replace("_", " ")) for s in rollout.stages],
    )
    if waits := shadow_lines(rollout.stages):
        write()
        write_lines(waits)
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
