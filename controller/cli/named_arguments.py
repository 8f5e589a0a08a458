"""Arguments that name things of the fleet, with their completion."""

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
DevicesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="DEVICE...", help="Identifiers of devices.", autocompletion=completion.devices
    ),
]
RolloutArgument = Annotated[
    str,
    typer.Argument(
        metavar="ROLLOUT", help="Identifier of the rollout.", autocompletion=completion.rollouts
    ),
]
