"""`fleet access ...`: API tokens for people and programs, with roles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from controller.access_schemas import (
    DEFAULT_RATE_PER_S,
    MAX_RATE_PER_S,
    MIN_RATE_PER_S,
    ApiTokenRequest,
    NewApiToken,
    RotateRequest,
)
from controller.cli import completion
from controller.cli.arguments import JsonOption, parse_duration, parse_rate
from controller.cli.commands import Commands, add_group
from controller.cli.connecting import connect
from controller.cli.errors import ArgumentError
from controller.cli.lists import time_heading, write_list
from controller.cli.output import write_json
from controller.cli.paging import CountOption, CursorOption, ReverseOption, take
from controller.domain.roles import Role
from wire.clock import SystemClock
from wire.console.output import remark, write, write_fields
from wire.console.text import age_text, local_time, plain_text
from wire.files import PRIVATE, remedy_of, write_named, write_new

NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="Name of the API token.", autocompletion=completion.api_tokens
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    commands: Commands = {
        "create": access_create,
        "list": access_list,
        "show": access_show,
        "rotate": access_rotate,
        "revoke": access_revoke,
    }
    add_group(app, "access", "Make and end API tokens for people and programs.", commands)


def access_create(
    context: typer.Context,
    name: NameArgument,
    role: Annotated[str, typer.Option(help="viewer, operator, approver or admin.", metavar="ROLE")],
    expires: Annotated[
        str, typer.Option(help="How long it is valid, such as 12h or 90d.", metavar="TIME")
    ] = "90d",
    rate: Annotated[
        str,
        typer.Option(help="How often it may ask in the long run, such as 20/s.", metavar="RATE"),
    ] = f"{DEFAULT_RATE_PER_S:g}/s",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write it to this new file, for you alone."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make an API token. It is shown this once.

    Examples:
        fleet access create grafana --role viewer --expires 365d -o grafana.token
        fleet access create ci --role operator --rate 20/s
        fleet access create kim --role approver --expires 30d
    """
    body = ApiTokenRequest(
        name=name,
        role=_role(role),
        expires_in_s=int(parse_duration(expires, option="--expires")),
        rate_per_s=_rate(rate),
    )
    if output is not None:
        _write(output, lambda: write_new(output, b"", mode=PRIVATE))  # before there is a secret
    try:
        with connect(context) as api:
            made = api.access.create(body)
    except BaseException:
        if output is not None:
            output.unlink(missing_ok=True)
        raise
    _hand_out(made, output, as_json=as_json)


def access_list(
    context: typer.Context,
    role: Annotated[str, typer.Option(help="Only those with this role.", metavar="ROLE")] = "",
    state: Annotated[
        str, typer.Option(help="Only valid, expired or revoked ones.", metavar="STATE")
    ] = "",
    sort: Annotated[
        str, typer.Option("--sort", metavar="KEY", help="By name, created, expires or used.")
    ] = "",
    reverse: ReverseOption = False,
    limit: CountOption = None,
    cursor: CursorOption = "",
    as_json: JsonOption = False,
) -> None:
    """List API tokens. The secrets are kept nowhere.

    The token in the controller's directory is called home, and is in no list.

    Examples:
        fleet access list
        fleet access list --state valid --sort expires --reverse
    """
    with connect(context) as api:
        listing = api.access.list(role=role, state=state, sort=sort, reverse=reverse)
        tokens = take(listing, limit, cursor)
    if as_json:
        write_json(tokens)
        return
    now_s = SystemClock().now_s()
    expires = time_heading("EXPIRES", (t.expires_at_s for t in tokens))
    write_list(
        ("NAME", "ROLE", "STATE", expires, "LAST USED", "MADE", "BY"),
        [
            (
                t.name, t.role, t.state, local_time(t.expires_at_s), age_text(t.used_at_s, now_s),
                age_text(t.created_at_s, now_s), t.created_by,
            )
            for t in tokens
        ],
        none="there is only the token in the controller's directory; make others with "
        "`fleet access create`",
        minor=("BY", "MADE", "LAST USED"),
    )  # fmt: skip


def access_show(context: typer.Context, name: NameArgument, as_json: JsonOption = False) -> None:
    """Show an API token, without its secret.

    Examples:
        fleet access show ci
    """
    with connect(context) as api:
        token = api.access.get(name)
    if as_json:
        write_json(token)
        return
    now_s = SystemClock().now_s()
    old_until_s = token.old_until_s or 0.0
    write_fields(
        [
            ("name", token.name),
            ("role", token.role),
            ("state", token.state),
            ("rate", f"{token.rate_per_s:g}/s"),
            ("made", f"{local_time(token.created_at_s)} by {plain_text(token.created_by)}"),
            ("expires", local_time(token.expires_at_s)),
            ("last used", age_text(token.used_at_s, now_s)),
            ("revoked", local_time(token.revoked_at_s)),
            ("old secret until", local_time(old_until_s) if old_until_s > now_s else None),
        ]
    )


def access_rotate(
    context: typer.Context,
    name: NameArgument,
    overlap: Annotated[
        str, typer.Option(help="How long the old secret counts, too.", metavar="TIME")
    ] = "0",
    expires: Annotated[
        str, typer.Option(help="How long it is valid from now; as before by default.")
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write it to this file, for you alone."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Give an API token a new secret. It is shown this once.

    Without --overlap the old secret ends now: so it goes after a leak.

    Examples:
        fleet access rotate ci -o ci.token
        fleet access rotate grafana --overlap 1d --expires 365d
    """
    body = RotateRequest(
        overlap_s=int(parse_duration(overlap, option="--overlap")),
        expires_in_s=int(parse_duration(expires, option="--expires")) if expires else None,
    )
    with connect(context) as api:
        made = api.access.rotate(name, body)
    _hand_out(made, output, as_json=as_json)


def access_revoke(context: typer.Context, name: NameArgument) -> None:
    """End an API token from the next request on. Its name stays taken.

    Examples:
        fleet access revoke ci
    """
    with connect(context) as api:
        revoked = api.access.revoke(name)
    write(f"{plain_text(revoked.name)} revoked")


def _hand_out(made: NewApiToken, output: Path | None, *, as_json: bool) -> None:
    if output is not None:
        _write(output, lambda: write_named(output, f"{made.token}\n".encode(), mode=PRIVATE))
    elif as_json:
        write_json(made)
    else:
        write(made.token)
    end = f"is of {plain_text(made.name)}, {made.role}, and expires {local_time(made.expires_at_s)}"
    if output is not None:
        remark(f"the token in {output} {end}")
    elif not as_json:
        remark(f"it {end}; it is a secret, and is shown this once")


def _write(path: Path, act: Callable[[], None]) -> None:
    """Write a file.

    Raises:
        ArgumentError: It cannot be written.
    """
    try:
        act()
    except OSError as exc:
        reason = "it exists" if isinstance(exc, FileExistsError) else (exc.strerror or str(exc))
        raise ArgumentError(
            f"cannot write {path}: {reason.lower()}",
            remedy=remedy_of(exc, "name another with -o; `fleet access rotate` gives a new secret"),
        ) from exc


def _role(text: str) -> Role:
    """Read a role.

    Raises:
        ArgumentError: There is no such role.
    """
    try:
        return Role(text)
    except ValueError as exc:
        raise ArgumentError(
            f"--role: {text!r} is none", remedy=f"use one of: {', '.join(Role)}"
        ) from exc


def _rate(text: str) -> float:
    """Read a rate that a token may have.

    Raises:
        ArgumentError: It is none, too small or too great.
    """
    per_s = parse_rate(text, option="--rate")
    if not MIN_RATE_PER_S <= per_s <= MAX_RATE_PER_S:
        raise ArgumentError(
            f"--rate: {text!r} is not within {MIN_RATE_PER_S:g}/s and {MAX_RATE_PER_S}/s",
            remedy=f"write it as {DEFAULT_RATE_PER_S:g}/s or 30/min",
        )
    return per_s
