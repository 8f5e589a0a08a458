"""`fleet init`, `fleet controller ...`, `fleet token ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from controller.cli import broker, completion
from controller.cli.arguments import HomeArgument, JsonOption, parse_duration, parse_labels
from controller.cli.commands import Commands, add_command, add_group
from controller.cli.connecting import connect
from controller.cli.lists import time_heading
from controller.cli.output import write_json
from controller.cli.paging import CountOption, CursorOption, ReverseOption, take
from controller.domain.states import AUTO
from controller.domain.wording import counted
from controller.enrolment_schemas import TokenRequest
from wire.clock import SystemClock
from wire.console.output import remark, write, write_fields, write_table
from wire.console.text import age_text, local_time, plain_text
from wire.hosts import is_loopback


def register(app: typer.Typer) -> None:
    """Add the commands."""
    add_command(app, "init", init)
    broker.register(app)
    commands: Commands = {
        "run": controller_run,
        "status": controller_status,
        "backup": controller_backup,
        "restore": controller_restore,
    }
    add_group(app, "controller", "Run, back up and restore the controller.", commands)
    tokens: Commands = {"create": token_create, "list": token_list, "revoke": token_revoke}
    add_group(app, "token", "Make and end tokens that devices enrol with.", tokens)


def init(  # noqa: PLR0913, PLR0917 - one parameter for each option
    directory: HomeArgument,
    api_host: Annotated[
        str, typer.Option(help="Address on which the API listens.", metavar="HOST")
    ] = "127.0.0.1",
    api_port: Annotated[int, typer.Option(help="Port of the API.", metavar="PORT")] = 8470,
    broker_host: Annotated[
        str,
        typer.Option(
            help="Address on which the broker listens; 127.0.0.1, or with --broker-name 0.0.0.0, "
            "when not given.",
            metavar="HOST",
        ),
    ] = "",
    broker_port: Annotated[
        int | None,
        typer.Option(
            help="Port of the broker; 8883, or in clear text 1883, when not given.", metavar="PORT"
        ),
    ] = None,
    device_port: Annotated[
        int | None,
        typer.Option(
            help="Port of the broker for devices with certificates; one above the other when not "
            "given.",
            metavar="PORT",
        ),
    ] = None,
    broker_name: Annotated[
        list[str] | None,
        typer.Option(
            help="Name or address by which devices reach the broker; it goes into the "
            "broker's certificate.",
            metavar="NAME",
        ),
    ] = None,
    clear_text: Annotated[
        bool,
        typer.Option(
            "--clear-text",
            help="No TLS, on loopback only: for tests on this machine.",
        ),
    ] = False,
    offline_keys: Annotated[
        Path | None,
        typer.Option(
            help="Directory for the keys that the controller does not need; DIR-offline when not "
            "given.",
            metavar="DIR",
        ),
    ] = None,
    database: Annotated[
        str,
        typer.Option(
            help="SQLAlchemy URL of the database; SQLite in the directory when not given. The path "
            "of an SQLite file is relative to DIR, unless it begins with a fourth slash.",
            metavar="URL",
        ),
    ] = "",
) -> None:
    """Make the data directory of a controller.

    The directory gets new keys, certificates and secrets. The key that signs packages and the key
    of the authority are made in another one, which may go offline. A directory that exists is never
    changed.

    Examples:
        fleet init ./my-fleet
        fleet init ./my-fleet --broker-name broker.example
        fleet init ./test-fleet --clear-text
    """
    from controller.app.home import offline_directory
    from controller.app.new_home import HomeOptions, create_home

    create_home(
        directory,
        HomeOptions(
            api_host=api_host,
            api_port=api_port,
            broker_host=broker_host,
            broker_port=broker_port,
            device_port=device_port,
            broker_names=tuple(broker_name or ()),
            clear_text=clear_text,
            offline_keys=offline_keys,
            database_url=database,
        ),
    )
    offline = offline_keys or offline_directory(directory)
    if clear_text:
        remark("warning: this broker will not be encrypted; use it only for tests on this machine")
    if not is_loopback(api_host):
        remark(
            f"warning: the API at {api_host} has no TLS, and so the controller will not start: set "
            "cert_file and key_file below [api] in controller.toml, or clear_text = true behind a "
            "proxy with TLS"
        )
    remark(f"made {directory}; the keys in {offline} belong on other machines")
    remark(f"next: fleet broker run {directory}, fleet controller run {directory}")


def controller_run(directory: HomeArgument) -> int:
    """Run the controller in the foreground, until it is told to end.

    It ends with status 3 if another controller with the same director's key connects,
    unless both share the fleet: broker.share in docs/scale.md.

    Examples:
        fleet controller run ./my-fleet
    """
    from controller.app.home import CONFIG_FILE
    from controller.config import load_config

    config = load_config(directory / CONFIG_FILE)
    from controller.app.run import run
    from controller.broker.access import access_for

    return run(config, access_for)


def controller_backup(
    directory: HomeArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Backup to make.")],
    without_blobs: Annotated[
        bool,
        typer.Option("--without-blobs", help="Leave out the content of published packages."),
    ] = False,
) -> None:
    """Back up a controller into one file, while it runs.

    The file holds the database, the settings, the broker's accounts, the published packages, and
    all keys, tokens and passwords in the directory. Who has it can command the fleet.

    Examples:
        fleet controller backup ./my-fleet monday.tar
        fleet controller backup ./my-fleet monday.tar --without-blobs
    """
    from controller.app.backup import back_up

    made = back_up(directory, file, SystemClock(), with_blobs=not without_blobs)
    for path in made.outside:
        remark(f"not in the backup, because it is outside of {directory}: {plain_text(path)}")
    remark(
        f"made {file}, {made.files} files; it is SECRET: it holds the director's key, the API "
        "token and the broker's passwords, and is not encrypted"
    )


def controller_restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Backup to restore.")],
    directory: HomeArgument,
    database: Annotated[
        str,
        typer.Option(
            help="SQLAlchemy URL of another, empty database. The path of an SQLite file is "
            "relative to DIR, unless it begins with a fourth slash.",
            metavar="URL",
        ),
    ] = "",
) -> None:
    """Make the data directory of a controller from a backup.

    A directory that exists is never changed, and a database must be empty. Stop the controller
    that was backed up: two of them must not lead the same devices. Devices take what the backup
    says as new, also where they have gone on since. What was shut out or revoked since the backup
    is allowed again, until you repeat it.

    Examples:
        fleet controller restore monday.tar ./my-fleet
        fleet controller restore monday.tar ./fleet --database postgresql://db/fleet
    """
    from controller.app.restore import restore

    restored = restore(file, directory, SystemClock(), database_url=database)
    for path in restored.outside:
        remark(f"was not in the backup, and is used where it is: {plain_text(path)}")
    if not restored.has_blobs:
        remark("the backup has no blobs: publish the releases again, or copy the old blobs here")
    remark(
        f"made {directory} as of {local_time(restored.made_at_s)}; before it starts, stop the "
        f"controller in {plain_text(restored.home)}, if it still runs"
    )
    remark(
        "devices that were quarantined or decommissioned since then are in the fleet again: repeat "
        "`fleet device quarantine` or `decommission`, and what you revoked since then"
    )


def controller_status(context: typer.Context, as_json: JsonOption = False) -> int:
    """Ask the controller whether it works, and what it needs.

    The exit code is 1 when it does not.

    Examples:
        fleet controller status
        fleet controller status --json
    """
    with connect(context) as api:
        health = api.health()
    if as_json:
        write_json(health)
    else:
        write_fields(
            [
                ("status", health.status),
                ("broker connected", health.broker_connected),
                ("downloads served", health.downloads_served),
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
    accept: Annotated[
        str,
        typer.Option(
            help="Which devices it lets in by itself: auto for all, by-hand for none, or a "
            "selector. The others wait for `fleet device accept`.",
            metavar="RULE",
        ),
    ] = AUTO,
    as_json: JsonOption = False,
) -> None:
    """Make a token that devices enrol with. It is shown this once.

    A rule sees what a device says of itself: its labels, its profile, and its serial number as
    serial. None of that is proven.

    Examples:
        fleet token create --uses 100
        fleet token create --expires 7d --label site=berlin
        fleet token create --uses 50 --accept by-hand
        fleet token create --uses 50 --accept label:canary
        fleet token create --uses 2 --accept "profile=pi5 and serial in (a1,a2)"
    """
    lifetime_s = int(parse_duration(expires, option="--expires"))
    labels = parse_labels(label or [])
    with connect(context) as api:
        body = TokenRequest(uses=uses, expires_in_s=lifetime_s, labels=labels, accept=accept)
        token = api.tokens.create(body)
    if as_json:
        write_json(token)
        return
    write(token.token)
    remark(
        f"{token.id}: good for {counted(token.uses)} until {local_time(token.expires_at_s)}; it is "
        "a secret: on the device write it into a file, and name that file as token_file in "
        f"agent.toml; `fleet token revoke {token.id}` ends it"
    )


def token_list(
    context: typer.Context,
    state: Annotated[str, typer.Option(help="Only open or closed ones.", metavar="STATE")] = "",
    sort: Annotated[
        str, typer.Option("--sort", metavar="KEY", help="By created, expires or id.")
    ] = "",
    reverse: ReverseOption = False,
    limit: CountOption = None,
    cursor: CursorOption = "",
    as_json: JsonOption = False,
) -> None:
    """List enrolment tokens, the newest first. The secrets are kept nowhere.

    Examples:
        fleet token list
    """
    with connect(context) as api:
        listing = api.tokens.list(state=state, sort=sort, reverse=reverse)
        tokens = take(listing, limit, cursor)
    if as_json:
        write_json(tokens)
        return
    now_s = SystemClock().now_s()
    expires = time_heading("EXPIRES", (t.expires_at_s for t in tokens))
    write_table(
        ("TOKEN", "STATE", "USES LEFT", "ACCEPTS", "MADE", expires, "LAST USED", "LABELS"),
        [
            (
                t.id, t.state, t.uses_left, t.accepts, age_text(t.created_at_s, now_s),
                local_time(t.expires_at_s), age_text(t.used_at_s, now_s), t.labels,
            )
            for t in tokens
        ],
        minor=("LABELS", "LAST USED", "ACCEPTS"),
    )  # fmt: skip


def token_revoke(
    context: typer.Context,
    token: Annotated[
        str,
        typer.Argument(
            metavar="TOKEN",
            help="The token's name in `fleet token list`.",
            autocompletion=completion.enrolment_tokens,
        ),
    ],
) -> None:
    """End a token: no device enrols with it any more.

    Devices that have enrolled with it stay in the fleet.

    Examples:
        fleet token revoke enrol-1f0a9c3e
    """
    with connect(context) as api:
        revoked = api.tokens.revoke(token)
    write(f"{plain_text(revoked.id)} revoked")
