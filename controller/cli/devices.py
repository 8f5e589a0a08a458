"""`fleet device ...` and `fleet why`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeGuard

import typer

from controller.cli.arguments import JsonOption, changed_labels, parse_duration
from controller.cli.client import connect, request_body, segment
from controller.cli.output import (
    age_text,
    bytes_text,
    cell_text,
    local_time,
    plain_text,
    remark,
    write,
    write_fields,
    write_json,
    write_table,
)
from wire.clock import SystemClock

if TYPE_CHECKING:
    from controller.cli.client import ApiClient
    from controller.schemas import Device, DeviceEvent

PAGE_DEVICES = 10_000
"""Devices that one request asks for."""

DeviceArgument = Annotated[str, typer.Argument(metavar="DEVICE", help="Identifier of the device.")]
SinceOption = Annotated[str, typer.Option(help="How far back, such as 30m or 7d.")]
LimitOption = Annotated[int, typer.Option(help="At most so many.", min=1, max=1000)]
KindOption = Annotated[
    list[str] | None, typer.Option(help="Only this kind, such as switch or install; repeatable.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="The devices of the fleet.", no_args_is_help=True)
    group.command("list")(device_list)
    group.command("show")(device_show)
    group.command("label")(device_label)
    group.command("quarantine")(device_quarantine)
    group.command("restore")(device_restore)
    group.command("decommission")(device_decommission)
    app.add_typer(group, name="device")
    app.command("why")(why)


def device_list(
    context: typer.Context,
    selector: Annotated[
        str, typer.Option(help="Label expression, such as site=berlin,profile!=rpi4.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """List devices."""
    with connect(context) as api:
        devices = _selected(api, selector)
    if as_json:
        write_json(devices)
        return
    now_s = SystemClock().now_s()
    write_table(
        ("DEVICE", "STATE", "ONLINE", "PROFILE", "RELEASE", "VARIANT", "PHASE", "SEEN", "LABELS"),
        [
            (
                d.id, d.state, d.online, d.profile, d.release, d.variant, d.phase,
                age_text(d.last_seen_at_s, now_s), d.labels,
            )
            for d in devices
        ],
    )  # fmt: skip


def device_show(
    context: typer.Context, device: DeviceArgument, as_json: JsonOption = False
) -> None:
    """Show one device."""
    with connect(context) as api:
        _show(_fetch(api, device), as_json=as_json)


def device_label(
    context: typer.Context,
    device: DeviceArgument,
    changes: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE...", help="Labels; KEY- removes one.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Set or remove labels of a device."""
    with connect(context) as api:
        labels = changed_labels(_fetch(api, device).labels, changes)
        _show(_update(api, device, labels=labels), as_json=as_json)


def device_quarantine(context: typer.Context, device: DeviceArgument) -> None:
    """Shut a device out: its broker account is disabled, rollouts leave it alone."""
    with connect(context) as api:
        _say_state(_update(api, device, state="quarantined"))


def device_restore(context: typer.Context, device: DeviceArgument) -> None:
    """Let a quarantined device in again."""
    with connect(context) as api:
        _say_state(_update(api, device, state="enrolled"))


def device_decommission(context: typer.Context, device: DeviceArgument) -> None:
    """Take a device out of the fleet for good."""
    with connect(context) as api:
        _say_state(_update(api, device, state="decommissioned"))


def why(
    context: typer.Context,
    device: DeviceArgument,
    since: SinceOption = "1h",
    kind: KindOption = None,
    limit: LimitOption = 200,
    as_json: JsonOption = False,
) -> None:
    """Say what a device did and why, oldest first."""
    with connect(context) as api:
        events = fetch_events(api, device, since=since, kinds=kind or [], limit=limit)
    if as_json:
        write_json(events)
        return
    for event in events:
        for line in event_lines(event):
            write(line)
    if not events:
        remark(f"no events of {plain_text(device)} within {since}")


def fetch_events(
    api: ApiClient, device: str, *, since: str, kinds: list[str], limit: int
) -> list[DeviceEvent]:
    """Ask for a device's events.

    Args:
        api: The controller.
        device: Whose.
        since: How far back, as typed.
        kinds: Only these; empty means all.
        limit: At most so many.

    Returns:
        The events, oldest first.
    """
    from controller.schemas import DeviceEvent

    since_s = SystemClock().now_s() - parse_duration(since, option="--since")
    return api.get(
        f"/v1/devices/{segment(device)}/events",
        list[DeviceEvent],
        {"since_s": f"{since_s:.3f}", "kind": kinds, "limit": str(limit)},
    )


def event_lines(event: DeviceEvent) -> list[str]:
    """Return an event for people: when, what, why, and what the decision was made from.

    Args:
        event: As the device sent it.

    Returns:
        One line, and one more for each part of the decision.
    """
    lines = [f"{local_time(event.at_s)}  {plain_text(event.kind)}  {plain_text(event.reason)}"]
    for name, value in sorted(event.data.items(), key=_decision_order):
        if name == "verdicts" and isinstance(value, dict):
            lines += [f"    lost {plain_text(str(k))}: {cell_text(v)}" for k, v in value.items()]
        elif value not in (None, "", {}, []):
            lines.append(f"    {plain_text(str(name))}: {_inline(value)}")
    return lines


def _decision_order(item: tuple[str, Any]) -> tuple[int, str]:
    order = ("variant", "from", "to", "inputs")
    name = item[0]
    if name == "verdicts":
        return (len(order) + 1, name)
    return (order.index(name) if name in order else len(order), name)


def _inline(value: object) -> str:
    """Return a decision's inputs on one line; what was not known is left out."""
    if not isinstance(value, dict):
        return cell_text(value)
    known = {str(k): v for k, v in sorted(value.items()) if v is not None}
    return "  ".join(
        f"{plain_text(k)}={bytes_text(v) if _is_size(k, v) else cell_text(v)}"
        for k, v in known.items()
    )


def _is_size(name: str, value: object) -> TypeGuard[int]:
    return name.endswith("_bytes") and isinstance(value, int)


def _selected(api: ApiClient, selector: str) -> list[Device]:
    from controller.schemas import Device

    devices: list[Device] = []
    while True:
        params = {"selector": selector, "limit": str(PAGE_DEVICES)}
        if devices:
            params["after"] = devices[-1].id
        page = api.get("/v1/devices", list[Device], params)
        devices += page
        if len(page) < PAGE_DEVICES:
            return devices


def _fetch(api: ApiClient, device: str) -> Device:
    from controller.schemas import Device

    return api.get(f"/v1/devices/{segment(device)}", Device)


def _update(api: ApiClient, device: str, **changes: object) -> Device:
    from controller.schemas import Device, DeviceUpdate

    body = request_body(DeviceUpdate, **changes)
    return api.send("PATCH", f"/v1/devices/{segment(device)}", Device, body)


def _say_state(device: Device) -> None:
    write(f"{plain_text(device.id)} {device.state}")


def _policy_text(device: Device) -> str:
    name = "the default, none matches" if device.policy is None else device.policy
    if device.revision == 0:
        return f"{name} (comes with the first release)"
    return f"{name} ({'accepted' if device.policy_accepted else 'not accepted yet'})"


def _show(device: Device, *, as_json: bool) -> None:
    if as_json:
        write_json(device)
        return
    now_s = SystemClock().now_s()
    write_fields(
        [
            ("device", device.id),
            ("state", device.state),
            ("online", device.online),
            ("profile", device.profile),
            ("labels", device.labels),
            ("agent", device.agent_version),
            ("release", device.release),
            ("variant", device.variant),
            ("desired release", device.desired_release),
            ("revision", f"{device.revision} (reported {device.reported_revision})"),
            ("policy", _policy_text(device)),
            ("phase", device.phase),
            ("enrolled", local_time(device.enrolled_at_s)),
            ("last seen", age_text(device.last_seen_at_s, now_s)),
            ("last error", device.last_error),
        ]
    )
