"""`fleet tool`: converters whose dependencies conflict with ours, in environments of their own."""

from __future__ import annotations

from typing import Annotated

import typer

from controller.cli.arguments import JsonOption
from controller.cli.build_view import progress
from controller.cli.commands import Commands, add_group
from controller.cli.output import write_plain_json
from wire.console.output import remark, write, write_table


def register(app: typer.Typer) -> None:
    """Add the commands."""
    commands: Commands = {"list": tool_list, "install": tool_install}
    add_group(app, "tool", "Install external converters.", commands)


def tool_list(
    *,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the names alone.")] = False,
    json: JsonOption = False,
) -> None:
    """List the tools that have an environment of their own.

    Examples:
        fleet tool list
    """
    from packager.tools.environments import default_root, environment_python, names

    if quiet:
        for name in names():
            write(name)
        return
    found = {name: environment_python(name, default_root()) for name in names()}
    if json:
        write_plain_json(
            {name: None if path is None else str(path) for name, path in found.items()}
        )
        return
    write_table(
        ("TOOL", "INSTALLED AS"),
        [(name, None if path is None else str(path)) for name, path in found.items()],
    )


def tool_install(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the tool.")],
) -> None:
    """Install a tool in an environment of its own.

    The dependencies of such a tool conflict with those of edgefleet.

    Examples:
        fleet tool install onnx2tf
    """
    from packager.tools.environments import default_root, install

    with progress() as tell:
        path = install(name, default_root(), tell)
    remark(f"installed {name}: {path}")
