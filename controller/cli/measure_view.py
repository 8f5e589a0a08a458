"""Shows what devices measured."""

from __future__ import annotations

from typing import Final

from controller.cli.output import write_json
from controller.measure_schemas import Measurement, MeasurementPart
from wire.codec import convert
from wire.console.output import write, write_fields, write_lines, write_table
from wire.console.sizes import bytes_text
from wire.console.text import local_time, plain_text
from wire.measuring import Measured, MeasuredVariant

MJ_PER_J: Final = 1000.0


def show_measurement(found: Measurement, *, as_json: bool) -> None:
    """Write a measurement.

    Args:
        found: The measurement.
        as_json: Whether as JSON.
    """
    if as_json:
        write_json(found)
        return
    write_fields(
        [
            ("measurement", found.id),
            ("release", found.release),
            ("asked", local_time(found.asked_at_s)),
            ("devices", counts(found)),
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


def is_measured(part: MeasurementPart) -> bool:
    """Tell whether a device measured any variant."""
    return any(variant.performance is not None for variant in _variants(part))


def counts(found: Measurement) -> str:
    """Return how many devices are in each state."""
    states = [str(part.state) for part in found.devices]
    return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
