"""`fleet telemetry flush`: asks a device to report now, and waits until that is stored."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from controller.cli.arguments import JsonOption, parse_duration
from controller.cli.connecting import connect
from controller.cli.ending import EXIT_NO
from controller.cli.errors import ArgumentError
from controller.cli.named_arguments import DeviceArgument
from controller.cli.output import write_json
from controller.client.fleet import Fleet
from controller.query_schemas import ReportAsked
from wire.clock import Clock, SystemClock
from wire.console.output import remark, write
from wire.console.text import plain_text
from wire.durations import format_duration

LOOK_EVERY_S: Final = 0.25
MAX_WAIT_S: Final = 600.0


def telemetry_flush(
    context: typer.Context,
    device: DeviceArgument,
    wait: Annotated[
        str, typer.Option(metavar="TIME", help="How long to wait for the report; 0 to only ask.")
    ] = "30s",
    as_json: JsonOption = False,
) -> int:
    """Ask a device to report its telemetry now, and wait until it is stored.

    Without this a device reports each ten seconds, or as its policy says. It can be asked once each
    ten seconds. What waited on the device, because it was offline, comes first.

    Examples:
        fleet telemetry flush cam-berlin
        fleet telemetry flush cam-berlin --wait 2m
    """  # noqa: DOC501 - is the help text
    wait_s = parse_duration(wait, option="--wait")
    if wait_s > MAX_WAIT_S:
        raise ArgumentError(
            f"--wait: {wait!r} is longer than {format_duration(MAX_WAIT_S)}",
            remedy="give a shorter time, such as 30s",
        )
    with connect(context) as api:
        asked = api.telemetry.ask_for_report(device)
        stored = _is_stored(api, asked, wait_s, SystemClock())
    if as_json:
        write_json({"device": asked.device, "id": asked.id, "stored": stored})
    elif stored:
        write(f"{plain_text(device)} has reported, and its report is stored")
    elif not wait_s:
        write(f"{plain_text(device)} is asked to report")
    else:
        remark(
            f"{plain_text(device)} has not reported within {format_duration(wait_s)}: it may have "
            "much to send, be cut off, or have an older agent"
        )
    return 0 if stored or not wait_s else EXIT_NO


def _is_stored(api: Fleet, asked: ReportAsked, wait_s: float, clock: Clock) -> bool:
    end_s = clock.monotonic_s() + wait_s
    while clock.monotonic_s() < end_s:
        if api.telemetry.report(asked.device, asked.id).stored:
            return True
        clock.sleep(LOOK_EVERY_S)
    return False
