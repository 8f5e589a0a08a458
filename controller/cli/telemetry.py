"""`fleet telemetry ...`: questions to what the devices measured."""

from __future__ import annotations

from typing import Annotated

import typer

from controller.cli.arguments import JsonOption, parse_duration, parse_labels
from controller.cli.client import connect
from controller.cli.devices import (
    DeviceArgument,
    KindOption,
    LimitOption,
    SinceOption,
    fetch_events,
)
from controller.cli.errors import ArgumentError
from controller.cli.output import local_time, write_csv, write_json, write_table

StatOption = Annotated[
    str, typer.Option(metavar="NAMES", help="Such as count,mean,p50,p95,max,rate.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="What the devices measured.", no_args_is_help=True)
    group.command("query")(telemetry_query)
    group.command("events")(telemetry_events)
    app.add_typer(group, name="telemetry")


def telemetry_query(  # noqa: PLR0913, PLR0917 - one parameter for each option
    context: typer.Context,
    metric: Annotated[str, typer.Option(help="Such as inference_latency_ms.")],
    stat: StatOption = "count,mean,p50,p95",
    by: Annotated[
        str, typer.Option(metavar="NAMES", help="Such as variant,device,release,minute.")
    ] = "",
    where: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Only these; repeatable.")
    ] = None,
    since: SinceOption = "1h",
    step: Annotated[str, typer.Option(help="One row for each such time, such as 1m.")] = "",
    as_json: JsonOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print as CSV.")] = False,
) -> None:
    """Ask for statistics of a metric over the fleet; percentiles are true over all devices."""
    _check_format(as_json=as_json, as_csv=as_csv)
    params: dict[str, str | list[str]] = {"metric": metric, "stat": stat}
    params["since"] = _seconds(since, "--since")
    if by:
        params["by"] = by
    if where:
        parse_labels(where)
        params["where"] = where
    if step:
        params["step"] = _seconds(step, "--step")
    from controller.schemas import TelemetryTable

    with connect(context) as api:
        table = api.get("/v1/telemetry/query", TelemetryTable, params)
    if as_json:
        write_json(table)
    elif as_csv:
        write_csv(table.columns, table.rows)
    else:
        write_table(table.columns, table.rows)


def telemetry_events(
    context: typer.Context,
    device: DeviceArgument,
    since: SinceOption = "1h",
    kind: KindOption = None,
    limit: LimitOption = 200,
    as_json: JsonOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print as CSV.")] = False,
) -> None:
    """List a device's events, oldest first; `fleet why` explains them."""
    _check_format(as_json=as_json, as_csv=as_csv)
    with connect(context) as api:
        events = fetch_events(api, device, since=since, kinds=kind or [], limit=limit)
    if as_json:
        write_json(events)
    elif as_csv:
        rows = [(e.device, e.at_s, e.kind, e.reason) for e in events]
        write_csv(("device", "at_s", "kind", "reason"), rows)
    else:
        write_table(
            ("TIME", "KIND", "REASON"), [(local_time(e.at_s), e.kind, e.reason) for e in events]
        )


def _check_format(*, as_json: bool, as_csv: bool) -> None:
    """Refuse two formats at once.

    Raises:
        ArgumentError: Both are wanted.
    """
    if as_json and as_csv:
        raise ArgumentError("--json and --csv exclude each other", remedy="choose one of them")


def _seconds(text: str, option: str) -> str:
    return f"{parse_duration(text, option=option):.3f}".rstrip("0").rstrip(".") + "s"
