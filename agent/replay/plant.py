"""A first-order model of the heat of a board, for simulated boards and for replays of policies.

Rules:
- Pure: state and inputs in, next state out.

Source:
    Lumped-capacitance (RC) model: dT/dt = (T_ambient + R * P - T) / tau, whose exact solution for
    constant P over a step is used. Incropera and DeWitt, Fundamentals of Heat and Mass Transfer,
    chapter 5.
"""

from __future__ import annotations

import math

import msgspec


class ThermalPlant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The thermal constants of a board, and its power."""

    resistance_c_per_w: float = 5.0
    """Steady rise over ambient per watt; about that of a small board without a fan."""

    time_constant_s: float = 60.0
    """Time to come within 37 % of the steady temperature."""

    idle_w: float = 1.0
    busy_w: float = 6.0
    """Power at full load, all cores of one inference busy."""

    def power_w(self, utilization: float) -> float:
        """Return the power in watts at a utilization between 0 and 1."""
        share = min(max(utilization, 0.0), 1.0)
        return self.idle_w + share * (self.busy_w - self.idle_w)

    def steady_c(self, *, ambient_c: float, utilization: float) -> float:
        """Return the steady temperature, in degrees Celsius."""
        return ambient_c + self.resistance_c_per_w * self.power_w(utilization)

    def step(
        self, temperature_c: float, *, ambient_c: float, utilization: float, step_s: float
    ) -> float:
        """Return the temperature after a step.

        Args:
            temperature_c: The temperature at the beginning.
            ambient_c: The temperature around the board.
            utilization: Share of the time that the processor works, 0 to 1.
            step_s: Length of the step in seconds.

        Returns:
            The temperature at the end, in degrees Celsius.
        """
        steady = self.steady_c(ambient_c=ambient_c, utilization=utilization)
        return steady + (temperature_c - steady) * math.exp(-step_s / self.time_constant_s)
