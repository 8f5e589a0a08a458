"""`fleet device register`, `registered` and `unregister`: devices known before they enrol."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from controller.cli.arguments import JsonOption
from controller.cli.connecting import connect
from controller.cli.errors import ArgumentError
from controller.cli.lists import write_list
from controller.cli.output import write_json
from controller.client.errors import FaultError
from controller.client.fleet import Fleet
from controller.registration_schemas import (
    RegisteredDevice,
    RegistrationRequest,
)
from wire.clock import SystemClock
from wire.console.output import remark, write
from wire.console.text import age_text, plain_text
from wire.files import open_file

SENT_AT_ONCE = 100
"""Devices of one request: with as many labels as there may be, they fit into its body."""


def device_register(
    context: typer.Context,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="CSV with a column serial, id, and labels.")
    ],
) -> None:
    """Register devices before they enrol, from a CSV file.

    Its first line names the columns: serial, perhaps id, and each other one is a label. Such a
    device is let in by itself, with its labels, when it enrols with any token and says that serial
    number. A fault names the line. To repeat the command is safe, also with a changed file.

    Examples:
        fleet device register devices.csv
    """
    from controller.domain.registration import read_registrations
    from controller.errors import InvalidRequestError

    try:
        found = read_registrations(_read(file))
    except InvalidRequestError as exc:
        fault = ArgumentError(f"{file}: {exc.message}", remedy=exc.remedy)
        fault.shown = tuple(map(plain_text, exc.shown))
        raise fault from exc
    devices = [
        RegisteredDevice(serial=each.serial, device=each.device, labels=each.labels, line=each.line)
        for each in found
    ]
    with connect(context) as api:
        for start in range(0, len(devices), SENT_AT_ONCE):
            request = RegistrationRequest(devices=devices[start : start + SENT_AT_ONCE])
            _send(api, file, request)
    write(f"{len(devices)} device{'' if len(devices) == 1 else 's'} registered")
    remark("each enrols by itself with a token of `fleet token create`")


def _send(api: Fleet, file: Path, request: RegistrationRequest) -> None:
    """Register some devices of a file.

    Raises:
        FaultError: The controller refused them.
        ArgumentError: It refused a line of the file.
    """
    try:
        api.registrations.add(request)
    except FaultError as exc:
        if not exc.message.startswith("line "):
            raise
        raise ArgumentError(f"{file}: {exc.message}", remedy=exc.remedy) from exc


def device_registered(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the devices that are registered, and who has enrolled with each serial number.

    Examples:
        fleet device registered
    """
    with connect(context) as api:
        found = list(api.registrations.list())
    if as_json:
        write_json(found)
        return
    now_s = SystemClock().now_s()
    write_list(
        ("SERIAL", "DEVICE", "ENROLLED AS", "ENROLLED", "LABELS"),
        [
            (
                each.serial, each.device, each.claimed_by,
                age_text(each.claimed_at_s, now_s) if each.claimed_by else None, each.labels,
            )
            for each in found
        ],
        none="no device is registered; `fleet device register FILE` does that",
        minor=("LABELS",),
    )  # fmt: skip


def device_unregister(
    context: typer.Context,
    serials: Annotated[list[str], typer.Argument(metavar="SERIAL...", help="Serial numbers.")],
) -> None:
    """Forget devices that are registered. Those that have enrolled stay in the fleet.

    Examples:
        fleet device unregister 10000000a1
    """
    with connect(context) as api:
        for serial in serials:
            removed = api.registrations.remove(serial)
            write(f"{plain_text(removed.serial)} is not registered any more")


def _read(path: Path) -> str:
    """Return the text of a file.

    Raises:
        ArgumentError: It cannot be read, is too large, or is no text in UTF-8.
    """
    from controller.domain.registration import MAX_FILE_BYTES

    try:
        with open_file(path) as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as exc:
        raise ArgumentError(
            f"cannot read {path}: {(exc.strerror or str(exc)).lower()}", remedy="name a CSV file"
        ) from exc
    if len(content) > MAX_FILE_BYTES:
        raise ArgumentError(f"{path} has over {MAX_FILE_BYTES} bytes", remedy="split it")
    try:
        return content.decode("utf-8-sig")  # as spreadsheets write it
    except UnicodeDecodeError as exc:
        line = content[: exc.start].count(b"\n") + 1
        raise ArgumentError(
            f"{path}: line {line} is no text in UTF-8", remedy="save it as CSV UTF-8"
        ) from exc
