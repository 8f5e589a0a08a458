"""`fleet simulate`: virtual devices over the real broker, to try rollouts and to measure."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer

from controller.cli.arguments import (
    JsonOption,
    parse_bytes,
    parse_duration,
    parse_labels,
)
from controller.cli.commands import add_command
from controller.cli.connecting import connect
from controller.cli.errors import ArgumentError
from controller.cli.output import write_json
from controller.cli.repeating import Page, draw
from controller.cli.simulation import Simulation, split
from controller.client.errors import FaultError, NotThereError
from controller.client.fleet import Fleet
from controller.client.target import ConnectionOptions
from controller.device_schemas import DeviceUpdate
from controller.domain.states import DeviceState
from controller.enrolment_schemas import TokenRequest
from wire.clock import Clock, SystemClock
from wire.console.output import is_terminal, remark, write
from wire.console.text import plain_text
from wire.durations import format_duration
from wire.enrolment import enrol_username
from wire.files import read_regular
from wire.profile import DeviceProfile, profile_from_toml
from wire.simulation import FAULTS, MAX_DEVICES, SIMULATED, Plan, Tally, parse_faults, shown_faults
from wire.topics import checked_device

MAX_RUN_S: Final = 12 * 3600.0
"""A certificate of a device lasts longer, and simulated devices do not renew theirs."""

TRUST: Final = "it is trust.json of the controller's directory"
MAX_FILE_BYTES: Final = 1024 * 1024
MAX_PROCESSES: Final = 64
TOKEN_SPARE_S: Final = 600
SHOWN_EVERY_S: Final = 1.0
PRINTED_EVERY_S: Final = 10.0
"""Where one answer does not take the place of the one before."""

FAULT_NAMES: Final = ", ".join(FAULTS)


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "simulate", simulate)


class Place(NamedTuple):
    """Where the broker is, and what devices trust."""

    host: str
    port: int
    ca_file: str | None
    trust: str


def simulate(  # noqa: PLR0913 - one parameter for each option
    context: typer.Context,
    *,
    devices: Annotated[int, typer.Option(help="How many devices.", min=1, max=MAX_DEVICES)] = 100,
    for_: Annotated[
        str, typer.Option("--for", help="How long, such as 10m; 12h at most.", metavar="TIME")
    ] = "10m",
    seed: Annotated[
        int, typer.Option(help="The same seed brings the same devices and faults.", min=0)
    ] = 1,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            help=f"What goes wrong: a share, or slower=1.1. One of {FAULT_NAMES}.", metavar="NAME=N"
        ),
    ] = None,
    profile: Annotated[
        str, typer.Option(help="Profile of the devices, or a TOML file.", metavar="PROFILE")
    ] = "rpi4",
    label: Annotated[
        list[str] | None,
        typer.Option(help="Label of the devices, beside simulated=true.", metavar="KEY=VALUE"),
    ] = None,
    name: Annotated[
        str,
        typer.Option(help="What their identifiers begin with, before a dash; random if not given."),
    ] = "",
    telemetry: Annotated[
        str, typer.Option(help="Time between two reports of figures.", metavar="TIME")
    ] = "1m",
    speed: Annotated[
        float, typer.Option(help="How many times faster installs go.", min=0.1, max=1000.0)
    ] = 1.0,
    fetch: Annotated[
        str,
        typer.Option(
            help="How much of each package is really fetched; the rest takes only its time.",
            metavar="SIZE",
        ),
    ] = "1MiB",
    processes: Annotated[
        int, typer.Option(help="Processes that play them.", min=1, max=MAX_PROCESSES)
    ] = 1,
    remove: Annotated[
        bool, typer.Option("--remove", help="Decommission the devices at the end.")
    ] = False,
    broker: Annotated[
        str,
        typer.Option(help="The broker, where there is no --home.", metavar="HOST:PORT"),
    ] = "",
    broker_ca: Annotated[
        Path | None, typer.Option(help="Authority of its certificate.", metavar="FILE")
    ] = None,
    trust: Annotated[
        Path | None,
        typer.Option(help="The controller's trust.json, where there is no --home.", metavar="FILE"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Play virtual devices over the real broker.

    They enrol, install and report, to try rollouts without boards. They have the label
    simulated=true: `--selector simulated=true` takes them alone, and `simulated!=true` keeps them
    out. Ctrl-C ends them early. docs/scale.md says what they do as a device does, and what not.

    Examples:
        fleet simulate --devices 100 --for 10m --seed 7
        fleet simulate --fault no_space=2% --fault offline=10% --remove
    """
    prefix = checked_device(name or f"sim-{secrets.token_hex(2)}")
    run_s = _within(for_, "--for", 1.0, MAX_RUN_S)
    telemetry_s = _within(telemetry, "--telemetry", 1.0, MAX_RUN_S)
    faults, place = parse_faults(fault or []), _place(context, broker, broker_ca, trust)
    labels = {**parse_labels(label or []), SIMULATED: "true"}
    fetch_bytes = parse_bytes(fetch, option="--fetch")
    with connect(context) as api:
        _check_new(api, f"{prefix}-{0:05d}")
        body = TokenRequest(uses=devices, expires_in_s=int(run_s) + TOKEN_SPARE_S, labels=labels)
        made = api.tokens.create(body)
        plan = Plan(
            prefix=prefix,
            numbers=(0, devices),
            seed=seed,
            labels=labels,
            profile=_profile(profile),
            trust=place.trust,
            token=made.token,
            host=place.host,
            port=place.port,
            ca_file=place.ca_file,
            telemetry_s=telemetry_s,
            speed=speed,
            fetch_bytes=fetch_bytes,
            faults=faults,
        )
        remark(f"{prefix}-00000 and on, seed {seed}, faults: {shown_faults(faults)}")
        try:
            with Simulation(split(plan, processes)) as simulation:
                _show(simulation, devices, run_s, SystemClock(), quiet=as_json)
        finally:
            api.tokens.revoke(enrol_username(made.token))
            if remove:
                _remove(api, prefix, devices)
    if as_json:
        write_json(simulation.tally)
        return
    for line in _lines(simulation.tally, devices):
        write(line)


def _check_new(api: Fleet, first: str) -> None:
    """Refuse a name whose devices are in the fleet already: new ones have other keys.

    Raises:
        ArgumentError: The first of them is, or was.
    """
    with suppress(NotThereError):
        api.devices.get(first)
        raise ArgumentError(
            f"there is a device {first} already, and each simulation makes new keys",
            remedy="give another --name, or none; the same --seed brings the same faults",
        )


def _profile(name: str) -> DeviceProfile:
    """Return a profile that is shipped, or that a file holds: of any runtime, as none is used.

    Raises:
        ArgumentError: The file cannot be read.
        WireFormatError: It holds no profile.
    """
    from packager.device_profiles import load_profile

    if not name.endswith(".toml"):
        return load_profile(name)
    return profile_from_toml(_text(Path(name), "it is a profile of devices").encode())


def _within(text: str, option: str, least_s: float, most_s: float) -> float:
    """Read a duration that has bounds.

    Raises:
        ArgumentError: It is none, or out of bounds.
    """
    found_s = parse_duration(text, option=option)
    if not least_s <= found_s <= most_s:
        raise ArgumentError(
            f"{option} is not within {format_duration(least_s)} to {format_duration(most_s)}"
        )
    return found_s


def _place(
    context: typer.Context, broker: str, broker_ca: Path | None, trust: Path | None
) -> Place:
    """Return where devices connect: as options say, or as the controller's directory does.

    Raises:
        ArgumentError: Neither says it, or a file cannot be read.
    """
    from controller.app.home import CONFIG_FILE, TRUST_FILE
    from controller.config import connectable, load_config

    options = context.obj if isinstance(context.obj, ConnectionOptions) else ConnectionOptions()
    home = options.home or (Path(os.environ["FLEET_HOME"]) if "FLEET_HOME" in os.environ else None)
    if not broker and home is not None:
        found = load_config(home / CONFIG_FILE).broker
        trusted = trust or home / TRUST_FILE
        return Place(connectable(found.host), found.port, found.ca_file, _text(trusted, TRUST))
    host, _, port = broker.rpartition(":")
    if not host or not port.isdecimal() or trust is None:
        raise ArgumentError(
            "it is not known where devices connect",
            remedy="name --home DIR, or --broker HOST:PORT with --trust FILE and --broker-ca FILE",
        )
    ca_file = None if broker_ca is None else str(broker_ca.absolute())
    return Place(host.strip("[]"), int(port), ca_file, _text(trust, TRUST))


def _text(path: Path, what: str) -> str:
    """Read a small file.

    Raises:
        ArgumentError: It cannot be read.
    """
    try:
        return read_regular(path, MAX_FILE_BYTES).decode()
    except (OSError, UnicodeDecodeError) as exc:
        raise ArgumentError(f"cannot read {path}", remedy=what) from exc


def _show(simulation: Simulation, devices: int, run_s: float, clock: Clock, *, quiet: bool) -> None:
    """Show how it goes, until the time is over or Ctrl-C."""
    end_s = clock.monotonic_s() + run_s
    every_s = SHOWN_EVERY_S if is_terminal() or quiet else PRINTED_EVERY_S

    def pages() -> Iterator[Page]:
        while (rest_s := end_s - clock.monotonic_s()) > 0.0:
            simulation.check()
            yield Page(_lines(simulation.tally, devices), [])
            clock.sleep(min(every_s, rest_s))

    try:
        if quiet:
            for _ in pages():
                pass
        else:
            draw(pages())
    except KeyboardInterrupt:
        remark("ending the devices")


def _lines(tally: Tally, devices: int) -> list[str]:
    """Return a tally as people read it."""
    t, running = tally, tally.installs_begun - tally.installs_done - tally.installs_failed
    where = f"{t.enrolled} of {devices} enrolled, {t.online} online"
    installs = f"installs: {t.installs_done} done, {t.installs_failed} failed, {running} others"
    lines = [
        f"{where}; messages: {t.sent} sent, {t.received} received",
        f"{installs}; telemetry: {t.batches_stored} of {t.batches_sent} batches stored",
    ]
    if tally.refused:
        lines.append(f"{tally.refused} refused: {plain_text(tally.last_refusal)}")
    if tally.faults:
        lines.append(f"{tally.faults} messages were of no use: {plain_text(tally.last_fault)}")
    return lines


def _remove(api: Fleet, prefix: str, devices: int) -> None:
    """Decommission the devices; those that never enrolled are left out."""
    removed, gone = 0, DeviceUpdate(state=DeviceState.DECOMMISSIONED)
    for number in range(devices):
        try:
            api.devices.update(f"{prefix}-{number:05d}", gone)
        except FaultError:
            continue
        removed += 1
    remark(f"{removed} devices are decommissioned")
