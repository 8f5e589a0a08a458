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

import msgspec

from agent.replay.plant import ThermalPlant
from wire.profile import ThermalLimits

STEPS_PER_TIME_CONSTANT = 10
"""Within a tenth of the time constant the temperature changes little, so the model takes the
frequency as constant."""

WH_J = 3600.0
COLDEST_C, HOTTEST_C = -100.0, 150.0
MAX = 100_000
"""Limit of watts, seconds and requests per second: far above any board, and sums stay finite."""


class Fan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fan that the board's own controller switches."""

    on_c: float
    off_c: float
    resistance_ratio: float
    """Share of the thermal resistance that remains while the fan runs."""


class Board(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The constants of a board; the defaults are a small board without fan, on mains."""

    thermal: ThermalPlant = ThermalPlant()
    limits: ThermalLimits = ThermalLimits()
    throttle_c: float = 80.0
    """Above this the frequency falls linearly."""

    slowest_c: float = 85.0
    """From here on the frequency stays at `slowest_ratio`."""

    slowest_ratio: float = 0.4
    fan: Fan | None = None
    battery_wh: float | None = None
    """Capacity; None without a battery."""

    memory_bytes: int = 2**31
    cpu_share: float = 1.0
    """Share of the processor that one computing request takes: its threads over the cores."""

    slowdowns: dict[str, float] = {}
    """Latency on this board divided by the declared one, by variant; 1 for others."""

    start_c: float = 40.0
    start_charge_ratio: float = 1.0

    def frequency_ratio(self, temperature_c: float) -> float:
        """Return the frequency at a temperature, divided by the greatest frequency."""
        span_c = self.slowest_c - self.throttle_c
        excess = min(max((temperature_c - self.throttle_c) / span_c, 0.0), 1.0)
        return 1.0 - excess * (1.0 - self.slowest_ratio)

    def start(self) -> BoardState:
        """Return the state at the beginning of a trace."""
        return BoardState(
            temperature_c=self.start_c,
            charge_ratio=self.start_charge_ratio if self.battery_wh else None,
            draw_w=self.thermal.idle_w,
        )

    def faults(self) -> tuple[str, ...]:
        """Return what is impossible about the board; empty if it is possible."""
        fan, plant = self.fan, self.thermal
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
            (self.throttle_c < self.slowest_c, "throttle_c is not below slowest_c"),
            (0.0 < self.slowest_ratio <= 1.0, "slowest_ratio is not within 0 to 1"),
            (fan is None or fan.off_c < fan.on_c, "fan.off_c is not below fan.on_c"),
            (
                fan is None or 0.0 < fan.resistance_ratio <= 1.0,
                "fan.resistance_ratio is not within 0 to 1",
            ),
            (self.battery_wh is None or self.battery_wh > 0.0, "battery_wh is not positive"),
            (0.0 <= self.start_charge_ratio <= 1.0, "start_charge_ratio is not within 0 to 1"),
            (self.memory_bytes > 0, "memory_bytes is not positive"),
            (0.0 < self.cpu_share <= 1.0, "cpu_share is not within 0 to 1"),
            (
                all(1.0 / MAX <= factor <= MAX for factor in self.slowdowns.values()),
                f"slowdowns are not all within {1 / MAX} to {MAX}",
            ),
        )
        return tuple(text for holds, text in rules if not holds)


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
            (self.memory_bytes is None or self.memory_bytes >= 0, "memory_bytes is negative"),
        )
        return tuple(text for holds, text in rules if not holds)


class BoardState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a board at one time."""

    temperature_c: float
    charge_ratio: float | None = None
    """None without a battery."""

    fan_on: bool = False
    draw_w: float
    """Mean power during the last tick."""


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
    plant = board.thermal
    count = max(1, math.ceil(period_s * STEPS_PER_TIME_CONSTANT / plant.time_constant_s))
    step_s, off = period_s / count, is_off(board, state, inputs)
    celsius, fan_on, energy_j = state.temperature_c, state.fan_on, 0.0
    for _ in range(count):
        fan_on = not off and _fan_on(board.fan, celsius, is_on=fan_on)
        frequency = board.frequency_ratio(celsius)
        busy = min(1.0, (work_share + inputs.other_share) / frequency)
        # The plant's power is linear in the utilization, so this one stands for load and frequency.
        utilization = busy * frequency**3
        watts = 0.0 if off else plant.power_w(utilization)
        ratio = board.fan.resistance_ratio if fan_on and board.fan else 1.0
        steady_c = inputs.ambient_c + plant.resistance_c_per_w * ratio * watts
        celsius = steady_c + (celsius - steady_c) * math.exp(-step_s / plant.time_constant_s)
        energy_j += watts * step_s
    draw_w = energy_j / period_s
    charge = state.charge_ratio
    if charge is not None and board.battery_wh is not None:
        gained = (inputs.charger_w - draw_w) * period_s / (board.battery_wh * WH_J)
        charge = min(max(charge + gained, 0.0), 1.0)
    return BoardState(temperature_c=celsius, charge_ratio=charge, fan_on=fan_on, draw_w=draw_w)


def _fan_on(fan: Fan | None, celsius: float, *, is_on: bool) -> bool:
    if fan is None:
        return False
    return celsius > (fan.off_c if is_on else fan.on_c)
