"""`fleet policy ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from controller.cli.arguments import JsonOption, selected
from controller.cli.client import connect, segment
from controller.cli.commands import Commands, add_group
from controller.cli.errors import ArgumentError
from controller.cli.output import write_json
from controller.schemas import Policy
from wire.codec import to_builtins
from wire.console.output import remark, write, write_fields, write_table
from wire.console.text import local_time, plain_text

MAX_FILE_BYTES = 64 * 1024

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the policy.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    commands: Commands = {
        "set": policy_set,
        "list": policy_list,
        "show": policy_show,
        "remove": policy_remove,
    }
    add_group(app, "policy", "Set how devices choose among their variants.", commands)


def policy_set(  # noqa: PLR0913, PLR0917 - one parameter for each option
    context: typer.Context,
    name: NameArgument,
    file: Annotated[
        Path | None,
        typer.Option(help="TOML file with the keys of [policy] in agent.toml.", metavar="FILE"),
    ] = None,
    selector: Annotated[
        str,
        typer.Option(
            help="The devices that it is for. The default is all devices.", metavar="SELECTOR"
        ),
    ] = "",
    priority: Annotated[
        int,
        typer.Option(
            help="Of several policies that select a device the highest priority holds.", metavar="N"
        ),
    ] = 0,
    kind: Annotated[
        str | None, typer.Option(help="Kind of policy: rules or adaptive.", metavar="KIND")
    ] = None,
    min_retention: Annotated[
        float | None,
        typer.Option(help="Least share of the reference's quality, such as 0.98.", metavar="SHARE"),
    ] = None,
    deadline_ms: Annotated[
        float | None, typer.Option(help="Time within which an answer is of use.", metavar="MS")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Set a policy for devices, in place of the one of that name.

    Examples:
        fleet policy set careful --kind adaptive --deadline-ms 50
        fleet policy set lab --file policy.toml --selector stage=lab --priority 5
    """
    aims = {"min_retention": min_retention, "deadline_ms": deadline_ms}
    settings = _settings(
        file, kind, {key: value for key, value in aims.items() if value is not None}
    )
    # The fields go out as they are in the file: the controller refuses unknown ones.
    body = {"selector": selector, "priority": priority, "policy": settings}
    with connect(context) as api:
        policy = api.send("PUT", f"/v1/policies/{segment(name)}", Policy, body)
    if as_json:
        write_json(policy)
        return
    write(f"policy {policy.name}: {policy.policy.kind} for {plain_text(selected(policy.selector))}")
    remark("devices that are online get it within seconds, the others when they connect")


def policy_list(context: typer.Context, as_json: JsonOption = False) -> None:
    """List policies. If several match a device, the first of them applies.

    Examples:
        fleet policy list
    """
    with connect(context) as api:
        policies = api.get("/v1/policies", list[Policy])
    if as_json:
        write_json(policies)
        return
    write_table(
        ("POLICY", "PRIORITY", "SELECTOR", "KIND", "DEVICES", "ACCEPTED", "CHANGED"),
        [
            (
                p.name, p.priority, selected(p.selector), p.policy.kind, p.devices, p.accepted,
                local_time(p.changed_at_s),
            )
            for p in policies
        ],
        minor=("CHANGED", "ACCEPTED"),
    )  # fmt: skip


def policy_show(context: typer.Context, name: NameArgument, as_json: JsonOption = False) -> None:
    """Show a policy, and how many devices have it.

    Examples:
        fleet policy show careful
    """
    with connect(context) as api:
        policy = api.get(f"/v1/policies/{segment(name)}", Policy)
    if as_json:
        write_json(policy)
        return
    write_fields(
        [
            ("policy", policy.name),
            ("selector", selected(policy.selector)),
            ("priority", policy.priority),
            ("changed", local_time(policy.changed_at_s)),
            ("devices", f"{policy.devices} ({policy.accepted} accepted)"),
            *_flat(to_builtins(policy.policy)),
        ]
    )


def policy_remove(context: typer.Context, name: NameArgument) -> None:
    """Remove a policy.

    Its devices get the policy that then holds for them.

    Examples:
        fleet policy remove careful
    """
    with connect(context) as api:
        policy = api.send("DELETE", f"/v1/policies/{segment(name)}", Policy)
    write(f"removed policy {plain_text(policy.name)}")


def _read(path: Path) -> dict[str, Any]:
    """Read the fields of a policy.

    Raises:
        ArgumentError: The file cannot be read, or is no TOML.
    """
    from wire.codec import from_toml
    from wire.errors import WireFormatError
    from wire.files import open_file

    try:
        with open_file(path) as file:
            data = file.read(MAX_FILE_BYTES + 1)
        return from_toml(data, dict, limit_bytes=MAX_FILE_BYTES)
    except OSError as exc:
        reason = (exc.strerror or str(exc)).lower()
        raise ArgumentError(f"cannot read {path}: {reason}", remedy="check the path") from exc
    except WireFormatError as exc:
        raise ArgumentError(
            f"{path}: {exc.message}",
            remedy="write the keys of [policy] in agent.toml, without that heading",
        ) from exc


def _settings(file: Path | None, kind: str | None, aims: dict[str, float]) -> dict[str, Any]:
    """Return the fields of a policy from a file and from options; options take precedence.

    Raises:
        ArgumentError: Neither is given, the file cannot be used, or an option would have no
            effect.
    """
    if file is None and kind is None and not aims:
        raise ArgumentError("the policy has no kind", remedy="give --file or --kind")
    settings = {} if file is None else _read(file)
    if kind is not None:
        settings["kind"] = kind
    if aims:
        objective = settings.get("objective", {})
        if not isinstance(objective, dict):
            raise ArgumentError("objective is not a table", remedy="write it as [objective]")
        if settings.get("kind") != "adaptive":
            raise ArgumentError(
                "only the adaptive policy has an objective", remedy="add --kind adaptive"
            )
        settings["objective"] = objective | aims
    return settings


def _flat(settings: dict[str, Any], prefix: str = "") -> list[tuple[str, object]]:
    """Return fields as a flat list; those of the objective have dotted names, as in TOML."""
    found: list[tuple[str, object]] = []
    for key, value in settings.items():
        found += _flat(value, f"{key}.") if isinstance(value, dict) else [(prefix + key, value)]
    return found
