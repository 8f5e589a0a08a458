"""`fleet telemetry metrics`, `events` and `devices`: what there is, and what happened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

import typer

from controller.cli import completion
from controller.cli.arguments import JsonOption, parse_duration
from controller.cli.connecting import connect
from controller.cli.formats import (
    PARQUET,
    RECORDS,
    TABLE,
    CsvOption,
    Kind,
    RecordsFormatOption,
    RecordsOutputOption,
    chosen_form,
    write_records,
)
from controller.cli.hints import about_keys, about_selector
from controller.cli.lists import time_heading, write_list
from controller.cli.output import write_json
from controller.cli.questions import (
    SelectorOption,
    SinceOption,
    UntilOption,
    check_conditions,
    part_text,
    times_asked,
)
from controller.cli.why import (
    MAX_EVENTS,
    KindOption,
    LimitOption,
    ModelOption,
    check_kinds,
    newest,
    tell_more,
)
from controller.client.fleet import Fleet
from controller.domain.selectors import joined
from controller.telemetry_schemas import DeviceEvent
from telemetry.server.clocks import clock_text
from wire.clock import SystemClock
from wire.codec import to_json
from wire.console.text import local_time


def telemetry_metrics(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the metrics that devices have reported, and what they mean.

    Examples:
        fleet telemetry metrics
    """
    with connect(context) as api:
        found = api.telemetry.metrics()
    if as_json:
        write_json(found)
        return
    write_list(
        ("METRIC", "KIND", "UNIT", "ATTRIBUTES", "SERIES", "MEANING"),
        [(m.name, m.kind, m.unit, ", ".join(m.attributes), m.series, m.meaning) for m in found],
        none="no metrics: no device has reported any yet",
        minor=("SERIES", "ATTRIBUTES", "KIND", "UNIT"),
    )


def telemetry_events(  # noqa: PLR0913, PLR0917 - one parameter for each option
    context: typer.Context,
    device: Annotated[
        str | None,
        typer.Argument(
            metavar="DEVICE",
            help="Identifier of the device; the default is all.",
            autocompletion=completion.devices,
        ),
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
            help="Show only events with this in their data, which --json shows: "
            "to=onnxruntime-fp32, cost.gap=true.",
        ),
    ] = None,
    limit: LimitOption = 200,
    form: RecordsFormatOption = "",
    output: RecordsOutputOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """List what happened on devices, the oldest first. `fleet why` explains it for one.

    Examples:
        fleet telemetry events --kind damage --since 7d
        fleet telemetry events cam-berlin --since 1d --csv > events.csv
        fleet telemetry events --kind switch --where to=onnxruntime-fp32
    """
    chosen = chosen_form(form, as_json=as_json, as_csv=as_csv, output=output, possible=RECORDS)
    only = joined(selector, f"id={device}" if device else "")
    check_conditions(where or [])
    begin, end = times_asked(since, until)
    with connect(context) as api:
        ask = partial(
            api.telemetry.events,
            kind=kind or [], selector=only, since=begin, until=end, model=model,
        )  # fmt: skip
        if device is not None:
            api.devices.get(device)  # which may be misspelt
        asked = partial(ask, where=where or [])
        events, has_more = newest(lambda most: asked(limit=most), limit)
        check_kinds(kind or [], events)
        is_empty = not events and chosen.name == TABLE
        hints = (
            _about_none(api, only, where or [], partial(ask, limit=MAX_EVENTS)) if is_empty else []
        )
    if has_more:
        tell_more(events, "--until {} shows those before", limit)
    rows: list[tuple[object, ...]] = [(e.device, e.at_s, e.kind, e.reason) for e in events]
    kinds: list[tuple[str, Kind]] = [
        ("device", "text"), ("at_s", "number"), ("kind", "text"), ("reason", "text"),
    ]  # fmt: skip
    if chosen.name == PARQUET:
        rows = [(*row, to_json(e.data).decode()) for row, e in zip(rows, events, strict=True)]
        kinds.append(("data", "text"))  # as JSON; CSV is as it has always been
    if not write_records(chosen, events, kinds, rows):
        part = part_text(where or [], only, since, until)
        of_kinds = f" of {', '.join(kind)}" if kind else ""
        write_list(
            (time_heading("TIME", (e.at_s for e in events)), "DEVICE", "KIND", "REASON"),
            [(local_time(e.at_s), e.device, e.kind, e.reason) for e in events],
            none="; ".join([f"no events{of_kinds}{part}", *hints]),
        )


def _about_none(
    api: Fleet, selector: str, where: Sequence[str], others: Callable[[], list[DeviceEvent]]
) -> list[str]:
    """Return why there may be no events: what was asked for that there is not."""
    labels = about_selector(api, selector)
    if labels or not where:
        return labels
    return about_keys(where, others())


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
    form: RecordsFormatOption = "",
    output: RecordsOutputOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Show how complete the telemetry of each enrolled device is.

    Examples:
        fleet telemetry devices --silent 10m
        fleet telemetry devices --losing --selector site=berlin
    """
    chosen = chosen_form(form, as_json=as_json, as_csv=as_csv, output=output, possible=RECORDS)
    with connect(context) as api:
        found = api.telemetry.devices(selector=selector)
        is_empty = not found and chosen.name == TABLE
        hints = about_selector(api, selector) if is_empty else []
    known = len(found)
    if silent:
        before_s = SystemClock().now_s() - parse_duration(silent, option="--silent")
        found = [each for each in found if (each.newest_at_s or 0.0) < before_s]
    if losing:
        found = [each for each in found if each.dropped or each.refused]
    kinds: list[tuple[str, Kind]] = [
        ("device", "text"), ("online", "flag"), ("newest_at_s", "number"), ("batches", "whole"),
        ("dropped", "whole"), ("refused", "whole"), ("clock_ahead_s", "number"),
    ]  # fmt: skip
    rows = [
        (e.device, e.online, e.newest_at_s, e.batches, e.dropped, e.refused, e.clock_ahead_s)
        for e in found
    ]
    if write_records(chosen, found, kinds, rows):
        return
    newest = time_heading("NEWEST", (each.newest_at_s for each in found))
    matching = f" matches {selector}" if selector else " is enrolled"
    none = f"no device{matching}"
    if known:
        none = (
            "nothing of these devices was lost" if losing else f"no device is silent for {silent}"
        )
    write_list(
        ("DEVICE", "ONLINE", newest, "BATCHES", "DROPPED", "REFUSED", "CLOCK"),
        [
            (
                each.device, each.online,
                "never" if each.newest_at_s is None else local_time(each.newest_at_s),
                each.batches, each.dropped, each.refused, clock_text(each.clock_ahead_s),
            )
            for each in found
        ],
        none="; ".join([none, *hints]),
        minor=("BATCHES",),
    )  # fmt: skip


def telemetry_dead_letters(
    context: typer.Context,
    device: Annotated[
        str,
        typer.Argument(
            metavar="DEVICE",
            help="Identifier of the device; the default is all.",
            autocompletion=completion.devices,
        ),
    ] = "",
    form: RecordsFormatOption = "",
    output: RecordsOutputOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """List batches of telemetry that could not be read or stored, and why, the newest first.

    The controller keeps five of each device, with their first bytes (--json).

    Examples:
        fleet telemetry dead-letters
        fleet telemetry dead-letters cam-berlin --json
    """
    chosen = chosen_form(form, as_json=as_json, as_csv=as_csv, output=output, possible=RECORDS)
    with connect(context) as api:
        found = api.telemetry.dead_letters(device=device)
    kinds: list[tuple[str, Kind]] = [
        ("at_s", "number"), ("device", "text"), ("size_bytes", "whole"), ("reason", "text"),
    ]  # fmt: skip
    rows = [(e.at_s, e.device, e.size_bytes, e.reason) for e in found]
    if not write_records(chosen, found, kinds, rows):
        write_list(
            (time_heading("TIME", (e.at_s for e in found)), "DEVICE", "BYTES", "REASON"),
            [(local_time(e.at_s), e.device, e.size_bytes, e.reason) for e in found],
            none=f"no dead letters{f' of {device}' if device else ''}: nothing was refused",
        )
