"""`fleet policy ...`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from controller.cli.arguments import JsonOption
from controller.cli.client import connect, request_body, segment
from controller.cli.errors import ArgumentError
from controller.cli.output import (
    local_time,
    plain_text,
    remark,
    write,
    write_fields,
    write_json,
    write_table,
)

if TYPE_CHECKING:
    from controller.schemas import Policy

MAX_FILE_BYTES = 64 * 1024

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the policy.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="How devices choose among their variants.", no_args_is_help=True)
    group.command("set")(policy_set)
    group.command("list")(policy_list)
    group.command("show")(policy_show)
    group.command("remove")(policy_remove)
    app.add_typer(group, name="policy")


def policy_set(  # noqa: PLR0913, PLR0917 - one parameter for each option
    context: typer.Context,
    name: NameArgument,
    file: Annotated[
        Path | None, typer.Option(help="TOML with the keys of [policy] in agent.toml.")
    ] = None,
    selector: Annotated[str, typer.Option(help="Label expression; all devices if empty.")] = "",
    priority: Annotated[int, typer.Option(help="The highest holds, then the first by name.")] = 0,
    kind: Annotated[str | None, typer.Option(help="rules or adaptive.")] = None,
    min_retention: Annotated[
        float | None, typer.Option(help="Least share of the reference's quality.")
    ] = None,
    deadline_ms: Annotated[
        float | None, typer.Option(help="Within which an answer is worth something.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Set a policy for the devices that a selector means, in place of the one of that name."""
    aims = {"min_retention": min_retention, "deadline_ms": deadline_ms}
    settings = _settings(
        file, kind, {key: value for key, value in aims.items() if value is not None}
    )
    from controller.schemas import Policy, PolicyRequest

    body = request_body(PolicyRequest, selector=selector, priority=priority, policy=settings)
    with connect(context) as api:
        policy = api.send("PUT", f"/v1/policies/{segment(name)}", Policy, body)
    if as_json:
        write_json(policy)
        return
    write(f"policy {policy.name}: {policy.policy.kind} for {_meant(policy)}")
    remark("devices that are online hear of it within seconds, the others when they connect")


def policy_list(context: typer.Context, as_json: JsonOption = False) -> None:
    """List policies: the first that means a device holds for it."""
    from controller.schemas import Policy

    with connect(context) as api:
        policies = api.get("/v1/policies", list[Policy])
    if as_json:
        write_json(policies)
        return
    write_table(
        ("POLICY", "PRIORITY", "SELECTOR", "KIND", "DEVICES", "ACCEPTED", "CHANGED"),
        [
            (
                p.name, p.priority, p.selector, p.policy.kind, p.devices, p.accepted,
                local_time(p.changed_at_s),
            )
            for p in policies
        ],
    )  # fmt: skip


def policy_show(context: typer.Context, name: NameArgument, as_json: JsonOption = False) -> None:
    """Show a policy, and how many devices have it."""
    from controller.schemas import Policy

    with connect(context) as api:
        policy = api.get(f"/v1/policies/{segment(name)}", Policy)
    if as_json:
        write_json(policy)
        return
    write_fields(
        [
            ("policy", policy.name),
            ("selector", policy.selector),
            ("priority", policy.priority),
            ("changed", local_time(policy.changed_at_s)),
            ("devices", f"{policy.devices} ({policy.accepted} accepted)"),
            *_flat(policy.policy.model_dump()),
        ]
    )


def policy_remove(context: typer.Context, name: NameArgument) -> None:
    """Remove a policy; its devices get the one that then holds for them."""
    from controller.schemas import Policy

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

    try:
        with path.open("rb") as file:
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
    """Return the fields of a policy: those of a file, and options, which count more.

    Raises:
        ArgumentError: Neither is given, the file is not what it should be, or an option would
            change nothing.
    """
    if file is None and kind is None and not aims:
        raise ArgumentError("nothing says what the policy is", remedy="give --file or --kind")
    settings = {} if file is None else _read(file)
    if kind is not None:
        settings["kind"] = kind
    if aims:
        objective = settings.get("objective", {})
        if not isinstance(objective, dict):
            raise ArgumentError("objective is no table", remedy="write it as [objective]")
        if settings.get("kind") != "adaptive":
            raise ArgumentError("only adaptive keeps an objective", remedy="add --kind adaptive")
        settings["objective"] = objective | aims
    return settings


def _meant(policy: Policy) -> str:
    return plain_text(policy.selector) or "every device"


def _flat(settings: dict[str, Any], prefix: str = "") -> list[tuple[str, object]]:
    """Return fields with those of the objective after its name, as one could write them in TOML."""
    found: list[tuple[str, object]] = []
    for key, value in settings.items():
        found += _flat(value, f"{key}.") if isinstance(value, dict) else [(prefix + key, value)]
    return found
