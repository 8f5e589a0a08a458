"""`fleet init`, `fleet broker run`, `fleet controller run`, `fleet token create`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from controller.cli.arguments import JsonOption, parse_duration, parse_labels
from controller.cli.client import connect, request_body
from controller.cli.output import local_time, remark, write, write_fields, write_json

HomeArgument = Annotated[Path, typer.Argument(metavar="DIR", help="Data directory.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("init")(init)
    broker = typer.Typer(help="The local MQTT broker.", no_args_is_help=True)
    broker.command("run")(broker_run)
    app.add_typer(broker, name="broker")
    controller = typer.Typer(help="The controller.", no_args_is_help=True)
    controller.command("run")(controller_run)
    controller.command("status")(controller_status)
    app.add_typer(controller, name="controller")
    token = typer.Typer(help="Enrolment tokens.", no_args_is_help=True)
    token.command("create")(token_create)
    app.add_typer(token, name="token")


def init(
    directory: HomeArgument,
    api_host: Annotated[str, typer.Option(help="Where the API listens.")] = "127.0.0.1",
    api_port: Annotated[int, typer.Option(help="Its port.")] = 8470,
    broker_host: Annotated[str, typer.Option(help="Where the broker listens.")] = "127.0.0.1",
    broker_port: Annotated[int, typer.Option(help="Its port.")] = 1883,
    database: Annotated[
        str, typer.Option(help="SQLAlchemy URL; SQLite in the directory if not given.")
    ] = "",
) -> None:
    """Make a controller's data directory with new keys and secrets."""
    from controller.app.home import HomeOptions, create_home

    create_home(
        directory,
        HomeOptions(
            api_host=api_host,
            api_port=api_port,
            broker_host=broker_host,
            broker_port=broker_port,
            database_url=database,
        ),
    )
    remark(
        f"made {directory}; next: fleet broker run {directory}, fleet controller run {directory}"
    )


def broker_run(directory: HomeArgument) -> None:
    """Run the local broker in the foreground, until it is told to end."""
    from controller.app.home import read_home
    from controller.broker.install import default_cache, obtain
    from controller.broker.mosquitto import Broker, BrokerSettings

    home = read_home(directory)
    settings = BrokerSettings(
        directory=home.broker_directory, host=home.broker_host, port=home.broker_port
    )
    broker = Broker(settings, obtain(default_cache(), remark))
    remark(f"starting the broker on {home.broker_host}:{home.broker_port}")
    broker.exec()


def controller_run(directory: HomeArgument) -> int:
    """Run the controller in the foreground, until it is told to end."""
    from controller.app.home import CONFIG_FILE
    from controller.config import load_config

    config = load_config(directory / CONFIG_FILE)
    from controller.app.service import run
    from controller.broker.access import access_for

    return run(config, access_for)


def controller_status(context: typer.Context, as_json: JsonOption = False) -> int:
    """Ask the controller whether it works and has its broker; exit code 1 when not."""
    from controller.schemas import Health

    with connect(context) as api:
        health = api.get("/v1/health", Health)
    if as_json:
        write_json(health)
    else:
        write_fields(
            [
                ("status", health.status),
                ("broker connected", health.broker_connected),
                ("version", health.version),
            ]
        )
    return 0 if health.status == "ok" else 1


def token_create(
    context: typer.Context,
    uses: Annotated[int, typer.Option(help="How many devices may enrol with it.")] = 1,
    expires: Annotated[str, typer.Option(help="How long it is valid.")] = "1d",
    label: Annotated[
        list[str] | None,
        typer.Option(help="Label for every device that enrols with it.", metavar="KEY=VALUE"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make an enrolment token; it is shown this once."""
    lifetime_s = int(parse_duration(expires, option="--expires"))
    labels = parse_labels(label or [])
    from controller.schemas import Token, TokenRequest

    with connect(context) as api:
        body = request_body(TokenRequest, uses=uses, expires_in_s=lifetime_s, labels=labels)
        token = api.send("POST", "/v1/tokens", Token, body)
    if as_json:
        write_json(token)
        return
    write(token.token)
    remark(f"good for {token.uses} device(s) until {local_time(token.expires_at_s)}")
