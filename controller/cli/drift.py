"""`fleet telemetry drift`: whether requests and answers are still those of the evaluation."""

from __future__ import annotations

from typing import Annotated

import typer

from controller.cli import completion
from controller.cli.arguments import JsonOption
from controller.cli.connecting import connect
from controller.cli.errors import ArgumentError
from controller.cli.formats import (
    RECORDS,
    CsvOption,
    Form,
    Kind,
    RecordsFormatOption,
    RecordsOutputOption,
    chosen_form,
    write_records,
)
from controller.cli.questions import (
    SelectorOption,
    SinceOption,
    UnitOption,
    UntilOption,
    times_asked,
)
from controller.drift_schemas import DriftingDevices, DriftPart, ReleaseDrift
from wire.console.output import table_lines, write, write_exact, write_lines

NOTHING_COUNTED = (
    "no device has counted samples of what it is asked and answers in this time "
    "(model_samples_total): agents do while they answer, simulated devices do not"
)

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


DEVICE_KINDS: tuple[tuple[str, Kind], ...] = (
    ("device", "text"),
    ("variant", "text"),
    ("tensor", "text"),
    ("measure", "text"),
    ("stability_index", "number"),
    ("by_chance", "number"),
    ("samples", "number"),
)


def telemetry_drift(  # noqa: PLR0913, PLR0917 - one parameter for each option
    context: typer.Context,
    release: Annotated[
        str,
        typer.Argument(
            metavar="RELEASE",
            help="Digest or NAME:VERSION of the release.",
            autocompletion=completion.releases,
        ),
    ],
    variant: Annotated[
        str, typer.Option(metavar="NAME", help="Only this variant; the default is all.")
    ] = "",
    selector: SelectorOption = "",
    unit: UnitOption = "",
    by_device: Annotated[
        bool, typer.Option("--by-device", help="List the devices that moved furthest instead.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, max=1000, help="With --by-device: how many; 20 without it.")
    ] = None,
    since: SinceOption = "1d",
    until: UntilOption = "",
    form: RecordsFormatOption = "",
    output: RecordsOutputOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Compare what devices ask and answer with the evaluation that the package carries.

    A device is one observation, however many requests it answered; with --unit site all devices of
    a site are one. With few of them nothing can be told, and that is said. Of one device nobody can
    tell whether it moved by chance: --by-device names where to look.

    Examples:
        fleet telemetry drift digits:1.1.0
        fleet telemetry drift digits:1.1.0 --by-device --limit 5
        fleet telemetry drift digits:1.1.0 --selector site=berlin --since 7d
    """
    chosen = chosen_form(form, as_json=as_json, as_csv=as_csv, output=output, possible=RECORDS)
    since, until = times_asked(since, until)
    _check_options(by_device=by_device, unit=unit, limit=limit)
    if by_device:
        with connect(context) as api:
            moved = api.telemetry.drifting_devices(
                release, variant=variant, selector=selector, since=since, until=until,
                limit=limit or 20,
            )  # fmt: skip
        _show_devices(moved, chosen)
        return
    with connect(context) as api:
        found = api.telemetry.drift(
            release, variant=variant, selector=selector, since=since, until=until, unit=unit
        )
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


def _check_options(*, by_device: bool, unit: str, limit: int | None) -> None:
    """Refuse options that do not go with each other.

    Raises:
        ArgumentError: Two do not.
    """
    if by_device and unit:
        raise ArgumentError("--unit does not go with --by-device", remedy="leave one of them out")
    if limit is not None and not by_device:
        raise ArgumentError("--limit goes with --by-device alone", remedy="add --by-device")


def _show_devices(found: DriftingDevices, chosen: Form) -> None:
    """Show the devices that moved furthest."""
    records = [
        (d.device, d.variant, d.tensor, d.measure, d.stability_index, d.by_chance, d.samples)
        for d in found.devices
    ]
    if write_records(chosen, found, DEVICE_KINDS, records):
        return
    # By their ratio they are in order, which the rounded figures need not show.
    columns = ("DEVICE", "VARIANT", "TENSOR", "MEASURE", "PSI", "BY CHANCE", "RATIO", "SAMPLES")
    rows = [
        (
            *names,
            f"{index:.3f}",
            f"{expected:.4f}",
            f"{index / expected if expected else 0.0:.2f}",
            round(samples),
        )
        for *names, index, expected, samples in records
    ]
    if rows:
        for line in table_lines(columns, rows, right=columns[4:7]).lines:
            write_exact(line)
        return
    write_lines(
        [
            f"{found.release} carries no evaluation to compare with; packages built anew do"
            if not found.variants
            else "no device has counted enough samples of what it is asked and answers"
        ]
    )


def _verdict(part: DriftPart) -> str:
    if part.chance is None:
        return "unknown"
    return "yes" if part.moved else "no"


def _said(found: ReleaseDrift) -> str:
    """Return what the answer says, in one sentence."""
    if not found.variants:
        return f"{found.release} carries no evaluation to compare with; packages built anew do"
    if not found.parts:
        return NOTHING_COUNTED
    moved = [f"{p.measure} of {p.tensor} ({p.variant})" for p in found.parts if p.moved]
    if moved:
        return f"beyond what chance gives: {', '.join(moved)}"
    unknown = [part for part in found.parts if part.chance is None]
    if not unknown:
        return "nothing has moved beyond what chance gives"
    why = " or ".join(dict.fromkeys(part.lacks or "too few have counted" for part in unknown))
    if len({part.variant for part in found.parts}) > 1:
        why += "; each variant is judged alone"
    if len(unknown) == len(found.parts):
        return f"whether they moved cannot be told: {why}"
    return f"nothing has moved beyond what chance gives; of the unknown it cannot be told: {why}"
