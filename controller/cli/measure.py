"""`fleet measure ...`: measures releases on lent devices, and gives their figures to builds."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from controller.cli import completion
from controller.cli.arguments import JsonOption, parse_duration
from controller.cli.commands import Commands, add_group
from controller.cli.connecting import connect
from controller.cli.ending import EXIT_NO
from controller.cli.errors import ArgumentError
from controller.cli.lists import time_heading
from controller.cli.measure_view import counts, is_measured, show_measurement
from controller.cli.output import write_json
from controller.cli.repeating import PATIENCE_S
from controller.cli.watch import POLL_S
from controller.client.errors import UnreachableError
from controller.client.fleet import Fleet
from controller.measure_schemas import MAX_LIMIT_S, Measurement, MeasurementRequest
from wire.clock import Clock, SystemClock
from wire.codec import to_builtins, to_pretty_json
from wire.console.output import remark, write, write_table
from wire.console.sizes import bytes_text
from wire.console.text import local_time, plain_text
from wire.files import write_named
from wire.measuring import FieldFile, ProfileFigures

NAMED: Final = 20
"""Devices that were not asked, with the reason."""

MeasurementArgument = Annotated[
    str, typer.Argument(metavar="MEASUREMENT", help="Identifier of the measurement.")
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        help="Write the figures by profile to a file, for `fleet build --measurements`.",
        metavar="FILE",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    commands: Commands = {
        "run": measure_run,
        "show": measure_show,
        "list": measure_list,
        "figures": measure_figures,
        "cancel": measure_cancel,
    }
    add_group(app, "measure", "Measure releases on lent devices.", commands)


def measure_run(
    context: typer.Context,
    release: Annotated[
        str,
        typer.Argument(
            metavar="RELEASE",
            help="name:version or a digest of a published release, or the directory of a signed "
            "package, which is then published.",
        ),
    ],
    selector: Annotated[
        str,
        typer.Option(
            "--on",
            help="The devices, such as site=berlin,profile=rpi4; only lent ones are asked.",
            metavar="SELECTOR",
            autocompletion=completion.selectors,
        ),
    ],
    most_devices: Annotated[
        int,
        typer.Option(help="Ask at most so many devices.", metavar="N", min=1, max=1000),
    ] = 10,
    timeout: Annotated[
        str, typer.Option(help="How long to wait for the devices.", metavar="TIME")
    ] = "10m",
    out: OutOption = None,
    as_json: JsonOption = False,
) -> int:
    """Measure a release on lent devices, while they go on serving.

    Each device downloads the release as for an install, measures each variant that it can run, and
    removes it. Nothing is installed. Devices that are not lent, are offline or cannot take the
    release are not asked; a hot device, or one whose battery is low, refuses.

    Ending the command with Ctrl-C ends no measurement: `fleet measure show` shows it later, and
    `fleet measure cancel` waits for it no longer.

    Examples:
        fleet measure run detector:1.0.0 --on profile=rpi4
        fleet measure run detector-1.0.0 --on lab --most-devices 3 --out figures.json
    """
    limit_s = read_limit_s(timeout)
    if out is not None:
        check_writable(out)
    if Path(release).is_dir():
        from controller.cli.publishing import publish_package

        with connect(context) as api:
            check_askable(api, selector)  # a release stays for good
        release = publish_package(context, Path(release))
    body = MeasurementRequest(
        release=release, selector=selector, most_devices=most_devices, limit_s=limit_s
    )
    with connect(context) as api:
        found = measured(api, body)
        profiles = {part.profile for part in found.devices if is_measured(part)}
        if out is not None:
            told = figures_of(api, only=found.release)
            _keep([each for each in told if each.profile in profiles], out)
    show_measurement(found, as_json=as_json)
    return 0 if profiles else EXIT_NO


def check_askable(api: Fleet, selector: str) -> None:
    """Refuse a selector by which no device could be asked now.

    Args:
        api: The controller.
        selector: A label expression.

    Raises:
        FleetError: The controller refuses it, or does not answer.
    """
    api.measurements.askable(selector)


def measured(api: Fleet, body: MeasurementRequest) -> Measurement:
    """Ask devices to measure, and wait until all have answered or their time is over.

    Args:
        api: The controller.
        body: What to measure, and where.

    Returns:
        What came of it.

    Raises:
        FleetError: The controller refuses, or does not answer for long.
    """
    asked = api.measurements.ask(body)
    for device, reason in list(asked.not_asked.items())[:NAMED]:
        remark(f"{plain_text(device)} is not asked: {plain_text(reason)}")
    if (more := len(asked.not_asked) - NAMED) > 0:
        remark(f"{more} more are not asked")
    with _told_how_to_look(asked.id):
        return _followed(api, asked, SystemClock())


def measure_show(
    context: typer.Context, measurement: MeasurementArgument, as_json: JsonOption = False
) -> None:
    """Show what devices measured.

    Examples:
        fleet measure show m0123456789
    """
    with connect(context) as api:
        found = api.measurements.get(measurement)
    show_measurement(found, as_json=as_json)


def measure_list(
    context: typer.Context,
    limit: Annotated[
        int, typer.Option(help="Show at most so many.", metavar="N", min=1, max=1000)
    ] = 20,
    as_json: JsonOption = False,
) -> None:
    """List measurements, the newest first.

    Examples:
        fleet measure list
    """
    with connect(context) as api:
        found = api.measurements.list(limit=limit)
    if as_json:
        write_json(found)
        return
    asked = time_heading("ASKED", (m.asked_at_s for m in found))
    write_table(
        ("MEASUREMENT", "RELEASE", asked, "DEVICES"),
        [(m.id, m.release, local_time(m.asked_at_s), counts(m)) for m in found],
        minor=(asked,),
    )


def measure_figures(
    context: typer.Context,
    profile: Annotated[
        str, typer.Option(help="Only of this kind of device.", metavar="PROFILE")
    ] = "",
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what variants needed on the devices of each profile.

    Each figure is the middle one of the devices that measured the variant; from three devices of a
    profile on, three must have measured it. A build that gets them with --measurements uses them
    for the same files.

    Examples:
        fleet measure figures --profile rpi4
        fleet measure figures --out figures.json
    """
    with connect(context) as api:
        found = figures_of(api, profile)
    if out is not None:
        _keep(found, out)
    if as_json:
        write_json([to_builtins(each) for each in found])
        return
    measured = time_heading("MEASURED", (each.figures.at_s for each in found))
    write_table(
        ("PROFILE", "RELEASE", "VARIANT", "LATENCY", "MEMORY", "DEVICES", measured),
        [
            (
                each.profile,
                each.release,
                each.variant,
                f"{each.figures.performance.latency_p50_ms:.3f} ms",
                bytes_text(each.figures.performance.peak_memory_bytes),
                each.figures.devices,
                local_time(each.figures.at_s),
            )
            for each in found
        ],
        minor=(measured,),
    )


def figures_of(api: Fleet, profile: str = "", *, only: str = "") -> list[ProfileFigures]:
    """Return the figures by profile.

    Args:
        api: The controller.
        profile: Only of this kind of device; empty for all.
        only: Only of this release; empty for all.

    Returns:
        The figures.
    """
    found = api.measurements.figures(profile=profile)
    return [each for each in found if only in {"", each.release}]


def measure_cancel(context: typer.Context, measurement: MeasurementArgument) -> None:
    """Wait no longer for devices that have not answered.

    They can be asked again then. A device that measures already goes on until it has finished, and
    what it answers still counts; until then it refuses another request.

    Examples:
        fleet measure cancel m0123456789
    """
    with connect(context) as api:
        found = api.measurements.cancel(measurement)
    write(f"measurement {found.id}: {counts(found)}")


def write_figures(figures: list[ProfileFigures], out: Path) -> None:
    """Write figures for a build.

    Args:
        figures: The figures.
        out: The file.

    Raises:
        ArgumentError: The file cannot be written.
    """
    with _writing(out):
        write_named(out, to_pretty_json(FieldFile(field=tuple(figures))))


def check_writable(out: Path) -> None:
    """Refuse a file that cannot be written, before devices work for it.

    Args:
        out: The file.

    Raises:
        ArgumentError: It cannot be written.
    """
    if out.is_dir():
        raise ArgumentError(f"{out} is a directory", remedy="name a file")
    with _writing(out), tempfile.TemporaryFile(dir=out.parent):
        pass


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    """Name the file that cannot be written.

    Raises:
        ArgumentError: It cannot be written.
    """
    try:
        yield
    except OSError as exc:
        reason = (exc.strerror or str(exc)).lower()
        raise ArgumentError(f"cannot write {out}: {reason}", remedy="name another file") from exc


def _keep(figures: list[ProfileFigures], out: Path) -> None:
    """Write figures and say so; no file if there are none, which would look like a result.

    Raises:
        ArgumentError: The file cannot be written.
    """
    if not figures:
        remark(f"there are no figures, so {out} was not written")
        return
    write_figures(figures, out)
    remark(f"wrote {len(figures)} figures to {out}")


def read_limit_s(timeout: str, *, option: str = "--timeout") -> float:
    """Read how long to wait.

    Args:
        timeout: As typed.
        option: The option that it belongs to, for the error.

    Returns:
        Seconds.

    Raises:
        ArgumentError: It is no duration, less than a second or more than a day.
    """
    limit_s = parse_duration(timeout, option=option)
    if not 1 <= limit_s <= MAX_LIMIT_S:
        raise ArgumentError(
            f"{option}: {timeout!r} is less than a second or more than a day",
            remedy=f"give such as {option} 10m, and at most 1d",
        )
    return limit_s


@contextmanager
def _told_how_to_look(identifier: str) -> Iterator[None]:
    """Say at an interrupt that the devices go on.

    Raises:
        KeyboardInterrupt: The user ended the command.
    """
    try:
        yield
    except KeyboardInterrupt:
        remark(
            f"the devices go on; see: fleet measure show {identifier}, or wait no longer: fleet "
            f"measure cancel {identifier}"
        )
        raise


def _followed(api: Fleet, asked: Measurement, clock: Clock) -> Measurement:
    """Wait until every device has answered, or its time is over.

    Raises:
        UnreachableError: The controller does not answer for long.
    """
    found, last = asked, dict[str, str]()
    heard_s = clock.monotonic_s()
    while True:
        for part in found.devices:
            if last.get(part.device) != part.state:
                last[part.device] = part.state
                reason = f": {plain_text(part.reason)}" if part.reason else ""
                remark(f"{plain_text(part.device)} {part.state}{reason}")
        if all(part.answered_at_s is not None for part in found.devices):
            return found
        clock.sleep(POLL_S)
        try:
            found = api.measurements.get(asked.id)
            heard_s = clock.monotonic_s()
        except UnreachableError:
            if clock.monotonic_s() - heard_s > PATIENCE_S:
                raise
