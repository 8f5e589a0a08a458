"""`fleet device ...`."""

from __future__ import annotations

from typing import Annotated

import typer

from controller.cli import completion
from controller.cli.arguments import JsonOption
from controller.cli.commands import Commands, add_command, add_group
from controller.cli.connecting import connect, tell_cut_off
from controller.cli.device_labels import device_label
from controller.cli.device_models import (
    model_fields,
    models_of,
    tell_unloaded,
    variant_text,
    write_attributes,
    write_models,
)
from controller.cli.named_arguments import DeviceArgument, DevicesArgument
from controller.cli.output import write_json
from controller.cli.paging import CountOption, CursorOption, ReverseOption, take
from controller.cli.registering import (
    device_register,
    device_registered,
    device_unregister,
)
from controller.cli.release_drift import device_drift
from controller.cli.transfers import share_text
from controller.cli.waiting import device_accept, device_refuse, device_waiting
from controller.cli.why import why
from controller.client.fleet import Fleet
from controller.device_schemas import Device, DeviceUpdate
from controller.domain.states import DeviceState
from telemetry.server.clocks import clock_text
from wire.clock import SystemClock
from wire.console.output import remark, write, write_fields, write_table
from wire.console.text import age_text, local_time, plain_text

MAX_TOLD = 10
"""Devices that are held out of rollouts and told one by one."""

TRUSTS = {None: "not told yet", True: "trust.json: its keys never change", False: "root.json"}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    commands: Commands = {
        "list": device_list,
        "show": device_show,
        "label": device_label,
        "lend": device_lend,
        "return": device_return,
        "quarantine": device_quarantine,
        "restore": device_restore,
        "decommission": device_decommission,
        "readmit": device_readmit,
        "drift": device_drift,
        "register": device_register,
        "registered": device_registered,
        "unregister": device_unregister,
        "waiting": device_waiting,
        "accept": device_accept,
        "refuse": device_refuse,
    }
    add_group(app, "device", "Show and manage the devices of the fleet.", commands)
    add_command(app, "why", why)


def device_list(
    context: typer.Context,
    selector: Annotated[
        str,
        typer.Option(
            help="Show only these devices, such as 'site=berlin and agent_version<1.4'.",
            metavar="SELECTOR",
            autocompletion=completion.selectors,
        ),
    ] = "",
    drifted: Annotated[
        bool,
        typer.Option("--drifted", help="Show only devices that run another release than desired."),
    ] = False,
    sort: Annotated[
        str, typer.Option("--sort", metavar="KEY", help="By id, enrolled, profile, seen or state.")
    ] = "",
    reverse: ReverseOption = False,
    limit: CountOption = None,
    cursor: CursorOption = "",
    as_json: JsonOption = False,
) -> None:
    """List devices. One that has several models has a line for each.

    A device has drifted if it runs another release than it should, and no rollout is bringing that
    one: it lost the release, or refused it.

    Examples:
        fleet device list
        fleet device list --selector "site=berlin and agent_version<1.4"
        fleet device list --drifted
        fleet device list --sort seen --limit 20
    """
    with connect(context) as api:
        listing = api.devices.list(selector=selector, drifted=drifted, sort=sort, reverse=reverse)
        devices = take(listing, limit, cursor)
        if not devices:
            _tell_why_none(api, selector)
        tell_cut_off(api)
    if as_json:
        write_json(devices)
        return
    now_s = SystemClock().now_s()
    if drifted:
        _show_drifted(devices, now_s)
        return
    write_table(
        ("DEVICE", "STATE", "ONLINE", "PROFILE", "RELEASE", "VARIANT", "PHASE", "SEEN", "LABELS"),
        [
            (
                d.id, _state_text(d), d.online, d.profile, m.release, variant_text(m),
                share_text(m.phase, m.transfer),
                age_text(d.last_seen_at_s, now_s), d.labels,
            )
            for d in devices
            for m in models_of(d)
        ],
        minor=("PHASE", "LABELS", "PROFILE"),
    )  # fmt: skip
    _tell_held_out(devices)


def _tell_why_none(api: Fleet, selector: str) -> None:
    from controller.cli.hints import about_selector  # what reads selectors is seldom needed here

    for hint in about_selector(api, selector):
        remark(hint)


def _show_drifted(devices: list[Device], now_s: float) -> None:
    write_table(
        ("DEVICE", "ONLINE", "RELEASE", "DESIRED", "PHASE", "SEEN", "LAST ERROR"),
        [
            (
                d.id, d.online, m.release, m.desired_release, share_text(m.phase, m.transfer),
                age_text(d.last_seen_at_s, now_s), m.last_error or d.last_error,
            )
            for d in devices
            for m in models_of(d)
            if m.drifted
        ],
        minor=("PHASE",),
    )  # fmt: skip


def device_show(
    context: typer.Context, device: DeviceArgument, as_json: JsonOption = False
) -> None:
    """Show one device, each of its models, and its attributes.

    Labels are the operator's, attributes what the device reports. Selectors ask for both.

    The policy is the fleet's. A device whose agent.toml has a [policy] of its own goes by that one,
    and does not tell the controller of it.

    Examples:
        fleet device show cam-berlin
    """
    with connect(context) as api:
        _show(api.devices.get(device), as_json=as_json)
        tell_cut_off(api)


def device_quarantine(context: typer.Context, device: DeviceArgument) -> None:
    """Shut a device out.

    The controller disables its broker account, and no rollout takes it.

    Examples:
        fleet device quarantine cam-berlin
    """
    with connect(context) as api:
        _say_state(api.devices.update(device, DeviceUpdate(state=DeviceState.QUARANTINED)))


def device_lend(context: typer.Context, devices: DevicesArgument) -> None:
    """Let devices be asked to measure packages.

    They go on serving. A device measures only if its own agent.toml allows it, too.

    Examples:
        fleet device lend cam-berlin
    """
    _lend(context, devices, lent=True)


def device_return(context: typer.Context, devices: DevicesArgument) -> None:
    """Ask devices for no more measurements.

    A measurement that goes on there ends by itself.

    Examples:
        fleet device return cam-berlin
    """
    _lend(context, devices, lent=False)


def _lend(context: typer.Context, devices: list[str], *, lent: bool) -> None:
    with connect(context) as api:
        for device in devices:
            found = api.devices.update(device, DeviceUpdate(lent=lent))
            write(f"{plain_text(found.id)} {'is lent' if found.lent else 'is not lent'}")


def device_restore(context: typer.Context, device: DeviceArgument) -> None:
    """Let a quarantined device in again, or one that is held out of rollouts.

    A device is held out for a time when its installs failed again and again, if penalty.failures of
    controller.toml says how often.

    Examples:
        fleet device restore cam-berlin
    """
    with connect(context) as api:
        _say_state(api.devices.update(device, DeviceUpdate(state=DeviceState.ENROLLED)))


def device_decommission(context: typer.Context, device: DeviceArgument) -> None:
    """Take a device out of the fleet for good.

    The identifier stays blocked: no device enrols with it until it is readmitted.

    Examples:
        fleet device decommission cam-berlin
    """
    with connect(context) as api:
        _say_state(api.devices.update(device, DeviceUpdate(state=DeviceState.DECOMMISSIONED)))


def device_readmit(
    context: typer.Context,
    device: DeviceArgument,
    key_is_gone: Annotated[
        bool,
        typer.Option(
            "--key-is-gone",
            help="Nobody has the key of the device before, as when its disk was destroyed.",
        ),
    ] = False,
) -> None:
    """Let a device enrol with the identifier of a decommissioned one.

    It needs a token; it may have another key than the device before. Then it must wait until the
    certificate of the device before has ended, unless nobody can use that any more.

    Examples:
        fleet device readmit cam-berlin
        fleet device readmit cam-berlin --key-is-gone
    """
    with connect(context) as api:
        change = DeviceUpdate(may_enrol_again=True, key_is_gone=key_is_gone)
        found = api.devices.update(device, change)
        write(f"{plain_text(device)} may enrol again")
        ends_at_s = found.certificate_ends_at_s
        if not key_is_gone and ends_at_s is not None and ends_at_s > SystemClock().now_s():
            remark(
                f"with another key than before not until {local_time(ends_at_s)}, when its "
                "certificate ends; with --key-is-gone at once"
            )


def _say_state(device: Device) -> None:
    write(f"{plain_text(device.id)} {device.state}")


def _state_text(device: Device) -> str:
    return "held out" if _is_held_out(device) else device.state


def _is_held_out(device: Device) -> bool:
    return device.state is DeviceState.ENROLLED and device.held_out_until_s is not None


def _held_out_fields(device: Device) -> list[tuple[str, object]]:
    if not _is_held_out(device):
        return []
    return [
        ("held out until", local_time(device.held_out_until_s)),
        ("held out because", device.held_out_reason),
    ]


def _tell_held_out(devices: list[Device]) -> None:
    """Say until when and why devices are held out of rollouts."""
    found = [device for device in devices if _is_held_out(device)]
    for device in found[:MAX_TOLD]:
        remark(
            f"{plain_text(device.id)} is held out of rollouts until "
            f"{local_time(device.held_out_until_s)}: {plain_text(device.held_out_reason)}"
        )
    if len(found) > MAX_TOLD:
        remark(f"{len(found) - MAX_TOLD} more are held out; --json has them")


def _peers_text(device: Device) -> str:
    fault = f" (nobody is told: {device.peer_fault})" if device.peer_fault else ""
    return f"{device.peer_url}{fault}"


def _runtimes_text(device: Device) -> str:
    if device.runtimes is None:
        return "all of the profile"
    return f"{', '.join(map(plain_text, device.runtimes)) or 'none'} of the profile"


def _show(device: Device, *, as_json: bool) -> None:
    if as_json:
        write_json(device)
        return
    now_s, ends_at_s = SystemClock().now_s(), device.certificate_ends_at_s
    clock_ahead_s = device.clock_ahead_s
    write_fields(
        [
            ("device", device.id),
            ("state", _state_text(device)),
            *_held_out_fields(device),
            ("online", device.online),
            ("profile", device.profile),
            ("runtimes", _runtimes_text(device)),
            ("labels", device.labels),
            ("agent", device.agent_version),
            *([("lent for measurements", device.lent)] if device.lent else []),
            ("trusts", TRUSTS[device.trust_file]),
            *([("serves peers at", _peers_text(device))] if device.peer_url else []),
            *model_fields(device),
            ("revision", f"{device.revision} (reported {device.reported_revision})"),
            ("enrolled", local_time(device.enrolled_at_s)),
            *([("certified until", local_time(ends_at_s))] if ends_at_s else []),
            ("last seen", age_text(device.last_seen_at_s, now_s)),
            *([("clock", clock_text(clock_ahead_s))] if clock_ahead_s is not None else []),
            ("last error", device.last_error),
        ]
    )
    write_attributes(device)
    write_models(device)
    tell_unloaded(device)
