"""`fleet audit ...`: what was done with the API, and whether its log is whole."""

from __future__ import annotations

import re
from typing import Annotated, Final

import typer

from controller.cli.arguments import JsonOption, parse_duration
from controller.cli.commands import Commands, add_group
from controller.cli.connecting import connect
from controller.cli.errors import ArgumentError
from controller.cli.lists import time_heading, write_list
from controller.cli.output import write_json, write_plain_json
from controller.cli.paging import CursorOption, take
from controller.client.fleet import Fleet
from controller.domain.audit_chain import AuditRow, ChainCheck
from wire.clock import SystemClock
from wire.console.output import write
from wire.console.text import local_time, plain_text

PAGE_ROWS: Final = 1000
_HASH = re.compile(r"[0-9a-f]{64}")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    commands: Commands = {"list": audit_list, "verify": audit_verify}
    add_group(app, "audit", "Show who did what, and check that log.", commands)


def audit_list(
    context: typer.Context,
    since: Annotated[
        str, typer.Option(help="How far back, such as 1h or 7d.", metavar="TIME")
    ] = "",
    actor: Annotated[
        str, typer.Option(help="Only what was done with this API token.", metavar="NAME")
    ] = "",
    subject: Annotated[
        str, typer.Option(help="Only what was done to this, such as a rollout.", metavar="TEXT")
    ] = "",
    limit: Annotated[
        int, typer.Option(help="How many of the newest rows.", metavar="N", min=1)
    ] = 100,
    cursor: CursorOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show who did what with the API, the newest last.

    Examples:
        fleet audit list --since 1d
        fleet audit list --actor ci --json
        fleet audit list --subject r7f3a01
    """
    since_s = 0.0
    if since:
        since_s = SystemClock().now_s() - parse_duration(since, option="--since")
    with connect(context) as api:
        listing = api.audit.list(since_s=since_s, actor=actor, subject=subject)
        rows = take(listing, limit, cursor)[::-1]
    if as_json:
        write_json(rows)
        return
    time = time_heading("TIME", (r.at_ms / 1000 for r in rows))
    write_list(
        ("ROW", time, "ACTOR", "ROLE", "ACTION", "SUBJECT", "OUTCOME"),
        [
            (
                r.sequence, local_time(r.at_ms / 1000), r.actor, r.role, r.action, r.subject,
                r.outcome,
            )
            for r in rows
        ],
        none="the audit log has no such row",
        minor=("ROLE", "ROW"),
    )  # fmt: skip


def audit_verify(
    context: typer.Context,
    head: Annotated[
        str,
        typer.Option(help="A hash that was written down before: it must be there.", metavar="HASH"),
    ] = "",
    as_json: JsonOption = False,
) -> int:
    """Check that no row of the audit log was changed, added or taken out.

    It computes the chain of hashes here, from the first row to the last, and prints the number of
    rows and the hash of the last one. Write that hash down where nobody can change it: with --head
    it shows later that the log was not cut off or written anew.

    The exit code is 1 when something does not fit.

    Examples:
        fleet audit verify
        fleet audit verify --head 9f2c4e...
    """  # noqa: DOC501 - is the help text
    wanted = head.strip().lower()
    if wanted and _HASH.fullmatch(wanted) is None:
        raise ArgumentError(
            f"--head: {head[:80]!r} is not a hash",
            remedy="give the 64 hexadecimal digits that `fleet audit verify` printed",
        )
    with connect(context) as api:
        chain, fault = _checked(api, ChainCheck(wanted))
    if as_json:
        write_plain_json({
            "ok": fault is None, "rows": chain.count, "head": chain.head, "fault": fault or "",
        })  # fmt: skip
    elif fault is None:
        write(f"{_rows(chain.count)} fit; the head is {chain.head}")
    else:
        write(f"{plain_text(fault)}; {_rows(chain.count)} before it fit")
    return 0 if fault is None else 1


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _checked(api: Fleet, chain: ChainCheck) -> tuple[ChainCheck, str | None]:
    """Check rows page by page, until there are no more or one does not fit."""
    while True:
        page = api.audit.after(chain.count, limit=PAGE_ROWS)
        for entry in page:
            fields = {name: value for name, value in vars(entry).items() if name != "hash"}
            fault = chain.fault(AuditRow(**fields), entry.hash)
            if fault is not None:
                return chain, fault
        if len(page) < PAGE_ROWS:
            return chain, chain.missing_head()
