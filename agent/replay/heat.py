"""Heat of a board whose chip sits on a case, and the power that leaks through a warm chip.

Rules:
- Pure.
- The chip's node has the resistance and time constant of the plant, towards the case; the case has
  its own, towards the surroundings. The time constant of a node is its resistance times its heat
  capacity. The fan acts on the case.
- The leak grows up to `HOTTEST_C` and no further: a runaway ends at a bound.

Source:
    Two RC stages: Skadron et al., Temperature-aware microarchitecture, ISCA 2003, section 3. The
    exact solution for constant power: the matrix exponential of a 2 x 2 matrix with real
    eigenvalues; Moler and Van Loan, Nineteen Dubious Ways to Compute the Exponential of a Matrix,
    SIAM Review 45(1), 2003. Exponential leak: Liu, Dick, Shang and Yang, Accurate
    temperature-dependent integrated circuit leakage power estimation is easy, DATE 2007.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

import msgspec

from agent.replay.plant import ThermalPlant

COLDEST_C, HOTTEST_C = -100.0, 150.0
MAX: Final = 100_000
"""Limit of watts, seconds, resistances and rates: far above any board, and sums stay finite."""

USUAL_C: Final = 25.0
"""In these surroundings an idle board has to find a steady temperature."""


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The case or heat sink between the chip and the surroundings."""

    resistance_c_per_w: float
    time_constant_s: float
    start_c: float | None = None
    """None for the chip's."""

    def faults(self) -> tuple[str, ...]:
        """Return what is impossible about the case; empty if it is possible."""
        start_c = 0.0 if self.start_c is None else self.start_c
        rules = (
            (
                0.0 < self.resistance_c_per_w <= MAX,
                f"resistance_c_per_w is not above 0 and at most {MAX}",
            ),
            (1.0 <= self.time_constant_s <= MAX, f"time_constant_s is not within 1 to {MAX}"),
            (COLDEST_C <= start_c <= HOTTEST_C, "start_c is not within -100 to 150"),
        )
        return tuple(text for holds, text in rules if not holds)


class Leak(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Power that flows whether the chip works or not, and more the warmer it is."""

    power_w: float
    at_c: float
    """At this temperature the leak is `power_w`."""

    e_fold_c: float
    """By so many degrees the leak grows e-fold; 30 to 60 for processors."""

    def watts(self, celsius: float) -> float:
        """Return the leak at a temperature, in watts."""
        return self.power_w * math.exp((min(celsius, HOTTEST_C) - self.at_c) / self.e_fold_c)

    def faults(self, plant: ThermalPlant, resistance_c_per_w: float) -> tuple[str, ...]:
        """Return what is impossible about the leak; empty if it is possible.

        Args:
            plant: The chip.
            resistance_c_per_w: From the chip to the surroundings.
        """
        rules = (
            (0.0 <= self.power_w <= MAX, f"power_w is not within 0 to {MAX}"),
            (COLDEST_C <= self.at_c <= HOTTEST_C, "at_c is not within -100 to 150"),
            (1.0 <= self.e_fold_c <= MAX, f"e_fold_c is not within 1 to {MAX}"),
        )
        faults = tuple(text for holds, text in rules if not holds)
        if not faults and not self._is_steady(
            USUAL_C + resistance_c_per_w * plant.idle_w, resistance_c_per_w
        ):
            faults = (f"has no steady temperature: it runs away on an idle board at {USUAL_C:g} C",)
        return faults

    def _is_steady(self, without_c: float, resistance_c_per_w: float) -> bool:
        """Tell whether a temperature exists at which the leak's heat flows off.

        Args:
            without_c: Steady temperature without a leak.
            resistance_c_per_w: From the chip to the surroundings.
        """
        if self.power_w == 0.0 or resistance_c_per_w == 0.0:
            return True
        # Where one more degree gives just one more degree, the surplus of cooling is greatest.
        ratio = self.e_fold_c / (resistance_c_per_w * self.power_w)
        best_c = self.at_c + self.e_fold_c * math.log(ratio)
        return best_c - self.e_fold_c >= without_c


def chip_and_case_c(
    plant: ThermalPlant,
    case: Case,
    chip_c: float,
    case_c: float,
    *,
    ambient_c: float,
    power_w: float,
    fan_ratio: float,
    step_s: float,
) -> tuple[float, float]:
    """Return the temperatures of chip and case after a step with constant power.

    Args:
        plant: The chip, towards the case.
        case: The case, towards the surroundings.
        chip_c: Temperature of the chip.
        case_c: Temperature of the case.
        ambient_c: Temperature of the surroundings.
        power_w: Power of the chip.
        fan_ratio: Share of the case's resistance that remains with the fan.
        step_s: Length of the step.
    """
    outer = case.resistance_c_per_w * fan_ratio
    steady_case_c = ambient_c + outer * power_w
    steady_chip_c = steady_case_c + plant.resistance_c_per_w * power_w
    a, b, c, d = _exponential(plant, case, fan_ratio, step_s)
    chip_off_c, case_off_c = chip_c - steady_chip_c, case_c - steady_case_c
    return (
        steady_chip_c + a * chip_off_c + b * case_off_c,
        steady_case_c + c * chip_off_c + d * case_off_c,
    )


@lru_cache(maxsize=256)
def _exponential(
    plant: ThermalPlant, case: Case, fan_ratio: float, step_s: float
) -> tuple[float, float, float, float]:
    """Return the matrix that takes deviations from the steady state over a step, row by row."""
    inner = 1.0 / plant.time_constant_s
    case_capacity = case.time_constant_s / case.resistance_c_per_w
    shared = 1.0 / (plant.resistance_c_per_w * case_capacity)
    outer = 1.0 / (case.time_constant_s * fan_ratio)
    # d(chip)/dt = -inner (chip - case); d(case)/dt = shared (chip - case) - outer case
    mean = -(inner + shared + outer) / 2.0
    half = math.sqrt(((inner - shared - outer) / 2.0) ** 2 + inner * shared)
    # e^(mean t) (cosh(half t) I + sinh(half t) / half (A - mean I)), without large exponents.
    slow, quick = math.exp((mean + half) * step_s), math.exp((mean - half) * step_s)
    cosh, sinh = (slow + quick) / 2.0, (slow - quick) / (2.0 * half)
    return (
        cosh + sinh * (-inner - mean),
        sinh * inner,
        sinh * shared,
        cosh + sinh * (-shared - outer - mean),
    )
