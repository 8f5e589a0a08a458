"""`fleet telemetry drift`: whether requests and answers are still those of the evaluation."""

from __future__ import annotations

from typing import Annotated

import typer

from controller.cli.arguments import JsonOption
from controller.cli.client import connect
from controller.cli.formats import (
    RECORDS,
    CsvOption,
    Kind,
    OutputOption,
    RecordsFormatOption,
    chosen_form,
    write_records,
)
from controller.cli.questions import SelectorOption, SinceOption, UnitOption, UntilOption
from controller.schemas import DriftPart, ReleaseDrift
from wire.console.output import table_lines, write, write_exact, write_lines

KINDS: tuple[tuple[str, Kind], ...] = (
    ("variant", "text"),
    ("tensor", "text"),
    ("measure", "text"),
    ("stability_index", "number"),
    ("distance", "number"),
    ("samples", "number"),
    ("devices", "whole"),
    ("units", "whole"),
    ("chance", "number"),
    ("moved", "text"),
)


def telemetry_drift(  # noqa: PLR0913, PLR0917 - one parameter for each option
    context: typer.Context,
    release: Annotated[
        str, typer.Argument(metavar="RELEASE", help="Digest or NAME:VERSION of the release.")
    ],
    variant: Annotated[
        str, typer.Option(metavar="NAME", help="Only this variant; the default is all.")
    ] = "",
    selector: SelectorOption = "",
    unit: UnitOption = "",
    since: SinceOption = "1d",
    until: UntilOption = "",
    form: RecordsFormatOption = "",
    output: OutputOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Compare what devices ask and answer with the evaluation that the package carries.

    A device is one observation, however many requests it answered; with --unit site all devices of
    a site are one. With few of them nothing can be told, and that is said.

    Examples:
        fleet telemetry drift digits:1.1.0
        fleet telemetry drift digits:1.1.0 --selector site=berlin --since 7d
    """
    chosen = chosen_form(form, as_json=as_json, as_csv=as_csv, output=output, possible=RECORDS)
    asked = {
        "release": release, "variant": variant, "selector": selector, "since": since,
        "until": until, "unit": unit,
    }  # fmt: skip
    with connect(context) as api:
        found = api.get("/v1/telemetry/drift", ReleaseDrift, asked)
    records: list[tuple[object, ...]] = [
        (
            p.variant,
            p.tensor,
            p.measure,
            p.stability_index,
            p.distance,
            p.samples,
            p.devices,
            p.units,
            p.chance,
            _verdict(p),
        )
        for p in found.parts
    ]
    if write_records(chosen, found, KINDS, records):
        return
    columns = (
        "VARIANT",
        "TENSOR",
        "MEASURE",
        "PSI",
        "DISTANCE",
        "SAMPLES",
        "DEVICES",
        "UNITS",
        "MOVED",
    )
    rows = [
        (
            p.variant,
            p.tensor,
            p.measure,
            f"{p.stability_index:.3f}",
            f"{p.distance:.3f}",
            round(p.samples),
            p.devices,
            p.units,
            _verdict(p),
        )
        for p in found.parts
    ]
    if rows:
        for line in table_lines(columns, rows, right=columns[3:5]).lines:
            write_exact(line)
        write()
    write_lines([_said(found)])


def _verdict(part: DriftPart) -> str:
    if part.chance is None:
        return "unknown"
    return "yes" if part.moved else "no"


def _said(found: ReleaseDrift) -> str:
    """Return what the answer says, in one sentence."""
    if not found.variants:
        return f"{found.release} carries no evaluation to compare with; packages built anew do"
    if not found.parts:
        return "no device has counted requests in this time"
    moved = [f"{p.measure} of {p.tensor} ({p.variant})" for p in found.parts if p.moved]
    if moved:
        return f"beyond what chance gives: {', '.join(moved)}"
    if all(part.chance is None for part in found.parts):
        return "too few devices or units have counted requests to tell whether they moved"
    return "nothing has moved beyond what chance gives"
