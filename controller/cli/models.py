"""`fleet model ...`: which models there are, and taking one away from devices."""

from __future__ import annotations

from typing import Annotated

import typer

from controller.cli import completion
from controller.cli.arguments import JsonOption
from controller.cli.commands import Commands, add_group
from controller.cli.connecting import connect, tell_cut_off
from controller.cli.output import write_json
from controller.domain.wording import counted
from wire.console.output import remark, write, write_table
from wire.console.text import plain_text

MAX_KEPT = 5
"""Devices that one line names."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    commands: Commands = {"list": model_list, "remove": model_remove}
    add_group(app, "model", "Show models, and take one away from devices.", commands)


def model_list(context: typer.Context, as_json: JsonOption = False) -> None:
    """List models: their releases, and how many devices run and should run each.

    A model is what the releases of one name bring. UNLOADED counts those of the running devices
    where no variant of it serves: a client has unloaded the model, or it is parked.

    Examples:
        fleet model list
    """
    with connect(context) as api:
        models = api.models.list()
        tell_cut_off(api)
    if as_json:
        write_json(models)
        return
    rows: list[tuple[object, ...]] = []
    for model in models:
        rows += [
            (model.name, r.release, r.state, r.running, r.desired, r.unloaded)
            for r in model.releases
        ]
        if others := model.running - sum(r.running for r in model.releases):
            unloaded = model.unloaded - sum(r.unloaded for r in model.releases)
            rows.append((model.name, "not one of ours", None, others, 0, unloaded))
    write_table(
        ("MODEL", "RELEASE", "STATE", "RUNNING", "DESIRED", "UNLOADED"), rows, minor=("STATE",)
    )


def model_remove(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Name of the model.", autocompletion=completion.models),
    ],
    selector: Annotated[
        str,
        typer.Option(
            help="The devices that lose it. The default is all devices.",
            metavar="SELECTOR",
            autocompletion=completion.selectors,
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Let devices stop serving a model, and free the space.

    Its releases stay published. While a rollout of the model runs on one of the devices, nothing is
    removed.

    Examples:
        fleet model remove detector
        fleet model remove detector --selector site=berlin
    """
    with connect(context) as api:
        removed = api.models.remove(name, selector=selector)
    if as_json:
        write_json(removed)
        return
    write(f"model {plain_text(removed.model)} is taken away from {counted(removed.devices)}")
    if removed.kept:
        more = len(removed.kept) - MAX_KEPT
        names = ", ".join(removed.kept[:MAX_KEPT]) + (f" and {more} more" if more > 0 else "")
        remark(
            f"{plain_text(names)} cannot remove it: the agent has one model, and keeps this one "
            "until it is updated or gets another one"
        )
