"""`fleet rollout add` and `fleet rollout exclude`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from controller.cli import completion
from controller.cli.arguments import JsonOption
from controller.cli.connecting import connect
from controller.cli.ending import EXIT_NO
from controller.cli.errors import ArgumentError
from controller.cli.hints import about_selector
from controller.cli.named_arguments import RolloutArgument
from controller.cli.output import write_json
from controller.client.errors import FaultError
from controller.client.fleet import Fleet
from controller.domain.wording import counted
from controller.rollout_control_schemas import JoinRequest, LeaveRequest, MembersChange
from wire.console.output import remark, write


def rollout_add(
    context: typer.Context,
    rollout: RolloutArgument,
    devices: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DEVICE", help="Devices that join it.", autocompletion=completion.devices
        ),
    ] = None,
    selector: Annotated[
        str | None,
        typer.Option(
            help="Which devices join it, instead of names.",
            metavar="SELECTOR",
            autocompletion=completion.selectors,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Let devices join a rollout that goes on.

    They start after all others. What does not join is told in a line for each device: it is in the
    rollout already, takes part in another one, or would refuse the release. The exit status is 1
    if none joins.

    Examples:
        fleet rollout add r-7f3a cam-7 cam-8
        fleet rollout add r-7f3a --selector site=hamburg
    """
    body = JoinRequest(devices=devices or [], selector=selector)
    with connect(context) as api:
        change = _asked(api, lambda: api.rollouts.add(rollout, body), selector)
    return _tell(change, done="joined", as_json=as_json)


def rollout_exclude(
    context: typer.Context,
    rollout: RolloutArgument,
    devices: Annotated[
        list[str] | None,
        typer.Argument(metavar="DEVICE", help="Who leaves it.", autocompletion=completion.devices),
    ] = None,
    selector: Annotated[
        str | None,
        typer.Option(
            help="Which of its devices leave it, instead of names.",
            metavar="SELECTOR",
            autocompletion=completion.selectors,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Take devices out of a rollout that have not started.

    They do not come back to it, also when it is resumed or tried again. What has started stays, and
    a line for each such device tells what becomes of it. The exit status is 1 if none leaves.

    Examples:
        fleet rollout exclude r-7f3a cam-7
        fleet rollout exclude r-7f3a --selector site=hamburg
    """
    body = LeaveRequest(devices=devices or [], selector=selector)
    with connect(context) as api:
        change = _asked(api, lambda: api.rollouts.exclude(rollout, body), selector)
    return _tell(change, done="left", as_json=as_json)


def _asked(api: Fleet, order: Callable[[], MembersChange], selector: str | None) -> MembersChange:
    """Give an order; if no device matches its selector, say what there is of it.

    Raises:
        FaultError: The controller refuses it.
        ArgumentError: No device has a label, or a value of it, that the selector names.
    """
    try:
        return order()
    except FaultError as exc:
        if exc.status == 422 and selector and (hints := about_selector(api, selector)):  # noqa: PLR2004 - HTTP
            raise ArgumentError(exc.message, remedy="; ".join(hints)) from exc
        raise


def _tell(change: MembersChange, *, done: str, as_json: bool) -> int:
    if as_json:
        write_json(change)
    else:
        write(f"{counted(len(change.changed))} {done} rollout {change.rollout}")
        for device, why in change.unchanged.items():
            remark(f"{device}: {why}")
        for warning in change.warnings:
            remark(warning)
    return 0 if change.changed else EXIT_NO
