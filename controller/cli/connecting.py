"""The connection of a command with the controller that its line names."""

from __future__ import annotations

import os
from typing import Final

import typer

from controller.client.connection import TIMEOUT_S
from controller.client.fleet import Fleet
from controller.client.target import ConnectionOptions, find_controller
from wire.console.output import remark
from wire.console.text import plain_text
from wire.errors import FleetError

PATIENCE_S: Final = 2.0
"""A person waits for a controller that is busy, but not for long without a word."""


def connect(context: typer.Context, *, timeout_s: float = TIMEOUT_S) -> Fleet:
    """Return a client for the controller that the command line names.

    Args:
        context: The command line.
        timeout_s: How long an answer may take.
    """
    options = context.obj if isinstance(context.obj, ConnectionOptions) else ConnectionOptions()
    fleet = Fleet(find_controller(options, os.environ), timeout_s=timeout_s, patience_s=PATIENCE_S)
    if fleet.is_overheard:
        remark("warning: CLEAR TEXT: everybody on the way can read the API token; use https://")
    return fleet


def tell_cut_off(fleet: Fleet) -> None:
    """Say that the controller has no connection with the broker, if that is so.

    What was asked has been answered: if this cannot be asked any more, nothing is said.

    Args:
        fleet: The controller.
    """
    try:
        health = fleet.health()
    except FleetError:
        return
    if not health.broker_connected:
        needs = next(iter(health.needs), "a connection with the MQTT broker")
        remark(
            "warning: devices hear nothing, and what is shown of them may be old: the controller "
            f"lacks {plain_text(needs)}"
        )
