"""`fleet alert test`: when rules would have fired, and whether webhooks accept posts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from controller.alert_schemas import AlertRulesRequest, AlertTest
from controller.cli.alert_values import amount_text, group_shown
from controller.cli.arguments import JsonOption, parse_duration
from controller.cli.connecting import connect
from controller.cli.errors import ArgumentError
from controller.cli.lists import time_heading
from controller.cli.output import write_json
from controller.client.fleet import Fleet
from telemetry.errors import AlertRuleError
from telemetry.server.alerts.rules_file import MAX_FILE_BYTES, read_rules
from wire.console.output import is_terminal, remark, write, write_table
from wire.console.text import local_time
from wire.durations import format_duration


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
        return _test_rules(api, read_rules_file(file), since, step, as_json=as_json)


def _test_webhooks(api: Fleet, *, as_json: bool) -> int:
    found = api.alerts.test_webhooks()
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


def _test_rules(api: Fleet, values: dict[str, Any], since: str, step: str, *, as_json: bool) -> int:
    since = format_duration(parse_duration(since, option="--since"))
    step = step and format_duration(parse_duration(step, option="--step"))
    # What is wrong in a rule is told before the first one takes its time.
    change = api.alerts.apply(AlertRulesRequest(rules=values, dry_run=True))
    found = [
        result
        for table in values.get("alert", [])
        for result in api.alerts.test(AlertTest(rules={"alert": [table]}, since=since, step=step))
    ]
    specs = {str(table.get("name")): table for table in values.get("alert", [])}
    is_person = is_terminal()
    code = 1 if any(result.fault for result in found) else 0
    if as_json:
        write_json(found)
        return code
    spans = [span for result in found for span in result.spans]
    fired = time_heading("FIRED", (span.fired_at_s for span in spans))
    write_table(
        ("ALERT", "GROUP", fired, "RESOLVED", "LASTED", "FURTHEST"),
        [
            (
                result.alert, group_shown(span.group), local_time(span.fired_at_s),
                "still firing" if span.resolved_at_s is None else local_time(span.resolved_at_s),
                None
                if span.resolved_at_s is None
                else format_duration(round(span.resolved_at_s - span.fired_at_s)),
                amount_text(specs[result.alert], span.furthest) if is_person else span.furthest,
            )
            for result in found
            for span in result.spans
        ],
        minor=("LASTED",),
    )  # fmt: skip
    faults = {result.alert: result.fault for result in found if result.fault}
    for doubt in change.doubts:
        if not any(doubt == f"{name}: {fault}" for name, fault in faults.items()):
            remark(f"warning: {doubt}")
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


def read_rules_file(path: Path) -> dict[str, Any]:
    """Read a file of rules.

    Args:
        path: Its path.

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
