"""The argument that names a device, with its completion."""

from __future__ import annotations

from typing import Annotated

import typer

from controller.cli import completion

DeviceArgument = Annotated[
    str,
    typer.Argument(
        metavar="DEVICE", help="Identifier of the device.", autocompletion=completion.devices
    ),
]
