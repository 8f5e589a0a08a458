"""`fleet group ...`."""

from __future__ import annotations

from typing import Annotated

import typer

from controller.cli import completion
from controller.cli.arguments import JsonOption
from controller.cli.commands import Commands, add_group
from controller.cli.connecting import connect
from controller.cli.lists import time_heading, write_list
from controller.cli.output import write_json
from controller.cli.paging import CountOption, CursorOption, ReverseOption, take
from controller.group_schemas import GroupMembers, GroupRequest
from wire.console.output import remark, write, write_fields
from wire.console.text import local_time

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the group.", autocompletion=completion.groups)
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    commands: Commands = {
        "set": group_set,
        "list": group_list,
        "show": group_show,
        "remove": group_remove,
    }
    add_group(app, "group", "Give selectors a name.", commands)


def group_set(
    context: typer.Context,
    name: NameArgument,
    selector: Annotated[
        str, typer.Argument(metavar="SELECTOR", help="The devices that the group means.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Make a group, or replace the one of that name.

    Any selector can name it as group:NAME. What a group means is looked up whenever such a selector
    is used, so a change reaches the rollouts, policies, captures and alerts that name it.

    Examples:
        fleet group set cameras "profile=rpi* and site in (berlin,potsdam)"
        fleet group set old "group:cameras and agent_version<1.4"
    """
    with connect(context) as api:
        group = api.groups.set(name, GroupRequest(selector=selector))
    if as_json:
        write_json(group)
        return
    count = len(group.devices)
    write(f"group {group.name} means {count} enrolled device{'' if count == 1 else 's'} now")
    if group.used_by:
        remark(f"it is in use by {_users(group)}")


def group_list(
    context: typer.Context,
    sort: Annotated[str, typer.Option("--sort", metavar="KEY", help="By name or changed.")] = "",
    reverse: ReverseOption = False,
    limit: CountOption = None,
    cursor: CursorOption = "",
    as_json: JsonOption = False,
) -> None:
    """List the groups.

    Examples:
        fleet group list
    """
    with connect(context) as api:
        groups = take(api.groups.list(sort=sort, reverse=reverse), limit, cursor)
    if as_json:
        write_json(groups)
        return
    changed = time_heading("CHANGED", (group.changed_at_s for group in groups))
    write_list(
        ("GROUP", "SELECTOR", changed),
        [(group.name, group.selector, local_time(group.changed_at_s)) for group in groups],
        none="there are no groups; `fleet group set NAME SELECTOR` makes one",
        minor=(changed,),
    )


def group_show(context: typer.Context, name: NameArgument, as_json: JsonOption = False) -> None:
    """Show a group, the enrolled devices that it means now, and what names it.

    Examples:
        fleet group show cameras
    """
    with connect(context) as api:
        group = api.groups.get(name)
    if as_json:
        write_json(group)
        return
    write_fields(
        [
            ("group", group.name),
            ("selector", group.selector),
            ("changed", local_time(group.changed_at_s)),
            ("used by", _users(group) or "nothing"),
            ("devices", len(group.devices)),
        ]
    )
    for device in group.devices:
        write(device)


def group_remove(context: typer.Context, name: NameArgument) -> None:
    """Remove a group that nothing names.

    Examples:
        fleet group remove cameras
    """
    with connect(context) as api:
        api.groups.remove(name)
    write(f"group {name} is removed")


def _users(group: GroupMembers) -> str:
    return "; ".join(f"{what} {', '.join(names)}" for what, names in group.used_by.items())
