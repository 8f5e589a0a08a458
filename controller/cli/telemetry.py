"""`fleet telemetry ...`: queries over what the devices measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from controller.cli.arguments import JsonOption
from controller.cli.asking import EveryOption, SparkOption, WatchOption, answer, every_s_of
from controller.cli.commands import Commands, add_group
from controller.cli.connecting import connect
from controller.cli.drawing.quantities import Unit, quantity_text, unit_of
from controller.cli.drift import telemetry_drift
from controller.cli.errors import ArgumentError
from controller.cli.export import telemetry_export
from controller.cli.flush import telemetry_flush
from controller.cli.formats import (
    RECORDS,
    CsvOption,
    FormatOption,
    OutputOption,
    RecordsFormatOption,
    RecordsOutputOption,
    chosen_form,
    write_records,
)
from controller.cli.questions import (
    ByOption,
    MetricArgument,
    OneModelOption,
    SelectorOption,
    SinceOption,
    StatOption,
    StepOption,
    UnitOption,
    UntilOption,
    WhereOption,
    check_conditions,
    conditions,
    listed,
    times_asked,
)
from controller.cli.saved_queries import (
    telemetry_forget,
    telemetry_run,
    telemetry_save,
    telemetry_saved,
)
from controller.cli.telemetry_lists import (
    telemetry_dead_letters,
    telemetry_devices,
    telemetry_events,
    telemetry_metrics,
)
from controller.domain.wording import counted
from controller.query_schemas import TelemetryQuestion
from controller.telemetry_schemas import TelemetryComparison, TelemetryTable
from telemetry.metrics import known
from wire.console.output import is_terminal, table_lines, write, write_exact, write_lines


def register(app: typer.Typer) -> None:
    """Add the commands."""
    commands: Commands = {
        "metrics": telemetry_metrics,
        "query": telemetry_query,
        "top": telemetry_top,
        "compare": telemetry_compare,
        "drift": telemetry_drift,
        "events": telemetry_events,
        "devices": telemetry_devices,
        "flush": telemetry_flush,
        "dead-letters": telemetry_dead_letters,
        "save": telemetry_save,
        "run": telemetry_run,
        "saved": telemetry_saved,
        "forget": telemetry_forget,
        "export": telemetry_export,
    }
    add_group(app, "telemetry", "Show what the devices measured.", commands)


def telemetry_query(  # noqa: PLR0913, PLR0917 - one parameter for each option
    context: typer.Context,
    metric: MetricArgument,
    stat: StatOption = "",
    by: ByOption = None,
    where: WhereOption = None,
    model: OneModelOption = None,
    selector: SelectorOption = "",
    since: SinceOption = "1h",
    until: UntilOption = "",
    step: StepOption = "",
    form: FormatOption = "",
    output: OutputOption = None,
    spark: SparkOption = None,
    watch: WatchOption = False,
    every: EveryOption = "",
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Ask for statistics of a metric over the fleet.

    Percentiles are those of all measured values together.

    A plot has a line for each group with --step, and a bar without it.

    Examples:
        fleet telemetry query inference_latency_ms --by variant
        fleet telemetry query inference_latency_ms --model detector
        fleet telemetry query inference_latency_ms --stat p95 --by site,agent_version
        fleet telemetry query temperature_c --step 5m --by site --format plot
        fleet telemetry query temperature_c --step 5m --format png -o heat.png
        fleet telemetry query install_bytes_total --stat total --by source --watch
    """
    chosen = chosen_form(form, as_json=as_json, as_csv=as_csv, output=output)
    question = TelemetryQuestion(
        metric=metric, stat=stat, by=listed(by), where=conditions(where, model),
        selector=selector, since=since, until=until, step=step,
    )  # fmt: skip
    answer(context, question, chosen, spark=spark, every_s=every_s_of(every, watch=watch))


def telemetry_top(  # noqa: PLR0913, PLR0917 - one parameter for each option
    context: typer.Context,
    metric: MetricArgument,
    stat: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The statistic to sort by: p95, mean, max, total. The default is max, of a "
            "counter total, and of a histogram of ratios mean.",
        ),
    ] = "",
    by: ByOption = ["device"],  # noqa: B006 - is only read
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
    form: FormatOption = "",
    output: OutputOption = None,
    spark: SparkOption = None,
    watch: WatchOption = False,
    every: EveryOption = "",
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Show the devices, or groups, with the greatest values of a metric.

    Examples:
        fleet telemetry top temperature_c
        fleet telemetry top inference_latency_ms --stat p99 --by device,variant
        fleet telemetry top hw.battery.charge --stat mean --least --limit 20
        fleet telemetry top temperature_c --format plot --watch
    """  # noqa: DOC501 - is the help text
    chosen = chosen_form(form, as_json=as_json, as_csv=as_csv, output=output)
    if "," in stat:
        raise ArgumentError(f"--stat: {stat!r} are several", remedy="name one to sort by")
    question = TelemetryQuestion(
        metric=metric, stat=stat or _sorted_by(metric), by=listed(by),
        where=conditions(where, model), selector=selector, since=since, until=until,
    )  # fmt: skip

    def first_ones(table: TelemetryTable) -> TelemetryTable:
        rows = [row for row in table.rows if row[-1] is not None]
        rows.sort(key=lambda row: float(row[-1] or 0), reverse=not least)
        return replace(table, rows=rows[:limit])

    answer(
        context, question, chosen, spark=spark, every_s=every_s_of(every, watch=watch),
        choose=first_ones,
    )  # fmt: skip


def _sorted_by(metric: str) -> str:
    """Return the statistic that says which devices have most of a metric."""
    found = known(metric)
    if found is None:  # of an agent of another version
        return "total" if metric.endswith("_total") else "max"
    if found.kind == "sum":
        return "total"
    return "mean" if found.kind == "histogram" and found.unit == "1" else "max"


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
    unit: UnitOption = "",
    since: SinceOption = "1h",
    until: UntilOption = "",
    form: RecordsFormatOption = "",
    output: RecordsOutputOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Compare two releases, variants or groups of devices, and tell whether they differ.

    A device is one observation, however many requests it answered; with --unit site all devices of
    a site are one. With few of them nothing can be told, and that is said. A device that is in both
    groups weighs the same in both.

    Examples:
        fleet telemetry compare inference_latency_ms digits:1 digits:2 --stat p95
        fleet telemetry compare temperature_c berlin hamburg --by site --since 1d
    """
    chosen = chosen_form(form, as_json=as_json, as_csv=as_csv, output=output, possible=RECORDS)
    since, until = times_asked(since, until)
    only = conditions(where, model)
    check_conditions(only)
    with connect(context) as api:
        found = api.telemetry.compare(
            metric, first, second, stat=stat, by=by, where=only, selector=selector, since=since,
            until=until, unit=unit,
        )  # fmt: skip
    kinds = ((by, "text"), (stat, "number"), ("devices", "whole"), ("values", "number"))
    groups = [(g.name, g.value, g.devices, g.values) for g in (found.first, found.second)]
    if write_records(chosen, found, kinds, groups):
        return
    shown = unit_of(metric, stat) if is_terminal() else None
    rows = [
        (
            group.name,
            group.value if shown is None else quantity_text(group.value, shown),
            group.devices,
            round(group.values),
        )
        for group in (found.first, found.second)
    ]
    columns = (found.by.upper(), found.statistic.upper(), "DEVICES", "VALUES")
    for line in table_lines(columns, rows, right=columns[1:2]).lines:
        write_exact(line)
    write()
    lines = [_told(found, shown)]
    if found.devices_in_both:
        lines.append(f"in both, with equal weight: {counted(found.devices_in_both)}")
    write_lines(lines)


def _told(found: TelemetryComparison, unit: Unit | None) -> str:
    """Return what a comparison says, in one sentence; with units if there is one."""

    def signed(value: float) -> str:
        if unit is None:
            return f"{value:+.4g}"
        return f"{'+' if value >= 0 else ''}{quantity_text(value, unit)}"

    if found.low is None or found.high is None:
        return f"whether they differ cannot be told: {found.lacks or 'too few devices have values'}"
    change = signed(found.difference)
    if found.first.value:
        change += f" ({100 * found.difference / abs(found.first.value):+.1f} %)"
    between = f"between {signed(found.low)} and {signed(found.high)} with 95 % confidence"
    if not found.told:
        return f"no difference can be told: {change}, {between}"
    word = "higher" if found.difference > 0 else "lower"
    return f"{found.second.name} is {word}: {change}, {between}"
