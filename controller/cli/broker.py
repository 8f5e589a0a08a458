"""`fleet broker ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from controller.cli.arguments import HomeArgument
from controller.cli.commands import Commands, add_group
from wire.clock import SystemClock
from wire.console.output import remark, write, write_exact
from wire.console.text import local_time


def register(app: typer.Typer) -> None:
    """Add the commands."""
    brokers: Commands = {
        "run": broker_run,
        "certificate": broker_certificate,
        "devices-authority": broker_devices_authority,
    }
    add_group(app, "broker", "Run the local MQTT broker.", brokers)


def broker_run(directory: HomeArgument) -> None:
    """Run the local MQTT broker in the foreground, until it is told to end.

    It speaks TLS, unless the directory was made with --clear-text.

    Examples:
        fleet broker run ./my-fleet
    """
    from controller.app.home import BROKER_FOLDER, CONFIG_FILE
    from controller.broker.install import default_cache, obtain
    from controller.broker.listener import broker_settings, warning_of
    from controller.broker.mosquitto import Broker
    from controller.config import load_config

    loaded = load_config(directory / CONFIG_FILE)
    config, place = loaded.broker, directory.absolute() / BROKER_FOLDER
    settings = broker_settings(config, place, loaded.device_certificates)
    broker = Broker(settings, obtain(default_cache(), remark))
    warning = warning_of(config, SystemClock())
    if warning is not None:
        remark(f"warning: {warning}")
    how = "without TLS" if settings.certificate is None else "with TLS"
    remark(f"starting the broker on {config.host}:{config.port}, {how}")
    if settings.devices is not None:
        remark(f"devices with certificates connect to port {settings.devices.port}")
    broker.exec()


def broker_certificate(
    directory: HomeArgument,
    ca_key: Annotated[
        Path | None,
        typer.Option(help="Key of the authority; in DIR-offline when not given.", metavar="FILE"),
    ] = None,
) -> None:
    """Make a new certificate for the local broker.

    It is for the names in controller.toml. The devices need nothing, because the authority stays;
    a directory without an authority gets one.

    Examples:
        fleet broker certificate ./my-fleet
        fleet broker certificate ./my-fleet --ca-key /media/stick/ca.key
    """
    from controller.app.home import offline_directory
    from controller.app.renewal import renew

    made = renew(directory, ca_key)
    write(f"valid until {local_time(made.expires_at_s)} for {', '.join(made.names)}")
    if made.new_authority is not None:
        remark(f"new authority: copy {made.new_authority} to each device, as its broker.ca_file")
        remark(f"its key lies in {offline_directory(directory.absolute())}: take it away from here")
    if not made.is_used:
        remark('to use it, write ca_file = "ca.pem" below [broker] in controller.toml')
    also = "" if made.new_authority is None else " and the controller"
    remark(f"then start the broker{also} again: fleet broker run {directory}")


def broker_devices_authority(directory: HomeArgument) -> None:
    """Make the authority of the devices' certificates in a directory that has none.

    `fleet init` makes it. An older directory needs it once, so that devices log in with
    certificates in place of passwords.

    Examples:
        fleet broker devices-authority ./my-fleet
    """
    from controller.app.device_authority import add_authority

    table = add_authority(directory)
    if table:
        remark(f"to use it, write this into {directory / 'controller.toml'}:")
        write_exact(table)
    remark("then start the broker and the controller again")
