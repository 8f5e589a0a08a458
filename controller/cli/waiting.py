"""`fleet device waiting`, `accept` and `refuse`: devices that ask to be let in."""

from __future__ import annotations

import typer

from controller.cli.arguments import JsonOption
from controller.cli.connecting import connect
from controller.cli.lists import write_list
from controller.cli.named_arguments import DevicesArgument
from controller.cli.output import write_json
from controller.enrolment_schemas import WaitingDevice
from wire.clock import SystemClock
from wire.console.output import remark, write
from wire.console.text import age_text, plain_text


def device_waiting(context: typer.Context, as_json: JsonOption = False) -> None:
    """List devices that wait to be let in, and why.

    Their token does not accept them by itself, or their identifier is registered with another
    serial number. What is shown is what they say of themselves. Who has not asked for seven days is
    not listed any more. When a device asked last is noted each minute.

    Examples:
        fleet device waiting
    """
    with connect(context) as api:
        found = api.waiting.list()
    if as_json:
        write_json(found)
        return
    now_s = SystemClock().now_s()
    write_list(
        ("DEVICE", "STATE", "SERIAL", "PROFILE", "LABELS", "TOKEN", "ASKED", "LAST ASKED", "WHY"),
        [
            (
                d.id, d.state, d.serial or None, d.profile_name, d.labels, d.token,
                age_text(d.asked_at_s, now_s), age_text(d.last_asked_at_s, now_s),
                d.why,
            )
            for d in found
        ],
        none="no device waits; devices do that enrol with a token of "
        "`fleet token create --accept by-hand`",
        minor=("TOKEN", "LABELS"),
    )  # fmt: skip


def device_accept(context: typer.Context, devices: DevicesArgument) -> None:
    """Let devices in that wait, or that were refused.

    Each goes on by itself when it asks the next time, within seconds, or minutes where many wait.

    Examples:
        fleet device accept cam-berlin
        fleet device accept cam-1 cam-2 cam-3
    """
    with connect(context) as api:
        for device in devices:
            _tell(api.waiting.accept(device))
    remark("they go on when they ask the next time")


def device_refuse(context: typer.Context, devices: DevicesArgument) -> None:
    """Refuse devices that wait.

    Another device may ask for such an identifier then. The refusal is forgotten seven days after
    the device has asked for the last time.

    Examples:
        fleet device refuse cam-berlin
    """
    with connect(context) as api:
        for device in devices:
            _tell(api.waiting.refuse(device))


def _tell(found: WaitingDevice) -> None:
    write(f"{plain_text(found.id)} {found.state}")
