"""`fleet alert ...`: rules that watch the telemetry, and what they found."""

from __future__ import annotations

import getpass
import os
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from controller.alert_schemas import (
    MAX_ACTOR_CHARS,
    Alert,
    AlertHistory,
    AlertRule,
    AlertRulesChange,
    AlertTestResult,
    WebhookResult,
)
from controller.cli.alert_values import compared_text
from controller.cli.arguments import JsonOption, parse_duration
from controller.cli.client import ApiClient, connect, segment
from controller.cli.commands import Commands, add_group
from controller.cli.errors import ArgumentError
from controller.cli.output import write_json
from telemetry.errors import AlertRuleError
from telemetry.server.alerts.rules_file import MAX_FILE_BYTES, read_rules
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
from wire.durations import format_duration

STATES: Final = ("error", "firing", "pending", "resolved", "inactive")
SEVERITIES: Final = ("critical", "warning", "info")
"""The gravest first."""

FLEET: Final = "the fleet"
"""How a group is shown that is all there is."""

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the alert.")]
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


def alert_list(
    context: typer.Context,
    with_resolved: Annotated[
        bool, typer.Option("--all", help="Show also what was resolved in the last days.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List alerts that are pending or firing, and rules that cannot be evaluated.

    Examples:
        fleet alert list
        fleet alert list --all --json
    """
    params = {"resolved": "true"} if with_resolved else {}
    with connect(context) as api:
        found = api.get("/v1/alerts", list[Alert], params)
    if as_json:
        write_json(found)
        return
    _write_alerts(found)
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
        found = api.get(f"/v1/alerts/rules/{segment(name)}", AlertHistory, {"limit": str(limit)})
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
    if found.history:
        write()
        write_table(
            ("TIME", "GROUP", "WHAT", "VALUE", "BY", "DETAIL"),
            [
                (local_time(e.at_s), _group(e.group), e.what, e.value, e.actor, e.detail)
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
    body: dict[str, Any] = {"group": group, "comment": comment, "by": _me()}
    if duration:
        body["for_s"] = parse_duration(duration, option="--for")
    with connect(context) as api:
        found = api.send("POST", f"/v1/alerts/rules/{segment(name)}/ack", list[Alert], body)
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
        found = api.get("/v1/alerts/rules", list[AlertRule])
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
    body = {"rules": _read(file), "by": _me(), "dry_run": dry_run}
    with connect(context) as api:
        change = api.send("PUT", "/v1/alerts/rules", AlertRulesChange, body)
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


def alert_test(
    context: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="TOML file with tables [[alert]]: docs/alerts.md."),
    ] = None,
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Judge the telemetry of so long: 6h, 7d.")
    ] = "1d",
    step: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Judge once in such a time. The default is each minute of a day."
        ),
    ] = "",
    webhook: Annotated[
        bool, typer.Option("--webhook", help="Post a test to each webhook of the controller.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Say when the rules of a file would have fired, or whether webhooks accept posts.

    Nothing is changed. The command ends with 1 if a rule could not be tested, or with --webhook if
    one does not accept.

    Examples:
        fleet alert test alerts.toml --since 7d
        fleet alert test --webhook
    """  # noqa: DOC501 - is the help text
    if (file is None) != webhook:
        raise ArgumentError("there is nothing to test", remedy="give either FILE or --webhook")
    with connect(context) as api:
        if file is None:
            return _test_webhooks(api, as_json=as_json)
        return _test_rules(api, _read(file), since, step, as_json=as_json)


def _test_webhooks(api: ApiClient, *, as_json: bool) -> int:
    found = api.send("POST", "/v1/alerts/test-webhooks", list[WebhookResult])
    if as_json:
        write_json(found)
    elif not found:
        write("the controller has no webhook")
        remark("name one in controller.toml: [[alerts.webhooks]], see docs/alerts.md")
    else:
        write_table(
            ("WEBHOOK", "ACCEPTED", "WAITING", "FAULT"),
            [(each.webhook, each.accepted, each.waiting, each.fault) for each in found],
        )
    return 0 if found and all(each.accepted for each in found) else 1


def _test_rules(
    api: ApiClient, values: dict[str, Any], since: str, step: str, *, as_json: bool
) -> int:
    asked = {"since": format_duration(parse_duration(since, option="--since"))}
    if step:
        asked["step"] = format_duration(parse_duration(step, option="--step"))
    # What is wrong in a rule is told before the first one takes its time.
    api.send("PUT", "/v1/alerts/rules", AlertRulesChange, {"rules": values, "dry_run": True})
    found = [
        result
        for table in values.get("alert", [])
        for result in api.send(
            "POST", "/v1/alerts/test", list[AlertTestResult], {"rules": {"alert": [table]}, **asked}
        )
    ]
    code = 1 if any(result.fault for result in found) else 0
    if as_json:
        write_json(found)
        return code
    write_table(
        ("ALERT", "GROUP", "FIRED", "RESOLVED", "LASTED", "FURTHEST"),
        [
            (
                result.alert, _group(span.group), local_time(span.fired_at_s),
                "still firing" if span.resolved_at_s is None else local_time(span.resolved_at_s),
                None
                if span.resolved_at_s is None
                else format_duration(round(span.resolved_at_s - span.fired_at_s)),
                span.furthest,
            )
            for result in found
            for span in result.spans
        ],
        minor=("LASTED",),
    )  # fmt: skip
    for result in found:
        if result.fault:
            remark(f"{result.alert} could not be tested: {result.fault}")
        elif not result.spans:
            remark(f"{result.alert} would not have fired")
        if result.was_cut:
            remark(f"{result.alert} would have fired more often than is shown")
        if result.note:
            remark(f"{result.alert}: {result.note}")
    return code


def _write_alerts(found: list[Alert]) -> None:
    """Write alerts, the gravest first; what has no place in the table comes below it."""
    is_person = is_terminal()
    ordered = sorted(found, key=_urgency)
    table = table_lines(
        ("ALERT", "GROUP", "STATE", "SEVERITY", "VALUE", "SINCE", "ACK", "SUMMARY"),
        [
            (
                a.alert,
                "-" if a.error else _group(a.group),
                f"{a.state}, acked" if is_person and a.acked else a.state,
                a.severity,
                compared_text(a) if is_person else a.value,
                local_time(a.since_s),
                _ack(a),
                a.summary,
            )
            for a in ordered
        ],
        minor=("SUMMARY", "ACK", "SINCE"),
        right=("VALUE",) if is_person else (),
    )
    for line in table.lines:
        write_exact(line)
    summaries = {a.alert: a.summary for a in ordered if a.summary}
    if "SUMMARY" in table.left_out and summaries:
        write()
        for name, summary in summaries.items():
            for line in hanging(f"{name}: {summary}", terminal_width()):
                write(line)
    tell_left_out(table)


def _urgency(alert: Alert) -> tuple[int, int, str, float]:
    return (
        STATES.index(alert.state),
        SEVERITIES.index(alert.severity) if alert.severity in SEVERITIES else 0,
        alert.alert,
        alert.since_s,
    )


def _ack(alert: Alert) -> str:
    if not alert.acked:
        return "-"
    until = "" if alert.acked_until_s is None else f" until {local_time(alert.acked_until_s)}"
    comment = f": {alert.comment}" if alert.comment else ""
    return f"{value_text(alert.acked_by)}{until}{comment}"


def _group(group: str) -> str:
    return group or FLEET


def _me() -> str:
    """Return who gives the command, as far as this machine knows."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = str(os.getuid())
    return name[:MAX_ACTOR_CHARS]


def _read(path: Path) -> dict[str, Any]:
    """Read a file of rules.

    Raises:
        ArgumentError: It cannot be read, or holds something else.
    """
    from wire.files import open_file

    try:
        with open_file(path) as file:
            return read_rules(file.read(MAX_FILE_BYTES + 1))
    except OSError as exc:
        reason = (exc.strerror or str(exc)).lower()
        raise ArgumentError(f"cannot read {path}: {reason}", remedy="check the path") from exc
    except AlertRuleError as exc:
        raise ArgumentError(f"{path}: {exc.message}", remedy=exc.remedy) from exc
