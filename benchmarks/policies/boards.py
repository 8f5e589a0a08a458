"""Boards for the traces of the judge, drawn at random from ranges of real kinds of boards.

The ranges span what data sheets and reviews say of a kind, and a margin around it; no board is one
of them. The thermal resistance follows from the temperature that the chip would reach at full load
in a room of 25 degrees, because that is what reviews measure.

Rules:
- Pure: the same generator gives the same board. All numbers are continuous, so that no constant of
  a policy can sit on them.
- A leak never runs away by itself below the severe temperature: such a board would be broken.
- A board whose ticks are long is a slow one: within a tick a quick chip would cost too many steps.

Source:
    Raspberry Pi documentation (frequency management; fan steps of the Pi 5); Jetson Orin Nano data
    sheet (7 to 25 W, throttling from 99 degrees); Intel ARK for fanless mini PCs of 10 to 28 W; for
    phones Android's thermal headroom and Qualcomm's sdm845 device tree (trips at 85 to 95 degrees).
    Leak and governor: `agent.replay.heat`, `agent.replay.controllers`.
"""

from __future__ import annotations

import random
from typing import Final, NamedTuple

from msgspec.structs import replace

from agent.replay.board import Board
from agent.replay.cell import Cell
from agent.replay.controllers import Fan, FanStep, Governor
from agent.replay.heat import Case, Leak
from agent.replay.plant import ThermalPlant
from agent.replay.sensors import Sensors
from wire.profile import ThermalLimits

Range = tuple[float, float]
GIB: Final = 1024**3
ROOM_C: Final = 25.0
LEAK_GAIN: Final = 0.6
"""Most degrees that one degree more of a chip at the severe temperature gives through its leak."""

TAU_TICKS: Final = 0.5
"""Least time constant of the chip, in ticks."""

SAMPLING_TICKS: Final = 0.1
"""Least time between the governor's samplings, in ticks."""


class Kind(NamedTuple):
    """The ranges of a kind of board."""

    name: str
    idle_w: Range
    busy_w: Range
    full_c: Range
    """Chip after a long time at full load, in a room and without its fan."""

    chip_s: Range
    """Time constant of the chip."""

    case_s: Range
    severe_c: Range
    nominal_c: Range
    memory_gib: tuple[float, ...]
    fan_share: float
    """Share of the boards with a fan."""

    battery_wh: Range | None
    """None for a board that has a battery only where the site gives it one."""


KINDS: Final = (
    Kind("pi-class", (1.9, 3.4), (5.2, 11.5), (62.0, 98.0), (5.0, 20.0), (110.0, 520.0),
         (80.0, 86.0), (40.0, 52.0), (1.0, 2.0, 4.0, 8.0), 0.4, None),
    Kind("jetson-class", (3.5, 6.0), (9.0, 24.0), (75.0, 112.0), (6.0, 25.0), (140.0, 600.0),
         (92.0, 99.0), (45.0, 60.0), (4.0, 8.0, 16.0), 0.75, None),
    Kind("box-pc", (4.5, 11.0), (14.0, 38.0), (70.0, 108.0), (5.0, 18.0), (300.0, 1500.0),
         (93.0, 101.0), (45.0, 62.0), (4.0, 8.0, 16.0), 0.3, None),
    Kind("phone-class", (0.5, 1.3), (3.4, 8.5), (66.0, 96.0), (4.0, 14.0), (150.0, 700.0),
         (76.0, 92.0), (36.0, 48.0), (3.0, 4.0, 6.0, 8.0), 0.0, (9.0, 19.0)),
)  # fmt: skip


def draw_board(chance: random.Random, *, period_s: float, sensor_seed: int) -> tuple[str, Board]:
    """Return the kind and the constants of a board.

    Args:
        chance: Where the numbers come from.
        period_s: Length of a tick.
        sensor_seed: Seed of what is random about its readings.
    """
    kind = chance.choice(KINDS)
    idle_w, busy_w = chance.uniform(*kind.idle_w), chance.uniform(*kind.busy_w)
    resistance = (chance.uniform(*kind.full_c) - ROOM_C) / busy_w
    inner = chance.uniform(0.12, 0.4)
    severe_c = chance.uniform(*kind.severe_c)
    governed = chance.random() < 0.7  # noqa: PLR2004 - most kernels move by steps
    # Where throttling begins above the limit that counts as severe, only the choice of a variant
    # keeps a board below it.
    throttle_c = severe_c + chance.uniform(-8.0, 8.0)
    board = Board(
        thermal=ThermalPlant(
            resistance_c_per_w=resistance * inner,
            time_constant_s=max(chance.uniform(*kind.chip_s), TAU_TICKS * period_s),
            idle_w=idle_w,
            busy_w=busy_w,
        ),
        case=Case(
            resistance_c_per_w=resistance * (1.0 - inner),
            time_constant_s=chance.uniform(*kind.case_s),
        ),
        leak=draw_leak(chance, busy_w, resistance, severe_c),
        limits=ThermalLimits(severe_c=severe_c, nominal_c=chance.uniform(*kind.nominal_c)),
        throttle_c=throttle_c,
        slowest_c=throttle_c + chance.uniform(3.0, 12.0),
        slowest_ratio=chance.uniform(0.35, 0.7),
        governor=draw_governor(chance, throttle_c, period_s) if governed else None,
        fan=draw_fan(chance, severe_c, busy_w) if chance.random() < kind.fan_share else None,
        sensors=draw_sensors(chance, sensor_seed),
        memory_bytes=round(chance.choice(kind.memory_gib) * GIB),
        cpu_share=chance.uniform(0.45, 1.0),
    )
    if kind.battery_wh is not None:
        board = with_battery(chance, board, chance.uniform(*kind.battery_wh))
    return kind.name, board


def draw_leak(chance: random.Random, busy_w: float, resistance: float, severe_c: float) -> Leak:
    """Return a leak that no board of this resistance turns into a runaway below severe heat."""
    e_fold_c = chance.uniform(28.0, 60.0)
    wished_w = busy_w * chance.uniform(0.02, 0.15)
    return Leak(
        power_w=min(wished_w, LEAK_GAIN * e_fold_c / resistance), at_c=severe_c, e_fold_c=e_fold_c
    )


def draw_governor(chance: random.Random, hot_c: float, period_s: float) -> Governor:
    """Return a governor of three to seven frequencies."""
    steps, least = chance.randint(2, 6), chance.uniform(0.35, 0.7)
    ratios = [1.0]
    for number in range(1, steps + 1):
        even = 1.0 - (1.0 - least) * number / steps
        ratios.append(even + chance.uniform(-0.3, 0.3) * (1.0 - least) / steps)
    return Governor(
        ratios=tuple(ratios),
        hot_c=hot_c,
        cool_c=hot_c - chance.uniform(1.5, 8.0),
        interval_s=max(chance.uniform(0.7, 3.0), SAMPLING_TICKS * period_s),
    )


def draw_fan(chance: random.Random, severe_c: float, busy_w: float) -> Fan:
    """Return a fan of one to four speeds, the fastest of which starts below severe heat."""
    count = chance.randint(1, 4)
    first_c, gap_c = severe_c - chance.uniform(24.0, 42.0), chance.uniform(5.0, 8.0)
    hysteresis_c, best = chance.uniform(2.5, 4.9), chance.uniform(0.4, 0.75)
    steps = [
        FanStep(
            on_c=first_c + gap_c * number,
            off_c=first_c + gap_c * number - hysteresis_c,
            resistance_ratio=1.0 - (1.0 - best) * (number + 1) / count,
            power_w=busy_w * chance.uniform(0.01, 0.03) * (number + 1),
        )
        for number in range(count)
    ]
    return Fan(
        on_c=steps[0].on_c,
        off_c=steps[0].off_c,
        resistance_ratio=steps[0].resistance_ratio,
        power_w=steps[0].power_w,
        faster=tuple(steps[1:]),
    )


def draw_sensors(chance: random.Random, seed: int) -> Sensors:
    """Return sensors as on a sound board: small errors, and seldom no reading."""
    return Sensors(
        seed=seed,
        temperature_step_c=chance.choice((0.0, 0.1, 0.487, 0.5, 1.0)),
        temperature_lag_s=chance.choice((0.0, chance.uniform(0.3, 4.0))),
        temperature_noise_c=chance.uniform(0.0, 0.6),
        temperature_offset_c=chance.gauss(0.0, 0.7),
        lost_share=chance.choice((0.0, 0.0, chance.uniform(0.0, 0.01))),
        lost_s=chance.uniform(2.0, 20.0),
        charge_step=chance.choice((0.01, 0.01, 0.001)),
        has_power_gauge=chance.random() < 0.7,  # noqa: PLR2004 - some boards have none
    )


def with_battery(chance: random.Random, board: Board, capacity_wh: float) -> Board:
    """Return a board with a battery of one to four cells in a row."""
    cells = chance.randint(1, 4)
    volt = 3.7 * cells
    most_ohm = volt**2 / (4.0 * board.thermal.busy_w)
    return replace(
        board,
        battery_wh=capacity_wh,
        cell=Cell(voltage_v=volt, resistance_ohm=most_ohm * chance.uniform(0.01, 0.15)),
        start_charge_ratio=chance.uniform(0.6, 1.0),
    )
