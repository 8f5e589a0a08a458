"""`fleet alert ...`: rules that watch the telemetry, and what they found."""

from __future__ import annotations

import getpass
import os
from pathlib import Path
from typing import Annotated, Final

import typer

from controller.alert_schemas import (
    MAX_ACTOR_CHARS,
    AckRequest,
    Alert,
    AlertRulesRequest,
)
from controller.cli import completion
from controller.cli.alert_tests import alert_test, read_rules_file
from controller.cli.alert_values import amount_text, compared_text, group_shown
from controller.cli.arguments import JsonOption, parse_duration
from controller.cli.commands import Commands, add_group
from controller.cli.connecting import connect
from controller.cli.lists import time_heading
from controller.cli.output import write_json
from controller.cli.paging import CountOption, CursorOption, ReverseOption, take
from wire.console.output import (
    is_terminal,
    remark,
    table_lines,
    tell_left_out,
    terminal_width,
    write,
    write_exact,
    write_fields,
    write_table,
)
from wire.console.table import hanging
from wire.console.text import local_time, value_text

STATES: Final = ("error", "firing", "pending", "resolved", "inactive")
SEVERITIES: Final = ("critical", "warning", "info")
"""The gravest first."""

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the alert.", autocompletion=completion.alerts)
]
FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="TOML file with tables [[alert]]: docs/alerts.md.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    commands: Commands = {
        "list": alert_list,
        "show": alert_show,
        "ack": alert_ack,
        "rules": alert_rules,
        "apply": alert_apply,
        "test": alert_test,
    }
    add_group(app, "alert", "Watch the telemetry, and tell when it is wrong.", commands)


def alert_list(  # noqa: PLR0913, PLR0917 - one parameter for each option
    context: typer.Context,
    with_resolved: Annotated[
        bool, typer.Option("--all", help="Show also what was resolved in the last days.")
    ] = False,
    alert: Annotated[str, typer.Option(help="Only those of this rule.", metavar="NAME")] = "",
    state: Annotated[
        str, typer.Option(help="Only pending, firing, resolved or error.", metavar="STATE")
    ] = "",
    severity: Annotated[
        str, typer.Option(help="Only those of this severity.", metavar="TEXT")
    ] = "",
    sort: Annotated[
        str, typer.Option("--sort", metavar="KEY", help="By since, alert, severity or state.")
    ] = "",
    reverse: ReverseOption = False,
    limit: CountOption = None,
    cursor: CursorOption = "",
    as_json: JsonOption = False,
) -> None:
    """List alerts that are pending or firing, and rules that cannot be evaluated.

    Examples:
        fleet alert list
        fleet alert list --all --json
        fleet alert list --state firing --sort severity
    """
    with connect(context) as api:
        listing = api.alerts.list(
            resolved=with_resolved or state == "resolved",
            alert=alert,
            state=state,
            severity=severity,
            sort=sort,
            reverse=reverse,
        )
        found = take(listing, limit, cursor)
    if as_json:
        write_json(found)
        return
    _write_alerts(found, is_sorted=bool(sort))
    for each in found:
        if each.error:
            remark(f"{each.alert}: {each.error}")


def alert_show(
    context: typer.Context,
    name: NameArgument,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=10_000, help="Show at most so many entries.")
    ] = 100,
    as_json: JsonOption = False,
) -> None:
    """Show an alert: its rule, its groups and its history, the newest first.

    Examples:
        fleet alert show silent-device
    """
    with connect(context) as api:
        found = api.alerts.history(name, limit=limit)
    if as_json:
        write_json(found)
        return
    rule = found.rule
    spec = {key: value for key, value in rule.spec.items() if value not in (None, "", [])}
    write_fields(
        [
            *((key, value) for key, value in spec.items() if key != "name"),
            ("evaluation", rule.state),
            ("firing", rule.firing),
            ("pending", rule.pending),
            *([("error", rule.error)] if rule.error else []),
            *([("note", rule.note)] if rule.note else []),
            ("last evaluated", local_time(rule.evaluated_at_s)),
        ]
    )
    if found.alerts:
        write()
        _write_alerts(found.alerts)
    is_person = is_terminal()
    if found.history:
        time = time_heading("TIME", (e.at_s for e in found.history))
        write()
        write_table(
            (time, "GROUP", "WHAT", "VALUE", "BY", "DETAIL"),
            [
                (
                    local_time(e.at_s),
                    group_shown(e.group),
                    e.what,
                    amount_text(rule.spec, e.value) if is_person else e.value,
                    e.actor,
                    e.detail,
                )
                for e in found.history
            ],
            minor=("BY", "VALUE"),
        )


def alert_ack(
    context: typer.Context,
    name: NameArgument,
    group: Annotated[
        str | None,
        typer.Argument(
            metavar="GROUP",
            help="As the list shows it: device=cam-1, or only cam-1. The default is all groups.",
        ),
    ] = None,
    duration: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="TIME",
            help="Tell nobody for so long, even if it fires anew: 2h. The default is until it is "
            "resolved; 0 ends an acknowledgement.",
        ),
    ] = "",
    comment: Annotated[str, typer.Option(metavar="TEXT", help="Why, for others.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Acknowledge an alert: somebody takes care, and webhooks are not told of it again.

    Examples:
        fleet alert ack hot device=cam-1 --comment "a fan is on its way"
        fleet alert ack silent-device --for 2h
    """
    for_s = parse_duration(duration, option="--for") if duration else None
    body = AckRequest(group=group, for_s=for_s, comment=comment, by=_me())
    with connect(context) as api:
        found = api.alerts.acknowledge(name, body)
    if as_json:
        write_json(found)
        return
    _write_alerts(found)


def alert_rules(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the rules in force, and how they are evaluated.

    Examples:
        fleet alert rules
    """
    with connect(context) as api:
        found = api.alerts.rules()
    if as_json:
        write_json(found)
        return
    write_table(
        ("ALERT", "KIND", "SEVERITY", "EVALUATION", "FIRING", "PENDING", "TOOK MS", "CHANGED",
         "ERROR"),
        [
            (
                r.name, r.kind, r.severity, r.state, r.firing, r.pending,
                None if r.took_ms is None else round(r.took_ms, 1),
                "built in" if r.built_in else local_time(r.changed_at_s), r.error,
            )
            for r in found
        ],
        minor=("TOOK MS", "CHANGED", "PENDING"),
    )  # fmt: skip
    for each in found:
        if each.note:
            remark(f"{each.name}: {each.note}")


def alert_apply(
    context: typer.Context,
    file: FileArgument,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check the file and say what would change.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Put the rules of a file in the place of all that were set, and say what changes.

    Examples:
        fleet alert apply alerts.toml --dry-run
        fleet alert apply alerts.toml
    """
    request = AlertRulesRequest(rules=read_rules_file(file), by=_me(), dry_run=dry_run)
    with connect(context) as api:
        change = api.alerts.apply(request)
    if as_json:
        write_json(change)
        return
    lines = [
        *(f"added {name}" for name in change.added),
        *(f"changed {name}: {', '.join(keys)}" for name, keys in change.changed.items()),
        *(f"removed {name}" for name in change.removed),
    ]
    for line in lines or ["nothing changes"]:
        write(line)
    if change.ended:
        word = "would end" if dry_run else "ended"
        remark(f"alerts that were open {word} with their old rules: {', '.join(change.ended)}")
    for doubt in change.doubts:
        remark(f"warning: {doubt}")
    if change.doubts:
        remark(f"`fleet alert test {file}` says when the rules would have fired")
    if dry_run:
        remark("nothing was changed: --dry-run")


def _write_alerts(found: list[Alert], *, is_sorted: bool = False) -> None:
    """Write alerts, the gravest first; what has no place in the table comes below it."""
    is_person = is_terminal()
    ordered = found if is_sorted else sorted(found, key=_urgency)
    since = time_heading("SINCE", (a.since_s for a in ordered))
    table = table_lines(
        ("ALERT", "GROUP", "STATE", "SEVERITY", "VALUE", since, "ACK", "SUMMARY"),
        [
            (
                a.alert,
                "-" if a.error else group_shown(a.group),
                f"{a.state}, acked" if is_person and a.acked else a.state,
                a.severity,
                compared_text(a) if is_person else a.value,
                local_time(a.since_s),
                _ack(a),
                _about(a),
            )
            for a in ordered
        ],
        minor=("SUMMARY", "ACK", since),
        right=("VALUE",) if is_person else (),
    )
    for line in table.lines:
        write_exact(line)
    summaries = dict.fromkeys(f"{a.alert}: {_about(a)}" for a in ordered if _about(a))
    if "SUMMARY" in table.left_out and summaries:
        write()
        for summary in summaries:
            for line in hanging(summary, terminal_width()):
                write(line)
    tell_left_out(table)


def _urgency(alert: Alert) -> tuple[int, int, str, float]:
    return (
        STATES.index(alert.state),
        SEVERITIES.index(alert.severity) if alert.severity in SEVERITIES else 0,
        alert.alert,
        alert.since_s,
    )


def _about(alert: Alert) -> str:
    """Return what is told of an alert, and that its rule is no longer the one that it was."""
    return "; ".join(filter(None, (alert.summary, alert.note)))


def _ack(alert: Alert) -> str:
    if not alert.acked:
        return "-"
    until = "" if alert.acked_until_s is None else f" until {local_time(alert.acked_until_s)}"
    comment = f": {alert.comment}" if alert.comment else ""
    return f"{value_text(alert.acked_by)}{until}{comment}"


def _me() -> str:
    """Return who gives the command, as far as this machine knows."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = str(os.getuid())
    return name[:MAX_ACTOR_CHARS]
