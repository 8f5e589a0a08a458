"""`fleet telemetry ...`: queries over what the devices measured."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from controller.cli.arguments import JsonOption, parse_duration, parse_labels
from controller.cli.client import connect, segment
from controller.cli.commands import Commands, add_group
from controller.cli.devices import (
    KindOption,
    LimitOption,
    ModelOption,
    SinceOption,
    check_kinds,
)
from controller.cli.errors import ArgumentError
from controller.cli.export import telemetry_export
from controller.cli.output import write_csv, write_json
from controller.schemas import (
    Device,
    DeviceEvent,
    ReportedMetric,
    ReportingDevice,
    TelemetryComparison,
    TelemetryTable,
)
from wire.clock import SystemClock
from wire.console.output import write, write_table
from wire.console.text import local_time
from wire.durations import format_duration

StatOption = Annotated[
    str,
    typer.Option(
        metavar="NAMES",
        help="Statistics: count,total,mean,min,max,rate, and p50 or p99.9 of histograms. The "
        "default depends on the kind of the metric.",
    ),
]

SelectorOption = Annotated[
    str, typer.Option(metavar="EXPRESSION", help="Count only devices that match it: site=berlin.")
]
UntilOption = Annotated[
    str, typer.Option(metavar="TIME", help="Count only what is older than this, such as 10m.")
]

MetricArgument = Annotated[
    str,
    typer.Argument(
        metavar="METRIC", help="Such as inference_latency_ms: see `fleet telemetry metrics`."
    ),
]
ByOption = Annotated[
    str,
    typer.Option(
        metavar="NAMES",
        help="One row for each value of these: device, minute, attributes of the metric as "
        "variant, labels of devices, profile, arch, agent_version.",
    ),
]
WhereOption = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="Count only these.")
]
OneModelOption = Annotated[
    str | None, typer.Option(help="Count only this model; the default is all.", metavar="NAME")
]

UNITS_S: Final = {"minute": 60.0, "start_s": 1.0}
"""Columns that are times since the epoch, and their units."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    commands: Commands = {
        "metrics": telemetry_metrics,
        "query": telemetry_query,
        "top": telemetry_top,
        "compare": telemetry_compare,
        "events": telemetry_events,
        "devices": telemetry_devices,
        "export": telemetry_export,
    }
    add_group(app, "telemetry", "Show what the devices measured.", commands)


def telemetry_metrics(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the metrics that devices have reported, and what they mean.

    Examples:
        fleet telemetry metrics
    """
    with connect(context) as api:
        found = api.get("/v1/telemetry/metrics", list[ReportedMetric])
    if as_json:
        write_json(found)
        return
    write_table(
        ("METRIC", "KIND", "UNIT", "ATTRIBUTES", "SERIES", "MEANING"),
        [(m.name, m.kind, m.unit, ", ".join(m.attributes), m.series, m.meaning) for m in found],
        minor=("SERIES", "KIND"),
    )


def telemetry_query(  # noqa: PLR0913, PLR0917 - one parameter for each option
    context: typer.Context,
    metric: MetricArgument,
    stat: StatOption = "",
    by: ByOption = "",
    where: WhereOption = None,
    model: OneModelOption = None,
    selector: SelectorOption = "",
    since: SinceOption = "1h",
    until: UntilOption = "",
    step: Annotated[
        str, typer.Option(help="One row for each time of this length, such as 5m.", metavar="TIME")
    ] = "",
    as_json: JsonOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print as CSV.")] = False,
) -> None:
    """Ask for statistics of a metric over the fleet.

    Percentiles are those of all measured values together.

    Examples:
        fleet telemetry query inference_latency_ms --by variant
        fleet telemetry query inference_latency_ms --model detector
        fleet telemetry query inference_latency_ms --stat p95 --by site,agent_version
        fleet telemetry query temperature_c --step 5m --selector site=berlin
        fleet telemetry query install_bytes_total --stat total --by source
    """
    _check_format(as_json=as_json, as_csv=as_csv)
    params = _params(metric, stat, by, where, model, selector, since, until)
    if step:
        params["step"] = _seconds(step, "--step")
    with connect(context) as api:
        table = api.get("/v1/telemetry/query", TelemetryTable, params)
    _show(table, as_json=as_json, as_csv=as_csv)


def telemetry_top(  # noqa: PLR0913, PLR0917 - one parameter for each option
    context: typer.Context,
    metric: MetricArgument,
    stat: Annotated[
        str, typer.Option(metavar="NAME", help="The statistic to sort by: p95, mean, max, total.")
    ] = "max",
    by: ByOption = "device",
    where: WhereOption = None,
    model: OneModelOption = None,
    selector: SelectorOption = "",
    since: SinceOption = "1h",
    until: UntilOption = "",
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=1000, help="Show at most so many rows.")
    ] = 10,
    least: Annotated[
        bool, typer.Option("--least", help="Show the rows with the least values, not the greatest.")
    ] = False,
    as_json: JsonOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print as CSV.")] = False,
) -> None:
    """Show the devices, or groups, with the greatest values of a metric.

    Examples:
        fleet telemetry top temperature_c
        fleet telemetry top inference_latency_ms --stat p99 --by device,variant
        fleet telemetry top battery_ratio --stat mean --least --limit 20
    """  # noqa: DOC501 - is the help text
    _check_format(as_json=as_json, as_csv=as_csv)
    if "," in stat:
        raise ArgumentError(f"--stat: {stat!r} are several", remedy="name one to sort by")
    params = _params(metric, stat, by, where, model, selector, since, until)
    with connect(context) as api:
        table = api.get("/v1/telemetry/query", TelemetryTable, params)
    rows = [row for row in table.rows if row[-1] is not None]
    rows.sort(key=lambda row: float(row[-1]), reverse=not least)
    shown = TelemetryTable(columns=table.columns, rows=rows[:limit])
    _show(shown, as_json=as_json, as_csv=as_csv)


def telemetry_compare(  # noqa: PLR0913, PLR0917 - one parameter for each option
    context: typer.Context,
    metric: MetricArgument,
    first: Annotated[
        str, typer.Argument(metavar="FIRST", help="The first group, such as digits:1.0.0.")
    ],
    second: Annotated[str, typer.Argument(metavar="SECOND", help="The second group.")],
    stat: Annotated[
        str, typer.Option(metavar="NAME", help="mean, or a quantile of a histogram such as p95.")
    ] = "mean",
    by: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What parts the groups: release, variant, model, a label, profile, arch or "
            "agent_version.",
        ),
    ] = "release",
    where: WhereOption = None,
    model: OneModelOption = None,
    selector: SelectorOption = "",
    since: SinceOption = "1h",
    until: UntilOption = "",
    as_json: JsonOption = False,
) -> None:
    """Compare two releases, variants or groups of devices, and tell whether they differ.

    A device is one observation, however many requests it answered. With few devices nothing can be
    told, and that is said.

    Examples:
        fleet telemetry compare inference_latency_ms digits:1 digits:2 --stat p95
        fleet telemetry compare temperature_c berlin hamburg --by site --since 1d
    """
    params = _params(metric, stat, by, where, model, selector, since, until)
    params |= {"first": first, "second": second}
    with connect(context) as api:
        found = api.get("/v1/telemetry/compare", TelemetryComparison, params)
    if as_json:
        write_json(found)
        return
    rows = [
        (group.name, group.value, group.devices, round(group.values))
        for group in (found.first, found.second)
    ]
    write_table((found.by.upper(), found.statistic.upper(), "DEVICES", "VALUES"), rows)
    write()
    write(_told(found))


def _told(found: TelemetryComparison) -> str:
    """Return what a comparison says, in one sentence."""
    if found.low is None or found.high is None:
        return "too few devices have values to tell whether they differ"
    change = f"{found.difference:+.4g}"
    if found.first.value:
        change += f" ({100 * found.difference / abs(found.first.value):+.1f} %)"
    between = f"between {found.low:+.4g} and {found.high:+.4g} with 95 % confidence"
    if not found.told:
        return f"no difference can be told: {change}, {between}"
    word = "higher" if found.difference > 0 else "lower"
    return f"{found.second.name} is {word}: {change}, {between}"


def _params(
    metric: str,
    stat: str,
    by: str,
    where: list[str] | None,
    model: str | None,
    selector: str,
    since: str,
    until: str,
) -> dict[str, str | list[str]]:
    """Return what the API is asked, of what commands have in common.

    Raises:
        ArgumentError: A value makes no sense.
    """
    named = [*(where or ()), *([f"model={model}"] if model is not None else ())]
    words = {name: text for name, text in (("stat", stat), ("by", by)) if text}
    return {"metric": metric, **words, **_asked(named, selector, since, until)}


def _asked(where: list[str], selector: str, since: str, until: str) -> dict[str, str | list[str]]:
    """Return which part of the telemetry the API is asked for.

    Raises:
        ArgumentError: A value makes no sense.
    """
    for pair in where:
        parse_labels([pair])  # several values of one attribute are alternatives
    asked: dict[str, str | list[str]] = {
        "where": where, "selector": selector, "since": _seconds(since, "--since"),
        "until": until and _seconds(until, "--until"),
    }  # fmt: skip
    return {name: value for name, value in asked.items() if value}


def _show(table: TelemetryTable, *, as_json: bool, as_csv: bool) -> None:
    if as_json:
        write_json(table)
    elif as_csv:
        write_csv(table.columns, table.rows)
    else:
        shown = _with_times(table)
        write_table([column.upper() for column in shown.columns], shown.rows)


def _with_times(table: TelemetryTable) -> TelemetryTable:
    """Replace numbers that are times by what a clock shows here."""
    seconds = [UNITS_S.get(column) for column in table.columns]
    rows = [
        [
            value if unit_s is None else local_time(float(value) * unit_s)
            for value, unit_s in zip(row, seconds, strict=True)
        ]
        for row in table.rows
    ]
    return TelemetryTable(columns=table.columns, rows=rows)


def telemetry_events(  # noqa: PLR0913, PLR0917 - one parameter for each option
    context: typer.Context,
    device: Annotated[
        str | None,
        typer.Argument(metavar="DEVICE", help="Identifier of the device; the default is all."),
    ] = None,
    model: ModelOption = None,
    since: SinceOption = "1h",
    until: UntilOption = "",
    kind: KindOption = None,
    selector: SelectorOption = "",
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Show only events with this in their data: variant=int8, inputs.headroom=0.91.",
        ),
    ] = None,
    limit: LimitOption = 200,
    as_json: JsonOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print as CSV.")] = False,
) -> None:
    """List what happened on devices, the oldest first. `fleet why` explains it for one.

    Examples:
        fleet telemetry events --kind damage --since 7d
        fleet telemetry events cam-berlin --since 1d --csv > events.csv
        fleet telemetry events --selector site=berlin --where variant=int8
    """
    _check_format(as_json=as_json, as_csv=as_csv)
    only = ",".join(filter(None, (selector, device and f"id={device}")))
    asked = _asked(where or [], only, since, until) | {"kind": kind or [], "limit": str(limit)}
    if model is not None:
        asked["model"] = model
    with connect(context) as api:
        if device is not None:
            api.get(f"/v1/devices/{segment(device)}", Device)  # which may be misspelt
        events = api.get("/v1/telemetry/events", list[DeviceEvent], asked)
    check_kinds(kind or [], events)
    if as_json:
        write_json(events)
    elif as_csv:
        rows = [(e.device, e.at_s, e.kind, e.reason) for e in events]
        write_csv(("device", "at_s", "kind", "reason"), rows)
    else:
        write_table(
            ("TIME", "DEVICE", "KIND", "REASON"),
            [(local_time(e.at_s), e.device, e.kind, e.reason) for e in events],
        )


def telemetry_devices(
    context: typer.Context,
    selector: SelectorOption = "",
    silent: Annotated[
        str,
        typer.Option(metavar="TIME", help="Show only devices without telemetry for so long: 10m."),
    ] = "",
    losing: Annotated[
        bool, typer.Option("--losing", help="Show only devices of which something was lost.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show how complete the telemetry of each enrolled device is.

    Examples:
        fleet telemetry devices --silent 10m
        fleet telemetry devices --losing --selector site=berlin
    """
    with connect(context) as api:
        found = api.get("/v1/telemetry/devices", list[ReportingDevice], {"selector": selector})
    if silent:
        before_s = SystemClock().now_s() - parse_duration(silent, option="--silent")
        found = [each for each in found if (each.newest_at_s or 0.0) < before_s]
    if losing:
        found = [each for each in found if each.dropped or each.refused]
    if as_json:
        write_json(found)
        return
    write_table(
        ("DEVICE", "ONLINE", "NEWEST", "BATCHES", "DROPPED", "REFUSED"),
        [
            (
                each.device, each.online,
                "never" if each.newest_at_s is None else local_time(each.newest_at_s),
                each.batches, each.dropped, each.refused,
            )
            for each in found
        ],
        minor=("BATCHES",),
    )  # fmt: skip


def _check_format(*, as_json: bool, as_csv: bool) -> None:
    """Refuse two formats at once.

    Raises:
        ArgumentError: Both are wanted.
    """
    if as_json and as_csv:
        raise ArgumentError("--json and --csv exclude each other", remedy="choose one of them")


def _seconds(text: str, option: str) -> str:
    return format_duration(parse_duration(text, option=option))
