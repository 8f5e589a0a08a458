"""A simulated board: heat with a fan and throttling, a battery, memory. For replays of policies.

Rules:
- Pure: state and inputs in, next state out.
- Values that a policy can change come from the model; all others (`Inputs`) come from a trace.
- A board whose battery is empty is off: it draws nothing until it is charged.

Source:
    Heat: `agent.replay.plant`. Dynamic power of a processor is C * V^2 * f, and V falls about as
    f does (Weste and Harris, CMOS VLSI Design, 4th edition, section 5.2): throttled to a share f of
    its frequency a processor draws f^3 of its dynamic power and needs 1 / f of the time.
    Throttling in proportion to the excess temperature is the Raspberry Pi firmware's way
    (documentation, frequency-management: "between 80 C and 85 C, the Arm cores will be
    progressively throttled back").
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from agent.replay.cell import Cell
from agent.replay.controllers import Fan, Governor
from agent.replay.heat import COLDEST_C, HOTTEST_C, MAX, Case, Leak, chip_and_case_c
from agent.replay.plant import ThermalPlant
from agent.replay.sensors import Sensors
from wire.profile import ThermalLimits

STEPS_PER_TIME_CONSTANT = 10
"""Within a tenth of the time constant the temperature changes little, so the model takes the
frequency as constant."""

WH_J = 3600.0
TOLERANCE_S = 1e-9
MOST_MEMORY_BYTES = 2**50
"""A pebibyte, as for the sensors: no board has as much memory."""


class Board(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The constants of a board; the defaults are a small board without fan, on mains."""

    thermal: ThermalPlant = ThermalPlant()
    """From the chip to the surroundings; with a case, to the case."""

    case: Case | None = None
    leak: Leak | None = None
    limits: ThermalLimits = ThermalLimits()
    throttle_c: float = 80.0
    """Above this the frequency falls linearly."""

    slowest_c: float = 85.0
    """From here on the frequency stays at `slowest_ratio`."""

    slowest_ratio: float = 0.4
    governor: Governor | None = None
    """In place of the linear throttling."""

    fan: Fan | None = None
    battery_wh: float | None = None
    """Capacity; None without a battery."""

    cell: Cell | None = None
    """None for a battery that loses nothing."""

    sensors: Sensors = Sensors()

    memory_bytes: int = 2**31
    cpu_share: float = 1.0
    """Share of the processor that one computing request takes: its threads over the cores."""

    slowdowns: dict[str, float] = {}
    """Latency on this board divided by the declared one, by variant; 1 for others."""

    start_c: float = 40.0
    start_charge_ratio: float = 1.0

    def frequency_ratio(self, temperature_c: float, governor_step: int = 0) -> float:
        """Return the frequency, divided by the greatest frequency.

        Args:
            temperature_c: Temperature of the chip, which decides without a governor.
            governor_step: Index of the governor's frequency.
        """
        if self.governor is not None:
            return self.governor.ratios[governor_step]
        span_c = self.slowest_c - self.throttle_c
        excess = min(max((temperature_c - self.throttle_c) / span_c, 0.0), 1.0)
        return 1.0 - excess * (1.0 - self.slowest_ratio)

    def start(self) -> BoardState:
        """Return the state at the beginning of a trace."""
        return BoardState(
            temperature_c=self.start_c,
            charge_ratio=self.start_charge_ratio if self.battery_wh else None,
            draw_w=self.thermal.idle_w,
            case_c=self._start_case_c(),
            followed_c=self.start_c,
        )

    def _start_case_c(self) -> float | None:
        if self.case is None:
            return None
        return self.start_c if self.case.start_c is None else self.case.start_c

    def faults(self) -> tuple[str, ...]:
        """Return what is impossible about the board; empty if it is possible."""
        plant = self.thermal
        rules = (
            (1.0 <= plant.time_constant_s <= MAX, f"thermal.time_constant_s is not 1 to {MAX}"),
            (
                0.0 <= plant.resistance_c_per_w <= MAX,
                f"thermal.resistance_c_per_w is not within 0 to {MAX}",
            ),
            (
                0.0 <= plant.idle_w <= plant.busy_w <= MAX,
                f"thermal: 0 <= idle_w <= busy_w <= {MAX} does not hold",
            ),
            (COLDEST_C <= self.start_c <= HOTTEST_C, "start_c is not within -100 to 150"),
            (
                self.limits.nominal_c < self.limits.severe_c,
                "limits.nominal_c is not below severe_c",
            ),
            (
                self.limits.nominal_c >= COLDEST_C and self.limits.severe_c <= HOTTEST_C,
                "limits are not within -100 to 150",
            ),
            (self.throttle_c < self.slowest_c, "throttle_c is not below slowest_c"),
            (
                self.throttle_c >= -MAX and self.slowest_c <= MAX,
                f"throttle_c and slowest_c are not within -{MAX} to {MAX}",
            ),
            (0.0 < self.slowest_ratio <= 1.0, "slowest_ratio is not within 0 to 1"),
            (
                self.battery_wh is None or 0.0 < self.battery_wh <= MAX,
                f"battery_wh is not above 0 and at most {MAX}",
            ),
            (0.0 <= self.start_charge_ratio <= 1.0, "start_charge_ratio is not within 0 to 1"),
            (
                0 < self.memory_bytes <= MOST_MEMORY_BYTES,
                f"memory_bytes is not within 1 to {MOST_MEMORY_BYTES}",
            ),
            (0.0 < self.cpu_share <= 1.0, "cpu_share is not within 0 to 1"),
            (
                all(1.0 / MAX <= factor <= MAX for factor in self.slowdowns.values()),
                f"slowdowns are not all within {1 / MAX} to {MAX}",
            ),
        )
        return tuple(text for holds, text in rules if not holds) + self._faults_of_parts()

    def _faults_of_parts(self) -> tuple[str, ...]:
        plant, case = self.thermal, self.case
        total = plant.resistance_c_per_w + (case.resistance_c_per_w if case else 0.0)
        parts = {
            "case": case.faults() if case else (),
            "leak": self.leak.faults(plant, total) if self.leak else (),
            "governor": self.governor.faults() if self.governor else (),
            "fan": self.fan.faults() if self.fan else (),
            "cell": self.cell.faults(plant.busy_w) if self.cell else (),
            "sensors": self.sensors.faults(),
        }
        faults = tuple(f"{part}: {text}" for part, found in parts.items() for text in found)
        if case is not None and plant.resistance_c_per_w <= 0.0:
            faults += ("thermal.resistance_c_per_w is not above 0, as it has to be with a case",)
        if self.cell is not None and self.battery_wh is None:
            faults += ("cell: there is no battery_wh",)
        return faults


class Inputs(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The inputs from outside during a tick, which the policy cannot change."""

    ambient_c: float
    demand_per_s: float
    """Requests that arrive each second."""

    slowdown: float = 1.0
    """Latency at full frequency divided by the latency alone: the cost of another program."""

    other_share: float = 0.0
    """Share of the processor that other programs keep busy."""

    charger_w: float = 0.0
    memory_bytes: int | None = None
    """Memory that would be available with no variant loaded; None for all of the board's."""

    def faults(self) -> tuple[str, ...]:
        """Return what is impossible about the inputs; empty if they are possible."""
        rules = (
            (COLDEST_C <= self.ambient_c <= HOTTEST_C, "ambient_c is not within -100 to 150"),
            (0.0 <= self.demand_per_s <= MAX, f"demand_per_s is not within 0 to {MAX}"),
            (1.0 / MAX <= self.slowdown <= MAX, f"slowdown is not within {1 / MAX} to {MAX}"),
            (0.0 <= self.other_share <= 1.0, "other_share is not within 0 to 1"),
            (0.0 <= self.charger_w <= MAX, f"charger_w is not within 0 to {MAX}"),
            (
                self.memory_bytes is None or 0 <= self.memory_bytes <= MOST_MEMORY_BYTES,
                f"memory_bytes is not within 0 to {MOST_MEMORY_BYTES}",
            ),
        )
        return tuple(text for holds, text in rules if not holds)


class BoardState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a board at one time."""

    temperature_c: float
    """Of the chip."""

    charge_ratio: float | None = None
    """None without a battery."""

    fan_step: int = 0
    """Speed of the fan; 0 is off."""

    draw_w: float
    """Mean power during the last tick."""

    case_c: float | None = None
    """None for the chip's."""

    followed_c: float | None = None
    """Temperature that the sensor has, after its lag; None for the chip's."""

    governor_step: int = 0
    """Index of the frequency."""

    governed_s: float = 0.0
    """Time since the governor's last sampling."""

    def frequency_ratio(self, board: Board) -> float:
        """Return the frequency of a board in this state, divided by the greatest frequency."""
        return board.frequency_ratio(self.temperature_c, self.governor_step)


def is_off(board: Board, state: BoardState, inputs: Inputs) -> bool:
    """Tell whether a board is off: its battery is empty and the charger alone is too weak."""
    empty = state.charge_ratio is not None and state.charge_ratio <= 0.0
    return empty and inputs.charger_w < board.thermal.busy_w


def advance(
    board: Board, state: BoardState, inputs: Inputs, *, work_share: float, period_s: float
) -> BoardState:
    """Return the state after a tick.

    Args:
        board: The board.
        state: The state at the beginning.
        inputs: The inputs from outside.
        work_share: Share of the tick that the variant's work would take at full frequency; above 1
            for more than the processor can do.
        period_s: Length of the tick in seconds.

    Returns:
        The state at its end.
    """
    count, off = _steps(board, period_s), is_off(board, state, inputs)
    step_s = period_s / count
    work = 0.0 if off else work_share + inputs.other_share
    chip_c, case_c, followed_c = state.temperature_c, state.case_c, state.followed_c
    control = _Control(state.fan_step, state.governor_step, state.governed_s)
    is_controlled = board.fan is not None or board.governor is not None
    energy_j = 0.0
    for _ in range(count):
        if is_controlled:
            control = _controlled(board, control, chip_c, off=off, step_s=step_s)
        speed = board.fan.steps[control.fan_step - 1] if board.fan and control.fan_step else None
        frequency = board.frequency_ratio(chip_c, control.governor_step)
        chip_w = 0.0 if off else _chip_w(board, chip_c, work, frequency)
        ratio = speed.resistance_ratio if speed else 1.0
        chip_c, case_c = _warmed(board, chip_c, case_c, inputs.ambient_c, chip_w, ratio, step_s)
        if followed_c is not None:
            followed_c = board.sensors.followed_c(followed_c, chip_c, step_s)
        energy_j += (chip_w + (speed.power_w if speed else 0.0)) * step_s
    draw_w = energy_j / period_s
    return BoardState(
        temperature_c=chip_c,
        charge_ratio=_charge(board, state.charge_ratio, draw_w - inputs.charger_w, period_s),
        fan_step=control.fan_step,
        draw_w=draw_w,
        case_c=case_c,
        followed_c=followed_c,
        governor_step=control.governor_step,
        governed_s=control.governed_s,
    )


class _Control(NamedTuple):
    """The state of fan and governor, as in `BoardState`."""

    fan_step: int
    governor_step: int
    governed_s: float


def _steps(board: Board, period_s: float) -> int:
    """Return into how many steps a tick is divided."""
    count = max(1, math.ceil(period_s * STEPS_PER_TIME_CONSTANT / board.thermal.time_constant_s))
    if board.governor is None:
        return count
    return max(count, math.ceil(period_s / board.governor.interval_s))


def _controlled(
    board: Board, before: _Control, chip_c: float, *, off: bool, step_s: float
) -> _Control:
    """Return the state for a step, after fan and governor have looked at the temperature."""
    if off:
        return _Control(0, 0, 0.0)
    fan_step = board.fan.step(chip_c, before.fan_step) if board.fan is not None else 0
    governor, governed_s = board.governor, before.governed_s
    if governor is None:
        return _Control(fan_step, 0, 0.0)
    if governed_s < governor.interval_s - TOLERANCE_S:
        return _Control(fan_step, before.governor_step, governed_s + step_s)
    late_s = governed_s - governor.interval_s
    return _Control(fan_step, governor.step(chip_c, before.governor_step), late_s + step_s)


def _chip_w(board: Board, chip_c: float, work: float, frequency: float) -> float:
    """Return the power of a chip that runs."""
    busy = min(1.0, work / frequency)
    # The plant's power is linear in the utilization, so this one stands for load and frequency.
    watts = board.thermal.power_w(busy * frequency**3)
    return watts if board.leak is None else watts + board.leak.watts(chip_c)


def _warmed(
    board: Board,
    chip_c: float,
    case_c: float | None,
    ambient_c: float,
    chip_w: float,
    fan_ratio: float,
    step_s: float,
) -> tuple[float, float | None]:
    """Return the temperatures of the chip and the case after a step with constant power."""
    plant, case = board.thermal, board.case
    if case is not None:
        return chip_and_case_c(
            plant,
            case,
            chip_c,
            chip_c if case_c is None else case_c,
            ambient_c=ambient_c,
            power_w=chip_w,
            fan_ratio=fan_ratio,
            step_s=step_s,
        )
    steady_c = ambient_c + plant.resistance_c_per_w * fan_ratio * chip_w
    return steady_c + (chip_c - steady_c) * math.exp(-step_s / plant.time_constant_s), None


def _charge(board: Board, before: float | None, net_w: float, period_s: float) -> float | None:
    """Return the charge after a period in which the board drew more than the charger gave."""
    if before is None or board.battery_wh is None:
        return before
    drain_w = net_w if board.cell is None else board.cell.drain_w(net_w)
    return min(max(before - drain_w * period_s / (board.battery_wh * WH_J), 0.0), 1.0)
