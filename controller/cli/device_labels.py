"""`fleet device label`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import typer

from controller.cli import completion
from controller.cli.arguments import JsonOption, label_changes
from controller.cli.connecting import connect
from controller.cli.errors import ArgumentError
from controller.cli.output import write_json
from controller.domain.wording import counted
from controller.label_schemas import LabelRequest, LabelsChange, RelabelledDevice
from wire.console.output import remark, write, write_lines
from wire.console.text import plain_text

MAX_SHOWN: Final = 20
"""Devices that have a line each; of more only the number is told."""


def device_label(
    context: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[DEVICE...] KEY=VALUE...",
            help="Devices, and labels to set; KEY- removes one.",
            autocompletion=completion.devices,
        ),
    ],
    selector: Annotated[
        str | None,
        typer.Option(help="Which devices, instead of names.", metavar="SELECTOR"),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            help="The devices of this group, instead of names.",
            metavar="NAME",
            autocompletion=completion.groups,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would change; nothing does.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Set or remove labels of devices, of all that are meant or of none.

    A selector may mean up to 10,000 devices. What changes is told in a line for each of up to 20
    devices, and in a number.

    Examples:
        fleet device label cam-berlin site=berlin stage-
        fleet device label cam-1 cam-2 cam-3 site=berlin
        fleet device label --selector "profile=rpi*" stage=canary --dry-run
        fleet device label --group cameras owner=kim
    """  # noqa: DOC501 - is the help text
    if selector is not None and group is not None:
        raise ArgumentError("--selector and --group are both given", remedy="give one of them")
    if group is not None:
        selector = f"group:{group}"
    devices, changes = _parted(words, has_selector=selector is not None)
    if not changes:
        raise ArgumentError(
            "an argument is missing: the label", remedy="give KEY=VALUE, or KEY- to remove one"
        )
    added, removed = label_changes(changes)
    body = LabelRequest(
        devices=devices, selector=selector, set=added, remove=removed, dry_run=dry_run
    )
    with connect(context) as api:
        change = api.devices.label(body)
    if as_json:
        write_json(change)
    else:
        _tell(change, dry_run=dry_run)


def _parted(words: Sequence[str], *, has_selector: bool) -> tuple[list[str], list[str]]:
    """Return devices and changes of labels. The first word names a device unless others do."""
    devices = [] if has_selector else [word for word in words[:1] if "=" not in word]
    changes: list[str] = []
    for word in words[len(devices) :]:
        (changes if "=" in word or word.endswith("-") else devices).append(word)
    return devices, changes


def _tell(change: LabelsChange, *, dry_run: bool) -> None:
    if change.changed <= MAX_SHOWN:
        write_lines([_line(device) for device in change.devices])
    would = "would be changed" if dry_run else "changed"
    which = str(change.changed) if change.changed < change.matched else "all"
    if change.changed == change.matched == 1:
        text = f"1 device {would}"
    else:
        text = f"{which} of {counted(change.matched)} {would}"
    write(text if change.changed else f"nothing to change on {counted(change.matched)}")
    if dry_run:
        remark("nothing was changed: --dry-run")


def _line(device: RelabelledDevice) -> str:
    told = []
    for key in sorted({*device.before, *device.after}):
        if key not in device.after:
            told.append(f"{key} removed (was {device.before[key]})")
        elif key in device.before:
            told.append(f"{key}={device.after[key]} (was {device.before[key]})")
        else:
            told.append(f"{key}={device.after[key]}")
    return plain_text(f"{device.device}: {', '.join(told)}")
