"""Makes the traces that come with the agent: `python -m tests.simulators.make_traces`.

All are synthetic: nobody recorded them. Each imitates a situation in the open; its figures are
round numbers of the right order, not measurements. Readings are what the plant model gives while
the variant `RECORDED_WITH` serves.

Rules:
- Equal every time: noise comes from a seeded generator, and figures are rounded.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from agent.cli.replay import EXAMPLE, VariantList
from agent.replay.board import Board, Inputs
from agent.replay.controllers import Fan
from agent.replay.plant import ThermalPlant
from agent.replay.run import replay
from agent.replay.trace_file import SHIPPED, SUFFIX
from agent.replay.traces import Header, Sensed, Tick, Trace, trace_to_bytes
from wire.codec import from_json
from wire.policy import PolicySpec
from wire.profile import ThermalLimits

MIB = 1024 * 1024
HOUR_S = 3600.0
RECORDED_WITH = "int8"
NOTHING: frozenset[str] = frozenset()

RPI4 = Board(
    thermal=ThermalPlant(resistance_c_per_w=8.0, time_constant_s=180.0, idle_w=2.7, busy_w=6.4),
    limits=ThermalLimits(nominal_c=50.0, severe_c=80.0),
    memory_bytes=2048 * MIB,
    start_c=50.0,
)
SMALL = msgspec.structs.replace(
    RPI4,
    thermal=ThermalPlant(resistance_c_per_w=8.0, time_constant_s=30.0, idle_w=2.7, busy_w=6.4),
)
"""The same board without its heat spreader: it follows the load within half a minute."""


class Scenario(NamedTuple):
    """A trace to make."""

    name: str
    imitates: str
    period_s: float
    ticks: int
    inputs: Callable[[float], Inputs]
    board: Board = RPI4
    profile: str = "rpi4"
    deadline_ms: float = 500.0
    lost: Callable[[float], frozenset[str]] = lambda _at_s: NOTHING
    begins_local_s: float = 0.0


def hot_afternoon(at_s: float) -> Inputs:
    ambient = 26.0 + 16.0 * math.sin(math.pi * at_s / (4 * HOUR_S))
    return Inputs(ambient_c=round(ambient, 2), demand_per_s=5.5)


def fan(at_s: float) -> Inputs:
    busy = at_s % 240.0 < 160.0
    return Inputs(ambient_c=34.0, demand_per_s=5.5 if busy else 1.0, other_share=0.1)


def battery_day(at_s: float) -> Inputs:
    hour = 6.0 + at_s / HOUR_S
    sun = max(0.0, math.sin(math.pi * (hour - 8.0) / 9.0)) if 8.0 < hour < 17.0 else 0.0
    return Inputs(
        ambient_c=round(14.0 + 8.0 * math.sin(math.pi * (hour - 9.0) / 12.0), 2),
        demand_per_s=4.0 if 7.0 <= hour < 22.0 else 0.5,
        charger_w=round(7.0 * sun, 2),
    )


def memory_bursts(at_s: float) -> Inputs:
    in_burst = at_s % 75.0 >= 45.0
    grows_s = at_s % 75.0 - 45.0
    taken = min(520.0, 60.0 * (grows_s + 1.0)) if in_burst else 0.0
    return Inputs(
        ambient_c=24.0, demand_per_s=3.0, other_share=0.15 if in_burst else 0.0,
        memory_bytes=round(760.0 - taken) * MIB,
    )  # fmt: skip


def noisy_corunner(at_s: float) -> Inputs:
    noise = random.Random(f"noisy-corunner {at_s:g}")
    on = at_s % 60.0 >= 35.0
    slowdown = math.exp(noise.gauss(math.log(2.2 if on else 1.05), 0.25 if on else 0.05))
    return Inputs(
        ambient_c=24.0, demand_per_s=4.0, slowdown=round(slowdown, 3),
        other_share=round(noise.uniform(0.3, 0.5), 3) if on else 0.02,
    )  # fmt: skip


def steady_heat(at_s: float) -> Inputs:
    return Inputs(ambient_c=round(32.0 + 8.0 * min(at_s / 120.0, 1.0), 2), demand_per_s=6.0)


def sensors_lost(at_s: float) -> frozenset[str]:
    gone = 60.0 <= at_s < 130.0 or (180.0 <= at_s < 220.0 and at_s % 3.0 < 1.0)
    memory = 240.0 <= at_s < 260.0
    return frozenset({"temperature_c"} if gone else ()) | frozenset(
        {"memory_available_bytes"} if memory else ()
    )


def cold_start(at_s: float) -> Inputs:
    booting = math.exp(-at_s / 25.0)
    return Inputs(
        ambient_c=-15.0, demand_per_s=0.0 if at_s < 5.0 else 5.0,
        slowdown=round(1.0 + 1.5 * booting, 3), other_share=round(0.6 * booting, 3),
        memory_bytes=round(1500.0 - 1150.0 * booting) * MIB,
    )  # fmt: skip


def at_the_threshold(at_s: float) -> Inputs:
    noise = random.Random(f"threshold-flapping {at_s:g}")
    wave = 4.0 * math.sin(2.0 * math.pi * at_s / 70.0)
    return Inputs(ambient_c=round(30.0 + wave + noise.uniform(-1.0, 1.0), 2), demand_per_s=5.5)


SCENARIOS = (
    Scenario(
        "hot-afternoon", "a board in a closed box in the sun, 12 to 16 o'clock", 60, 240,
        hot_afternoon,
    ),
    Scenario(
        "throttling-fan", "a board that throttles, with a fan of two states and load in waves",
        4, 300, fan,
        board=msgspec.structs.replace(
            RPI4,
            thermal=ThermalPlant(
                resistance_c_per_w=13.0, time_constant_s=60.0, idle_w=2.7, busy_w=6.4
            ),
            fan=Fan(on_c=76.0, off_c=62.0, resistance_ratio=0.6),
        ),
    ),
    Scenario(
        "battery-day", "a camera on a battery with a solar panel, from 6 o'clock for a day",
        300, 288, battery_day,
        board=Board(
            thermal=ThermalPlant(
                resistance_c_per_w=12.0, time_constant_s=120.0, idle_w=0.8, busy_w=3.2
            ),
            battery_wh=20.0, start_charge_ratio=0.35, memory_bytes=512 * MIB, start_c=25.0,
        ),
        profile="rpi-zero2w", begins_local_s=6 * HOUR_S,
    ),
    Scenario(
        "memory-bursts", "a neighbour that takes half a gigabyte for 30 s every 75 s", 1, 300,
        memory_bursts, board=msgspec.structs.replace(RPI4, memory_bytes=1024 * MIB),
    ),
    Scenario(
        "noisy-corunner", "a batch job on the same cores for 25 s of each minute", 1, 300,
        noisy_corunner, deadline_ms=250.0,
    ),
    Scenario(
        "sensor-loss", "a thermal sensor that goes while the board heats, then comes and goes",
        1, 300, steady_heat, board=SMALL, lost=sensors_lost,
    ),
    Scenario(
        "cold-start", "a board that is switched on in the frost, busy with its own start", 1, 300,
        cold_start,
        board=msgspec.structs.replace(RPI4, start_c=-15.0),
    ),
    Scenario(
        "threshold-flapping", "a board whose heat moves about the threshold with the wind", 2, 300,
        at_the_threshold, board=SMALL,
    ),
)  # fmt: skip


def make(scenario: Scenario) -> Trace:
    """Return a trace with the readings that the plant model gives."""
    header = Header(
        trace=1,
        name=scenario.name,
        profile=scenario.profile,
        period_s=scenario.period_s,
        origin="synthetic",
        source=f"imitates {scenario.imitates}; made by tests/simulators/make_traces.py",
        deadline_ms=scenario.deadline_ms,
        begins_local_s=scenario.begins_local_s,
        board=scenario.board,
    )
    times = [i * scenario.period_s for i in range(scenario.ticks)]
    bare = Trace(header=header, ticks=tuple(Tick(at_s=t, inputs=scenario.inputs(t)) for t in times))
    variants = from_json(EXAMPLE.read_bytes(), VariantList).variants
    done = replay(bare, variants, PolicySpec(kind="rules"), pinned=RECORDED_WITH)
    ticks = []
    for tick, step in zip(bare.ticks, done.steps, strict=True):
        read = {
            name: _rounded(getattr(step.readings, name))
            for name in Sensed.__struct_fields__
            if name not in scenario.lost(tick.at_s)
        }
        ticks.append(msgspec.structs.replace(tick, sensed=Sensed(**read)))  # type: ignore[arg-type]  # mixed types
    return Trace(header=header, ticks=tuple(ticks))


def _rounded(value: float | bool | None) -> float | bool | None:
    return round(value, 2) if isinstance(value, float) else value


def write(directory: Path) -> None:
    for scenario in SCENARIOS:
        data = trace_to_bytes(make(scenario))
        (directory / f"{scenario.name}{SUFFIX}").write_bytes(data)


if __name__ == "__main__":
    write(SHIPPED)
