"""The header of a recording: the figures of the board, its source, and what it lacks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from agent.errors import ReplayError
from agent.replay.board import WH_J, Board
from agent.replay.recording import Sample, Terms
from agent.replay.trace_file import read_file
from agent.replay.traces import Header
from wire.codec import MAX_JSON_BYTES, from_json, to_builtins, to_json
from wire.errors import WireFormatError
from wire.health import HealthSnapshot
from wire.profile import NAME_PATTERN, DeviceProfile, ThermalLimits

THROTTLE_SPAN_C: Final = 5.0
"""Boards begin to throttle this far below severe, as the Raspberry Pi's firmware does."""


def board_of(profile: DeviceProfile, health: HealthSnapshot, file: Path | None) -> Board:
    """Return the figures of a board: from a file, else from the profile and the sensors.

    Args:
        profile: The profile of this device.
        health: The first readings; the model starts from them.
        file: JSON with some keys of a trace's board, or None.

    Returns:
        The board.

    Raises:
        ReplayError: The file cannot be read, or is not what it should be.
    """
    limits = _limits(profile, health)
    known = Board(
        limits=limits,
        throttle_c=limits.severe_c - THROTTLE_SPAN_C,
        slowest_c=limits.severe_c,
        battery_wh=_capacity_wh(health),
        memory_bytes=health.memory_total_bytes or profile.memory_bytes,
        cpu_share=min(profile.threads / max(profile.cpu_count, 1), 1.0),
    )
    if file is not None:
        remedy = "name a JSON file with keys of a trace's board"
        data = read_file(file, remedy, MAX_JSON_BYTES)
        try:
            known = from_json(to_json(to_builtins(known) | from_json(data, dict)), Board)
        except WireFormatError as exc:
            raise ReplayError(f"{file}: {exc.message}", remedy=remedy) from exc
        if faults := known.faults():
            raise ReplayError(f"{file}: {faults[0]}", remedy="docs/traces.md describes the keys")
        if known.case is not None:
            raise ReplayError(
                f"{file}: case: the ambient temperature can be estimated only without one",
                remedy="give `thermal` the resistance and time constant of the board as a whole",
            )
    first_c, charge_ratio = health.temperature_c, health.battery_ratio
    return msgspec.structs.replace(
        known,
        start_c=known.start_c if first_c is None else first_c,
        start_charge_ratio=known.start_charge_ratio if charge_ratio is None else charge_ratio,
    )


def _limits(profile: DeviceProfile, health: HealthSnapshot) -> ThermalLimits:
    severe_c = health.severe_c
    if severe_c is None or severe_c <= profile.thermal.nominal_c:
        return profile.thermal
    return msgspec.structs.replace(profile.thermal, severe_c=severe_c)


def _capacity_wh(health: HealthSnapshot) -> float | None:
    capacity_j = health.battery_capacity_j
    return None if capacity_j is None or capacity_j <= 0.0 else round(capacity_j / WH_J, 3)


class Maker(NamedTuple):
    """The source of a recording."""

    device: str
    profile: str
    day: str


def header_of(
    name: str,
    maker: Maker,
    terms: Terms,
    sample: Sample,
    *,
    deadline_ms: float,
    begins_local_s: float,
) -> Header:
    """Return the first line of a recording.

    Args:
        name: Name of the trace.
        maker: The source of the recording.
        terms: The constants of the trace.
        sample: The first sample.
        deadline_ms: Time within which the application needs an answer.
        begins_local_s: Local time of day of the first sample, in seconds since midnight.

    Returns:
        The header, whose source says what is estimated and how.
    """
    plant = terms.board.thermal
    ambient = (
        f"ambient_c is estimated: with it, a model board of {plant.resistance_c_per_w:g} C/W, "
        f"{plant.time_constant_s:g} s and {plant.idle_w:g} to {plant.busy_w:g} W gets as "
        "warm as this device"
        if sample.sensed.temperature_c is not None
        else "ambient_c is assumed: no temperature was read"
    )
    serving = sample.figures.variant if sample.figures else None
    demand = (
        f"demand and slowdown are from the agent's counters ({serving or 'nothing'} served first)"
        if sample.figures
        else "demand_per_s is 0: no agent answered at the start"
    )
    return Header(
        trace=1,
        at_work=serving is not None,
        name=name if NAME_PATTERN.fullmatch(name) else "recording",
        profile=maker.profile,
        period_s=terms.period_s,
        origin="recorded",
        source=f"device {maker.device}, {maker.day}; {ambient}; {demand}",
        deadline_ms=deadline_ms,
        begins_local_s=begins_local_s,
        board=terms.board,
    )


def lacks(sample: Sample, health: HealthSnapshot, board: Board, *, fault: str) -> Iterator[str]:
    """Say what a recording will lack.

    Args:
        sample: The first sample.
        health: The first readings.
        board: The figures of the board.
        fault: Why no agent answered, if none did.

    Yields:
        One line for each missing thing.
    """
    if sample.figures is None:
        yield f"{fault}: without it the trace has no demand and no slowdown"
    elif sample.figures.variant is not None and not sample.figures.declared_ms:
        yield f"{sample.figures.variant} declares no latency: the trace has no slowdown"
    if sample.sensed.temperature_c is None:
        yield "no temperature can be read: the trace has an assumed ambient temperature"
    if sample.busy_s is None:
        yield "the processor's load cannot be read: the trace has no load of other processes"
    if health.battery_ratio is not None and board.battery_wh is None:
        yield "the battery's capacity cannot be read: give battery_wh with --board"
