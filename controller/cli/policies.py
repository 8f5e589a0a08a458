"""`fleet policy ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from controller.cli import completion
from controller.cli.arguments import JsonOption, selected
from controller.cli.commands import Commands, add_group
from controller.cli.connecting import connect
from controller.cli.errors import ArgumentError
from controller.cli.lists import time_heading
from controller.cli.output import write_json
from controller.client.errors import FaultError
from controller.client.fleet import Fleet
from controller.errors import UnknownPolicyError
from controller.policy_schemas import Policy
from controller.schemas import given_fields
from telemetry.reasons import changes_text
from wire.codec import convert, to_builtins
from wire.console.output import remark, write, write_fields, write_table
from wire.console.text import local_time, plain_text
from wire.durations import HOUR_S
from wire.errors import PolicyFileError, WireFormatError
from wire.policy import PolicySpec, changes
from wire.policy_file import checked_policy, read_policy

MAX_FILE_BYTES = 64 * 1024
BATTERY_AIMS = ("battery_until", "battery_lasts_s")
RULES = "rules"
OPTIONS = {
    "min_retention": "--min-retention",
    "deadline_ms": "--deadline-ms",
    "battery_until": "--battery-until",
    "battery_lasts_s": "--battery-hours",
}
"""The options that give the keys of the objective."""

HOURS_REMEDY = "give hours, 0 or more"

NameArgument = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name of the policy.", autocompletion=completion.policies),
]


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
        typer.Option(
            help="TOML or JSON file with the keys of [policy] in agent.toml, and its tables "
            "[objective] and [sharing].",
            metavar="FILE",
        ),
    ] = None,
    selector: Annotated[
        str,
        typer.Option(
            help="The devices that it is for. The default is all devices.",
            metavar="SELECTOR",
            autocompletion=completion.selectors,
        ),
    ] = "",
    priority: Annotated[
        int,
        typer.Option(
            help="Of several policies that select a device the highest priority holds.", metavar="N"
        ),
    ] = 0,
    model: Annotated[
        str | None,
        typer.Option(
            help="The model that it is for. The default is every model of the devices.",
            metavar="NAME",
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(help="Kind of policy: adaptive, the default, or rules.", metavar="KIND"),
    ] = None,
    min_retention: Annotated[
        float | None,
        typer.Option(help="Least share of the reference's quality, such as 0.98.", metavar="SHARE"),
    ] = None,
    deadline_ms: Annotated[
        float | None, typer.Option(help="Time within which an answer is of use.", metavar="MS")
    ] = None,
    battery_until: Annotated[
        str | None,
        typer.Option(
            help="The battery has to last until the next such time of day, local time of the "
            "device: for a charger or the end of a shift at a fixed time.",
            metavar="HH:MM",
        ),
    ] = None,
    battery_hours: Annotated[
        float | None,
        typer.Option(
            help="The battery has to last so long from when it begins to discharge: for devices "
            "that leave the charger at any time. 0 for no aim; the default is 4.",
            metavar="HOURS",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Set a policy for devices, in place of the one of that name.

    How a model shares a device with others is set in the file: [sharing] weight is what an answer
    of it is worth beside one of theirs, and may_park lets it stop for them as the last resort;
    workers lets it run in several processes at once, and keep_previous leaves the version before
    loaded beside a new one.

    Examples:
        fleet policy set careful --deadline-ms 50
        fleet policy set field --deadline-ms 50 --battery-until 18:00
        fleet policy set lab --file policy.toml --selector stage=lab --priority 5
        fleet policy set fast --model digits --deadline-ms 20
    """
    aims = {
        "min_retention": min_retention,
        "deadline_ms": deadline_ms,
        "battery_until": battery_until,
        "battery_lasts_s": None if battery_hours is None else battery_hours * HOUR_S,
    }
    settings = _settings(
        file, kind, {key: value for key, value in aims.items() if value is not None}
    )
    # The fields go out as they are in the file: the controller refuses unknown ones.
    body = {"selector": selector, "priority": priority, "policy": settings}
    if model is not None:  # controllers of before do not know the field
        body["model"] = model
    with connect(context) as api:
        before = _present(api, name)
        policy = api.policies.set(name, body)
    if as_json:
        write_json(policy)
        return
    whom = plain_text(selected(policy.selector))
    of = f"model {plain_text(policy.model)} on " if policy.model is not None else ""
    write(f"policy {policy.name}: {policy.policy.kind} for {of}{whom}")
    if before is not None and (changed := _changed(before, policy)):
        write(f"changed: {changed}")
    remark(
        "devices that have a release and are online get it within seconds, the others with their "
        "first release or when they connect; `fleet policy list` shows how many have it"
    )


def policy_list(context: typer.Context, as_json: JsonOption = False) -> None:
    """List policies. If several match a device, the first of them applies.

    Examples:
        fleet policy list
    """
    with connect(context) as api:
        policies = api.policies.list()
    if as_json:
        write_json(policies)
        return
    changed = time_heading("CHANGED", (p.changed_at_s for p in policies))
    write_table(
        ("POLICY", "PRIORITY", "MODEL", "SELECTOR", "KIND", "DEVICES", "ACCEPTED", changed),
        [
            (
                p.name, p.priority, p.model or "all", selected(p.selector), p.policy.kind,
                p.devices, p.accepted,
                local_time(p.changed_at_s),
            )
            for p in policies
        ],
        minor=(changed, "ACCEPTED"),
    )  # fmt: skip


def policy_show(context: typer.Context, name: NameArgument, as_json: JsonOption = False) -> None:
    """Show a policy, and how many devices have it.

    Examples:
        fleet policy show careful
    """
    with connect(context) as api:
        policy = api.policies.get(name)
    if as_json:
        write_json(policy)
        return
    write_fields(
        [
            ("policy", policy.name),
            ("selector", selected(policy.selector)),
            ("model", policy.model or "all"),
            ("priority", policy.priority),
            ("changed", local_time(policy.changed_at_s)),
            ("devices", f"{policy.devices} ({policy.accepted} accepted)"),
            *_flat(_shown(to_builtins(policy.policy))),
        ]
    )


def policy_remove(context: typer.Context, name: NameArgument) -> None:
    """Remove a policy.

    Its devices get the policy that then holds for them.

    Examples:
        fleet policy remove careful
    """
    with connect(context) as api:
        policy = api.policies.remove(name)
    write(f"removed policy {plain_text(policy.name)}")


def _present(api: Fleet, name: str) -> Policy | None:
    """Return the policy of a name; None if there is none yet.

    Raises:
        FaultError: The controller refused.
    """
    try:
        return api.policies.get(name)
    except FaultError as exc:
        if exc.fault_code == UnknownPolicyError.code:
            return None
        raise


def _changed(before: Policy, after: Policy) -> str:
    """Return what a policy drops or changes of the one before, with the old values."""
    old, new = changes(_spec(before), _spec(after))
    if before.priority != after.priority:
        old["priority"], new["priority"] = before.priority, after.priority
    if before.model != after.model:
        old["model"], new["model"] = before.model or "all", after.model or "all"
    if before.selector != after.selector:
        old["selector"], new["selector"] = selected(before.selector), selected(after.selector)
    return changes_text(old, new)


def _spec(policy: Policy) -> PolicySpec:
    return convert(given_fields(policy.policy), PolicySpec)


def _read(path: Path) -> dict[str, Any]:
    """Read the fields of a policy.

    Raises:
        ArgumentError: The file cannot be read, or holds none.
    """
    from wire.files import open_file

    try:
        with open_file(path) as file:
            data = file.read(MAX_FILE_BYTES + 1)
        return read_policy(data, path.name, limit_bytes=MAX_FILE_BYTES)
    except OSError as exc:
        reason = (exc.strerror or str(exc)).lower()
        raise ArgumentError(f"cannot read {path}: {reason}", remedy="check the path") from exc
    except WireFormatError as exc:
        raise ArgumentError(f"{path}: {exc.message}", remedy=exc.remedy) from exc


def _settings(file: Path | None, kind: str | None, aims: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a policy from a file and from options; options take precedence.

    Raises:
        ArgumentError: Neither is given, the file cannot be used, or a value cannot be or would
            have no effect.
    """
    if set(BATTERY_AIMS) <= aims.keys():
        raise ArgumentError(
            "--battery-until and --battery-hours contradict each other", remedy="give one of them"
        )
    if file is None and kind is None and not aims:
        raise ArgumentError("the policy says nothing", remedy="give --file, --kind or an aim")
    settings = {} if file is None else _read(file)
    if kind is not None:
        settings["kind"] = kind
    if aims:
        objective = settings.get("objective", {})
        if not isinstance(objective, dict):
            raise ArgumentError("objective is not a table", remedy="write it as [objective]")
        if settings.get("kind") == RULES:
            raise ArgumentError(
                "only the adaptive policy has an objective", remedy="give --kind adaptive"
            )
        # An aim for the battery given as an option takes the place of the other one in the file.
        for one, other in (BATTERY_AIMS, BATTERY_AIMS[::-1]):
            if one in aims:
                objective.pop(other, None)
        settings["objective"] = objective | aims
    try:
        checked_policy(settings)
    except PolicyFileError as exc:
        error = _at(exc, file, kind, aims)
        raise error from exc
    return settings


def _at(
    fault: PolicyFileError, file: Path | None, kind: str | None, aims: dict[str, Any]
) -> ArgumentError:
    """Return a fault with its place: the option that gave the value, or the file."""
    aim = fault.key.removeprefix("objective.")
    place = str(file)
    if aim in aims:
        place = OPTIONS[aim]
    elif file is None or (fault.key == "kind" and kind is not None):
        place = "--kind"
    remedy = HOURS_REMEDY if place == OPTIONS["battery_lasts_s"] else fault.remedy
    return ArgumentError(f"{place}: {fault.message}", remedy=remedy)


def _shown(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the fields without the aim for the battery that does not count."""
    objective = settings.get("objective")
    if not isinstance(objective, dict):
        return settings
    until, lasts = BATTERY_AIMS
    idle = lasts if objective.get(until) is not None else until
    return settings | {"objective": {k: v for k, v in objective.items() if k != idle}}


def _flat(settings: dict[str, Any], prefix: str = "") -> list[tuple[str, object]]:
    """Return fields as a flat list; those of the objective have dotted names, as in TOML."""
    found: list[tuple[str, object]] = []
    for key, value in settings.items():
        found += _flat(value, f"{key}.") if isinstance(value, dict) else [(prefix + key, value)]
    return found
