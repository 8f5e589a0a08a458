"""Heat, battery and speed of a simulated device, by the models of `agent.replay`. Pure.

Rules:
- The load has a rhythm of a day. A warm device is slower: from its severe temperature on it has
  half of its speed.
- A battery is charged when it is a fifth full, until it is almost full.
"""

from __future__ import annotations

import math
from typing import Final

from agent.replay.cell import Cell
from agent.replay.plant import ThermalPlant
from agent.simulate.fate import Fate
from wire.profile import DeviceProfile

USUAL_C: Final = 22.0
HOT_C: Final = 25.0
"""How much warmer the surroundings are of a device that the fault `hot` hits."""

DAY_S: Final = 86_400.0
LATENCY_MS: Final = 20.0
REQUESTS_PER_S: Final = 0.5
BATTERY_J: Final = 40_000.0
"""About 3000 mAh at 3.7 V."""

CHARGER_W: Final = 12.0
LOW, FULL = 0.2, 0.95
SLOWED: Final = 0.5


class Body:
    """The physical side of one device.

    Args:
        fate: Its draws.
        profile: What it is.
        at_s: When it begins.
    """

    def __init__(self, fate: Fate, profile: DeviceProfile, at_s: float) -> None:
        self._plant = ThermalPlant(resistance_c_per_w=5.0 * fate.spread("cooling", 0.15))
        self._ambient_c = USUAL_C + 8.0 * (fate.draw("place") - 0.5)
        self._ambient_c += HOT_C if fate.hits("hot") else 0.0
        self._rhythm = fate.draw("rhythm")
        self._thermal = profile.thermal
        self._cell = Cell(voltage_v=3.7, resistance_ohm=0.1)
        self.at_s = at_s
        self._is_charging = False
        self._latency_ms = LATENCY_MS * fate.spread("latency", 0.2)
        self._busy = fate.spread("busy", 0.3)
        self.charge: float | None = None
        """Of the battery, 0 to 1; None on mains."""

        if profile.power_source == "battery":
            self.charge = 0.3 + 0.6 * fate.draw("charge")
        self.temperature_c = self._plant.steady_c(
            ambient_c=self._ambient_c, utilization=self.load(at_s)
        )

    def load(self, at_s: float) -> float:
        """Return the share of time in which the processor works, at a wall time."""
        of_day = math.sin(2.0 * math.pi * (at_s / DAY_S + self._rhythm))
        return min(0.95, 0.4 * self._busy * (1.0 + 0.5 * of_day))

    def requests(self, span_s: float) -> int:
        """Return how many requests come in a time, at the present load."""
        return round(span_s * REQUESTS_PER_S * self.load(self.at_s) / 0.4)

    @property
    def headroom(self) -> float:
        """Heat: 0 is nominal, 1 is severe."""
        limits = self._thermal
        return (self.temperature_c - limits.nominal_c) / (limits.severe_c - limits.nominal_c)

    @property
    def latency_ms(self) -> float:
        """The usual latency of the first release, at the present temperature."""
        slowed = SLOWED * min(max(self.headroom, 0.0), 1.0)
        return self._latency_ms / (1.0 - slowed)

    def step(self, at_s: float) -> None:
        """Go on to a wall time."""
        step_s, self.at_s = max(0.0, at_s - self.at_s), at_s
        load = self.load(at_s)
        self.temperature_c = self._plant.step(
            self.temperature_c, ambient_c=self._ambient_c, utilization=load, step_s=step_s
        )
        if self.charge is None:
            return
        if not LOW < self.charge < FULL:
            self._is_charging = self.charge <= LOW
        power_w = self._plant.power_w(load) - (CHARGER_W if self._is_charging else 0.0)
        drained = self._cell.drain_w(power_w) * step_s / BATTERY_J
        self.charge = min(1.0, max(0.0, self.charge - drained))
