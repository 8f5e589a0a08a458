"""Traces: a device's environment over time, for the replay of policies. Pure.

A trace is JSON Lines, UTF-8. The first line is a `Header`, each further one a `Tick`:

```json
{"trace":1,"name":"lab-3","profile":"rpi4","period_s":1,"origin":"synthetic","source":"...",
 "deadline_ms":50,"board":{"throttle_c":80}}
{"at_s":0,"inputs":{"ambient_c":25,"demand_per_s":10},"sensed":{"temperature_c":41.5}}
{"at_s":1,"inputs":{"ambient_c":25,"demand_per_s":10},"sensed":{"temperature_c":null}}
```

(In a file the header is one line; it is broken here only for reading.) `inputs` comes from outside
and the policy cannot change it (`agent.replay.board.Inputs`). `board` describes the board for the
model (`agent.replay.board.Board`). `requests` says how requests arrive
(`agent.replay.requests.Requests`); without it they are a flow of `demand_per_s`. `sensed` is what
the agent read at that time, while another variant may have served. A replay computes the readings
anew from the model; from the recorded ones it takes only which were missing.

Rules:
- Ticks are `period_s` apart, the first at 0. Doubtful lines are refused with line and fault.
- Unknown keys are refused; a reading that is null or absent is missing.
- `origin` says whether a device recorded the trace or it is synthetic, `source` from what.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, Literal, TypeVar

import msgspec

from agent.replay.board import MOST_MEMORY_BYTES, Board, Inputs
from agent.replay.heat import COLDEST_C, HOTTEST_C, MAX
from agent.replay.requests import Request, Requests, arrivals
from agent.replay.sensors import SensorError, sensor_errors
from wire.codec import from_json
from wire.durations import DAY_S
from wire.errors import WireFormatError
from wire.profile import NAME_PATTERN

TRACE_VERSION: Final = 1
MAX_BYTES: Final = 64 * 1024 * 1024
MAX_LINE_BYTES: Final = 8192
MAX_TICKS: Final = 100_000
"""A day at 1 Hz is 86,400."""

MAX_PERIOD_S: Final = 3600.0
MAX_SAMPLINGS: Final = 1000.0
"""Of a governor in a tick."""

MAX_TIME_CONSTANTS: Final = 10.0
"""A longer tick would hide what happens on the board."""

MAX_REQUESTS: Final = 5_000_000
"""Single requests in a whole trace, on average: a day at 50 Hz."""

TOLERANCE_S: Final = 1e-3
MW_PER_W: Final = 1000.0
LONGEST_DEADLINE_MS: Final = 1e9
"""As the longest latency of a variant: about 12 days."""

T = TypeVar("T", bound=msgspec.Struct)


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line of a trace."""

    trace: Literal[1]
    """Version of the format."""

    name: str
    profile: str
    """Profile of the device that recorded it, or that it imitates."""

    period_s: float
    origin: Literal["recorded", "synthetic"]
    source: str
    """Where it was recorded; for a synthetic trace, what it imitates and what made it."""

    deadline_ms: float
    """Time within which the application needs an answer."""

    begins_local_s: float = 0.0
    """Local time of day at the first tick, in seconds since midnight."""

    at_work: bool = False
    """Whether the device served at the beginning: then the first chosen variant is loaded."""

    board: Board = Board()
    requests: Requests = Requests()
    """How requests arrive; by default they are a flow of `demand_per_s`."""


class Sensed(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """What the agent read; None for missing readings. Names as in `wire.health`."""

    temperature_c: float | None = None
    cpu_frequency_ratio: float | None = None
    battery_ratio: float | None = None
    battery_discharging: bool | None = None
    power_mw: float | None = None
    memory_available_bytes: int | None = None
    load_ratio: float | None = None

    def faults(self) -> tuple[str, ...]:
        """Return the readings that the agent would not have believed."""
        most = {
            "temperature_c": (COLDEST_C, HOTTEST_C),
            "cpu_frequency_ratio": (0.0, 1.0),
            "battery_ratio": (0.0, 1.0),
            "power_mw": (0.0, MAX * MW_PER_W),
            "memory_available_bytes": (0, MOST_MEMORY_BYTES),
            "load_ratio": (0.0, MAX),
        }
        return tuple(
            f"{name} is not within {least:.9g} to {greatest:.9g}"
            for name, (least, greatest) in most.items()
            if (value := getattr(self, name)) is not None and not least <= value <= greatest
        )


class Tick(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One line of a trace; it holds for one period."""

    at_s: float
    inputs: Inputs
    sensed: Sensed | None = None
    """None if no readings were recorded: a replay then assumes that every sensor works."""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A trace as a whole."""

    header: Header
    ticks: tuple[Tick, ...]

    @property
    def duration_s(self) -> float:
        """Its length in seconds."""
        return len(self.ticks) * self.header.period_s

    def arrivals(self) -> Iterator[tuple[Request, ...] | None]:
        """Yield the requests of each tick; None for each if they are a flow."""
        demands_per_s = (tick.inputs.demand_per_s for tick in self.ticks)
        return arrivals(self.header.requests, demands_per_s, self.header.period_s)

    def sensor_errors(self) -> Iterator[SensorError]:
        """Yield what is random about the readings of each tick."""
        return sensor_errors(self.header.board.sensors, len(self.ticks), self.header.period_s)


def trace_from_bytes(data: bytes) -> Trace:
    """Read a trace.

    Args:
        data: The bytes of the file.

    Returns:
        The trace.

    Raises:
        WireFormatError: It is not a trace; the error names the line and the fault.
    """
    if len(data) > MAX_BYTES:
        raise WireFormatError(f"trace: {len(data)} bytes is over the limit of {MAX_BYTES}")
    lines = data.split(b"\n")
    if lines[-1]:
        # Before the third line there is no tick yet.
        whole = len(lines) > 2  # noqa: PLR2004
        raise WireFormatError(
            f"trace: line {len(lines)}: is cut off: it has no newline at its end",
            remedy="remove that line: the lines before it are a complete trace" if whole else "",
        )
    del lines[-1]
    if not 2 <= len(lines) <= MAX_TICKS + 1:  # noqa: PLR2004 - a header and one tick
        raise WireFormatError(
            f"trace: {len(lines)} lines; a header and 1 to {MAX_TICKS} ticks are needed"
        )
    header = _decode(lines[0], 1, Header)
    _refuse(1, _header_faults(header))
    ticks, expected = [], 0.0
    for number, line in enumerate(lines[1:], start=2):
        tick = _decode(line, number, Tick)
        _refuse(number, _tick_faults(tick, (number - 2) * header.period_s))
        expected += tick.inputs.demand_per_s * header.period_s
        if header.requests.arrivals != "fluid" and expected > MAX_REQUESTS:
            _refuse(number, (f"over {MAX_REQUESTS} requests until here; only a flow has more",))
        ticks.append(tick)
    return Trace(header=header, ticks=tuple(ticks))


def trace_to_bytes(trace: Trace) -> bytes:
    """Write a trace; equal traces give equal bytes."""
    rows: tuple[msgspec.Struct, ...] = (trace.header, *trace.ticks)
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)


def _decode(line: bytes, number: int, kind: type[T]) -> T:
    try:
        return from_json(line, kind, limit_bytes=MAX_LINE_BYTES)
    except WireFormatError as exc:
        raise WireFormatError(f"trace: line {number}: {exc.message}") from exc


def _refuse(number: int, faults: tuple[str, ...]) -> None:
    if faults:
        raise WireFormatError(f"trace: line {number}: {faults[0]}")


def _header_faults(header: Header) -> tuple[str, ...]:
    board = header.board
    longest_s = min(MAX_PERIOD_S, MAX_TIME_CONSTANTS * board.thermal.time_constant_s)
    if board.governor is not None:
        longest_s = min(longest_s, MAX_SAMPLINGS * board.governor.interval_s)
    rules = (
        (NAME_PATTERN.fullmatch(header.name) is not None, "name is not a plain name"),
        (NAME_PATTERN.fullmatch(header.profile) is not None, "profile is not a plain name"),
        (bool(header.source.strip()), "source is empty"),
        (
            0.0 < header.deadline_ms <= LONGEST_DEADLINE_MS,
            f"deadline_ms is not above 0 and at most {LONGEST_DEADLINE_MS:g}",
        ),
        (0.0 <= header.begins_local_s < DAY_S, "begins_local_s is not within 0 to 86400"),
    )
    faults = tuple(text for holds, text in rules if not holds)
    faults += tuple(f"board: {text}" for text in board.faults())
    faults += tuple(f"requests: {text}" for text in header.requests.faults())
    if not 0.01 <= header.period_s <= longest_s:  # noqa: PLR2004 - no sensor is read at over 100 Hz
        faults += (f"period_s is not within 0.01 to {longest_s:g}",)
    return faults


def _tick_faults(tick: Tick, expected_s: float) -> tuple[str, ...]:
    faults = tuple(f"inputs: {text}" for text in tick.inputs.faults())
    if tick.sensed is not None:
        faults += tuple(f"sensed: {text}" for text in tick.sensed.faults())
    if not math.isclose(tick.at_s, expected_s, rel_tol=1e-9, abs_tol=TOLERANCE_S):
        faults = (f"at_s is {tick.at_s:g} where {expected_s:g} follows", *faults)
    return faults
