"""`fleet measure ...`: measures releases on lent devices, and gives their figures to builds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from controller.cli.arguments import JsonOption, parse_duration
from controller.cli.client import ApiClient, connect, segment
from controller.cli.commands import Commands, add_group
from controller.cli.errors import ArgumentError, UnreachableError
from controller.cli.output import write_json
from controller.cli.watch import EXIT_NO, PATIENCE_S, POLL_S
from controller.measure_schemas import Measurement, MeasurementPart, MeasurementRequest
from wire.clock import Clock, SystemClock
from wire.codec import convert, to_builtins, to_pretty_json
from wire.console.output import remark, write, write_fields, write_lines, write_table
from wire.console.sizes import bytes_text
from wire.console.text import local_time, plain_text
from wire.files import PUBLIC, write_atomic
from wire.measuring import FieldFile, Measured, MeasuredVariant, ProfileFigures

MJ_PER_J: Final = 1000.0
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

    Ending the command with Ctrl-C ends no measurement: `fleet measure show` shows it later.

    Examples:
        fleet measure run detector:1.0.0 --on profile=rpi4
        fleet measure run detector-1.0.0 --on lab --most-devices 3 --out figures.json
    """
    limit_s = read_limit_s(timeout)
    if Path(release).is_dir():
        from controller.cli.releases import publish_package

        release = publish_package(context, Path(release))
    body = MeasurementRequest(
        release=release, selector=selector, most_devices=most_devices, limit_s=limit_s
    )
    with connect(context) as api:
        found = measured(api, body)
        if out is not None:
            write_figures(figures_of(api, only=found.release), out)
    _show(found, as_json=as_json)
    return 0 if any(_is_measured(part) for part in found.devices) else EXIT_NO


def measured(api: ApiClient, body: MeasurementRequest) -> Measurement:
    """Ask devices to measure, and wait until all have answered or their time is over.

    Args:
        api: The controller.
        body: What to measure, and where.

    Returns:
        What came of it.

    Raises:
        FleetError: The controller refuses, or does not answer for long.
    """
    asked = api.send("POST", "/v1/measurements", Measurement, body)
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
        found = api.get(f"/v1/measurements/{segment(measurement)}", Measurement)
    _show(found, as_json=as_json)


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
        found = api.get("/v1/measurements", list[Measurement], {"limit": str(limit)})
    if as_json:
        write_json(found)
        return
    write_table(
        ("MEASUREMENT", "RELEASE", "ASKED", "DEVICES"),
        [(m.id, m.release, local_time(m.asked_at_s), _counts(m)) for m in found],
        minor=("ASKED",),
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
        write_figures(found, out)
    if as_json:
        write_json([to_builtins(each) for each in found])
        return
    write_table(
        ("PROFILE", "RELEASE", "VARIANT", "LATENCY", "MEMORY", "DEVICES", "MEASURED"),
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
        minor=("MEASURED",),
    )


def figures_of(api: ApiClient, profile: str = "", *, only: str = "") -> list[ProfileFigures]:
    """Return the figures by profile.

    Args:
        api: The controller.
        profile: Only of this kind of device; empty for all.
        only: Only of this release; empty for all.

    Returns:
        The figures.
    """
    found = api.get("/v1/measurements/figures", list[ProfileFigures], {"profile": profile})
    return [each for each in found if only in {"", each.release}]


def write_figures(figures: list[ProfileFigures], out: Path) -> None:
    """Write figures for a build; no file if there are none, which would look like a result.

    Args:
        figures: The figures.
        out: The file.

    Raises:
        ArgumentError: The file cannot be written.
    """
    if not figures:
        remark(f"there are no figures, so {out} was not written")
        return
    try:
        write_atomic(out, to_pretty_json(FieldFile(field=tuple(figures))), mode=PUBLIC)
    except OSError as exc:
        reason = (exc.strerror or str(exc)).lower()
        raise ArgumentError(f"cannot write {out}: {reason}", remedy="name another file") from exc
    remark(f"wrote {len(figures)} figures to {out}")


def read_limit_s(timeout: str, *, option: str = "--timeout") -> float:
    """Read how long to wait.

    Args:
        timeout: As typed.
        option: The option that it belongs to, for the error.

    Returns:
        Seconds.

    Raises:
        ArgumentError: It is no duration, or less than a second.
    """
    limit_s = parse_duration(timeout, option=option)
    if limit_s < 1:
        raise ArgumentError(f"{option}: less than a second is no time to measure")
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
        remark(f"the devices go on; see: fleet measure show {identifier}")
        raise


def _followed(api: ApiClient, asked: Measurement, clock: Clock) -> Measurement:
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
            found = api.get(f"/v1/measurements/{segment(asked.id)}", Measurement)
            heard_s = clock.monotonic_s()
        except UnreachableError:
            if clock.monotonic_s() - heard_s > PATIENCE_S:
                raise


def _show(found: Measurement, *, as_json: bool) -> None:
    if as_json:
        write_json(found)
        return
    write_fields(
        [
            ("measurement", found.id),
            ("release", found.release),
            ("asked", local_time(found.asked_at_s)),
            ("devices", _counts(found)),
        ]
    )
    rows = [(part, variant) for part in found.devices for variant in _variants(part)]
    if rows:
        write()
        write_table(
            (
                "DEVICE",
                "PROFILE",
                "VARIANT",
                "LATENCY",
                "IQR",
                "RELATIVE",
                "MEMORY",
                "ENERGY",
                "BUSY",
                "HEAT",
            ),
            [(part.device, part.profile, *_row(part, variant)) for part, variant in rows],
            minor=("PROFILE", "BUSY", "IQR", "ENERGY"),
        )
    for part in found.devices:
        lines = [f"{part.device}: {part.reason}"] if part.reason else []
        lines += [
            f"{part.device}: {variant.name} was not measured: {variant.reason}"
            for variant in _variants(part)
            if variant.reason
        ]
        write_lines([plain_text(line) for line in lines])


def _row(part: MeasurementPart, variant: MeasuredVariant) -> tuple[object, ...]:
    performance = variant.performance
    if performance is None:
        return (variant.name, None, None, None, None, None, None, None)
    ratio, busy = performance.relative, performance.background_cpus
    return (
        variant.name,
        f"{performance.latency_p50_ms:.3f} ms",
        None if performance.latency_iqr_ms is None else f"{performance.latency_iqr_ms:.3f} ms",
        f"{ratio.ratio:.3g} ({ratio.low:.3g} to {ratio.high:.3g})" if ratio else None,
        bytes_text(performance.peak_memory_bytes),
        f"{performance.energy_j * MJ_PER_J:.3g} mJ" if performance.energy_j else None,
        f"{busy:.1f} CPUs" if busy else None,
        _temperature(part),
    )


def _temperature(part: MeasurementPart) -> str | None:
    answer = _answer(part)
    if answer is None or answer.temperature_before_c is None:
        return None
    after = answer.temperature_after_c
    return f"{answer.temperature_before_c:.0f}" + (f" to {after:.0f} °C" if after else " °C")


def _answer(part: MeasurementPart) -> Measured | None:
    return None if part.figures is None else convert(part.figures, Measured)


def _variants(part: MeasurementPart) -> tuple[MeasuredVariant, ...]:
    answer = _answer(part)
    return () if answer is None else answer.variants


def _is_measured(part: MeasurementPart) -> bool:
    return any(variant.performance is not None for variant in _variants(part))


def _counts(found: Measurement) -> str:
    states = [str(part.state) for part in found.devices]
    return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
