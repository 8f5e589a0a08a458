"""`fleet init`, `fleet broker run`, `fleet controller run`, `fleet token ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from controller.cli.arguments import JsonOption, parse_duration, parse_labels
from controller.cli.client import connect, segment
from controller.cli.commands import Commands, add_command, add_group
from controller.cli.output import write_json
from controller.schemas import Health, Token, TokenRequest, TokenSummary
from wire.clock import SystemClock
from wire.console.output import remark, write, write_fields, write_table
from wire.console.text import age_text, local_time, plain_text

HomeArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="Data directory of the controller.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    add_command(app, "init", init)
    add_group(app, "broker", "Run the local MQTT broker.", {"run": broker_run})
    commands: Commands = {"run": controller_run, "status": controller_status}
    add_group(app, "controller", "Run the controller.", commands)
    tokens: Commands = {"create": token_create, "list": token_list, "revoke": token_revoke}
    add_group(app, "token", "Make and end tokens that devices enrol with.", tokens)


def init(
    directory: HomeArgument,
    api_host: Annotated[
        str, typer.Option(help="Address on which the API listens.", metavar="HOST")
    ] = "127.0.0.1",
    api_port: Annotated[int, typer.Option(help="Port of the API.", metavar="PORT")] = 8470,
    broker_host: Annotated[
        str, typer.Option(help="Address on which the broker listens.", metavar="HOST")
    ] = "127.0.0.1",
    broker_port: Annotated[int, typer.Option(help="Port of the broker.", metavar="PORT")] = 1883,
    database: Annotated[
        str,
        typer.Option(
            help="SQLAlchemy URL of the database; SQLite in the directory when not given.",
            metavar="URL",
        ),
    ] = "",
) -> None:
    """Make the data directory of a controller.

    The directory gets new keys and secrets. A directory that exists is never changed.

    Examples:
        fleet init ./my-fleet
        fleet init ./my-fleet --api-port 9000 --broker-host 0.0.0.0
    """
    from controller.app.new_home import HomeOptions, create_home

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
    """Run the local MQTT broker in the foreground, until it is told to end.

    Examples:
        fleet broker run ./my-fleet
    """
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
    """Run the controller in the foreground, until it is told to end.

    Examples:
        fleet controller run ./my-fleet
    """
    from controller.app.home import CONFIG_FILE
    from controller.config import load_config

    config = load_config(directory / CONFIG_FILE)
    from controller.app.service import run
    from controller.broker.access import access_for

    return run(config, access_for)


def controller_status(context: typer.Context, as_json: JsonOption = False) -> int:
    """Ask the controller whether it works, and what it needs.

    The exit code is 1 when it does not.

    Examples:
        fleet controller status
        fleet controller status --json
    """
    with connect(context) as api:
        health = api.get("/v1/health", Health)
    if as_json:
        write_json(health)
    else:
        write_fields(
            [
                ("status", health.status),
                ("broker connected", health.broker_connected),
                ("needs", "; ".join(map(plain_text, health.needs)) or None),
                ("version", health.version),
            ]
        )
    return 0 if health.status == "ok" else 1


def token_create(
    context: typer.Context,
    uses: Annotated[int, typer.Option(help="How many devices may enrol with the token.")] = 1,
    expires: Annotated[
        str, typer.Option(help="How long the token is valid, such as 12h or 7d.", metavar="TIME")
    ] = "1d",
    label: Annotated[
        list[str] | None,
        typer.Option(help="Label of every device that enrols with the token.", metavar="KEY=VALUE"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a token that devices enrol with. It is shown this once.

    Examples:
        fleet token create --uses 100
        fleet token create --expires 7d --label site=berlin
    """
    lifetime_s = int(parse_duration(expires, option="--expires"))
    labels = parse_labels(label or [])
    with connect(context) as api:
        body = TokenRequest(uses=uses, expires_in_s=lifetime_s, labels=labels)
        token = api.send("POST", "/v1/tokens", Token, body)
    if as_json:
        write_json(token)
        return
    write(token.token)
    remark(f"good for {token.uses} device(s) until {local_time(token.expires_at_s)}")


def token_list(context: typer.Context, as_json: JsonOption = False) -> None:
    """List enrolment tokens, the newest first. The secrets are kept nowhere.

    Examples:
        fleet token list
    """
    with connect(context) as api:
        tokens = api.get("/v1/tokens", list[TokenSummary])
    if as_json:
        write_json(tokens)
        return
    now_s = SystemClock().now_s()
    write_table(
        ("TOKEN", "STATE", "USES LEFT", "MADE", "EXPIRES", "LAST USED", "LABELS"),
        [
            (
                t.id, t.state, t.uses_left, age_text(t.created_at_s, now_s),
                local_time(t.expires_at_s), age_text(t.used_at_s, now_s), t.labels,
            )
            for t in tokens
        ],
        minor=("LABELS", "LAST USED"),
    )  # fmt: skip


def token_revoke(
    context: typer.Context,
    token: Annotated[
        str, typer.Argument(metavar="TOKEN", help="The token's name in `fleet token list`.")
    ],
) -> None:
    """End a token: no device enrols with it any more.

    Devices that have enrolled with it stay in the fleet.

    Examples:
        fleet token revoke enrol-1f0a9c3e
    """
    with connect(context) as api:
        revoked = api.send("DELETE", f"/v1/tokens/{segment(token)}", TokenSummary)
    write(f"{plain_text(revoked.id)} revoked")
