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
from controller.cli.lists import time_heading
from controller.cli.named_arguments import RolloutArgument
from controller.cli.next_steps import next_step, waiting_for, window_text
from controller.cli.output import write_json
from controller.cli.paging import CountOption, CursorOption, ReverseOption, take
from controller.cli.preflight import rollout_check
from controller.cli.rollout_answers import WatchOption, answer, follow_up, tell_skipped
from controller.cli.rollout_control import failures_text, limits_text
from controller.cli.rollout_create import rollout_create, rollout_schema
from controller.cli.rollout_members import rollout_add, rollout_exclude
from controller.cli.rollout_rehearse import rollout_rehearse
from controller.cli.stage_view import rate_text, rules_text, shadow_lines, stage_text
from controller.cli.transfers import share_text
from controller.cli.watch import counts_text, event_text, state_text, transfer_lines
from controller.client.rollouts import Rollouts
from controller.domain.states import RolloutState
from controller.domain.wording import counted
from controller.rollout_schemas import RetryRequest, RollbackRequest, Rollout
from wire.console.output import write, write_fields, write_lines, write_table
from wire.console.text import local_time, plain_text

NEWEST: Final = 100
MAX_DEVICES: Final = 50
"""Devices of a rollout that a person is shown unasked."""


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
    created = time_heading("CREATED", (r.created_at_s for r in rollouts))
    finished = time_heading("FINISHED", (r.finished_at_s for r in rollouts))
    write_table(
        ("ROLLOUT", "KIND", "MODEL", "RELEASE", "STATE", "DEVICES", "SELECTOR", created, finished),
        [
            (
                r.id, _kind(r), _model(r), r.release, r.state, counts_text(r),
                selected(r.selector), local_time(r.created_at_s), local_time(r.finished_at_s),
            )
            for r in rollouts
        ],
        minor=("MODEL", finished, created, "SELECTOR", "KIND"),
    )  # fmt: skip


def _kind(rollout: Rollout) -> str:
    if rollout.rollback_of:
        return f"rollback of {rollout.rollback_of}"
    return f"retry of {rollout.retry_of}" if rollout.retry_of else "rollout"


def rollout_show(
    context: typer.Context,
    rollout: RolloutArgument,
    state: Annotated[
        str,
        typer.Option(
            help="Only devices that are pending, assigned, waiting, succeeded, failed or "
            "cancelled.",
            metavar="STATE",
        ),
    ] = "",
    limit: Annotated[
        int | None,
        typer.Option(
            help="Show at most so many devices. The default is 50, and with --json 10,000.",
            metavar="N",
            min=1,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a rollout: its stages, devices and decisions.

    Examples:
        fleet rollout show r-7f3a
        fleet rollout show r-7f3a --state failed
    """
    if limit is None and not as_json:
        limit = MAX_DEVICES
    with connect(context) as api:
        found = api.rollouts.get(rollout, limit=limit, state=state)
        tell_cut_off(api)
    if as_json:
        write_json(found)
        return
    _show(found, state)


def rollout_watch(context: typer.Context, rollout: RolloutArgument) -> int:
    """Follow a rollout until it ends.

    On a terminal its devices are shown as they work; elsewhere a line tells each decision, and now
    and then one tells how many devices are in which state. The last line says how many devices have
    the release, and what can be done.

    The exit status is 0 when it succeeded and no device failed, 1 when it was halted or aborted,
    and 3 when it succeeded although devices failed, within its limits, without any device that has
    the release, or without devices that a newer rollout took. Devices that are offline have not
    failed: they get it when they return.

    Examples:
        fleet rollout watch r-7f3a
    """
    with connect(context) as api:
        tell_cut_off(api)
        return follow_up(api, rollout)


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
    if not rollout.control:
        return ""
    is_over = rollout.state in {RolloutState.HALTED, RolloutState.ABORTED}
    return f"{counted(rollout.control)} {'kept' if is_over else 'with'} the old release"


def _windows_text(rollout: Rollout) -> str:
    if rollout.state is RolloutState.RUNNING:
        return window_text(rollout)
    return ", ".join(rollout.windows)


def _show(rollout: Rollout, state: str = "") -> None:
    previous = [f"{count} x {release or 'none'}" for release, count in rollout.previous.items()]
    fields: list[tuple[str, object]] = [
        ("rollout", rollout.id),
        ("model", _model(rollout)),
        ("release", rollout.release),
        ("previous", ", ".join(sorted(previous))),
        ("selector", selected(rollout.selector)),
        ("state", rollout.state),
        ("reason", rollout.reason),
        ("rolls back", rollout.rollback_of),
        ("tries again", rollout.retry_of),
        ("rolled back by", rollout.rolled_back_by),
        *(("tried again by", other) for other in rollout.retried_by),
        ("devices", counts_text(rollout)),
        ("spread over", rollout.spread),
        ("devices start", rate_text(rollout.rate, rollout.rate_now) if rollout.rate else ""),
        *(("transfers", line) for line in transfer_lines(rollout)),
        ("control group", _control_text(rollout)),
        ("acknowledged", f"{rollout.acknowledged} of the failed" if rollout.acknowledged else ""),
        ("failures", failures_text(rollout.failures)),
        ("limits", limits_text(rollout.limits)),
        ("priority", rollout.priority or ""),
        ("superseded by", rollout.superseded_by),
        ("windows", _windows_text(rollout)),
        ("created", local_time(rollout.created_at_s)),
        ("created by", rollout.created_by),
        ("finished", local_time(rollout.finished_at_s)),
    ]
    write_fields([(name, value) for name, value in fields if value not in {None, ""}])
    write()
    write_table(
        ("STAGE", "TO DEVICES", "RULES", "STATE"),
        [(s.number, s.target, rules_text(s), stage_text(s, rollout)) for s in rollout.stages],
    )
    if waits := shadow_lines(rollout.stages):
        write()
        write_lines(waits)
    if rollout.gates:
        write()
        write_gates(rollout.gates, rollout.next_look_in_s)
    _write_devices(rollout, state)
    if rollout.events:
        write()
        write_lines([event_text(event) for event in rollout.events])
    if waiting_for(rollout):
        write()
        write(next_step(rollout))


def _write_devices(rollout: Rollout, state: str) -> None:
    if rollout.deployments:
        finished = time_heading("FINISHED", (d.finished_at_s for d in rollout.deployments))
        write()
        write_table(
            ("DEVICE", "STATE", "RELEASE", "STAGE", "PHASE", finished, "ERROR", "DETAIL"),
            [
                (
                    d.device, state_text(d), d.release, d.stage or None,
                    share_text(d.phase, d.transfer), local_time(d.finished_at_s), d.error_code,
                    d.detail,
                )
                for d in rollout.deployments
            ],
            minor=("RELEASE", finished, "PHASE", "STAGE", "ERROR"),
        )  # fmt: skip
    counts = {str(each): count for each, count in rollout.counts.items()}
    rest = (counts.get(state, 0) if state else sum(counts.values())) - len(rollout.deployments)
    if rest > 0:
        such = "" if state else "; --state failed shows those that failed"
        write(f"and {counted(rest)} more: --limit shows more{such}")
    elif state and not rollout.deployments:
        write()
        write(f"no device is {plain_text(state)}")
