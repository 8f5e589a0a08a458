"""How long the battery lasts at a load: a model of the power, fitted while the device runs.

Rules:
- Pure. Before the first reading the charge is unknown, not full. If a later reading is missing,
  the energy left follows from the fitted power.

Source:
    Linear power model of a processor: Fan, Weber and Barroso, Power Provisioning for a
    Warehouse-sized Computer (ISCA 2007), section 4.
"""

from __future__ import annotations

from typing import Final

import msgspec

from agent.select.kalman import Line
from wire.health import HealthSnapshot

MW_PER_W: Final = 1000.0
FALL: Final = 0.0099
"""Most gauges count in hundredths, so a capacity is taken from falls of at least a hundredth. The
value is slightly less, because divisions round."""

LEAST_W: Final = 1e-3
"""No board draws less."""

NOISE_W2: Final = 0.01
"""Variance of a reading of the draw: a tenth of a watt squared."""

BASE_DRIFT_W2_PER_S: Final = 1e-5
SLOPE_DRIFT_W2_PER_S: Final = 1e-7
PRIOR_SIGMA_W: Final = 3.0
"""Small boards draw a few watts when idle, and a few watts more under load."""


class BatteryFit(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the battery and of the draw from it."""

    draw: Line | None = None
    """Watts over the load; None before the first reading."""

    energy_j: float | None = None
    """Energy left in the battery; None if it is unknown."""

    ratio: float | None = None
    """Charge at its last reading; `discharging` is also the last reading."""

    discharging: bool | None = None
    capacity_j: float | None = None
    """Computed from falls of the charge under a known draw, for batteries that do not report it."""

    start_ratio: float | None = None
    """The charge to which the gauge last fell: between two falls it does not show the charge."""

    drawn_j: float = 0.0
    """Energy drawn since that fall."""

    def update(self, health: HealthSnapshot, load: float, period_s: float) -> BatteryFit:
        """Return the fit after a period.

        Args:
            health: Readings at the end of the period.
            load: Share of the period in which the processor was busy, 0 to 1.
            period_s: Length of the period in seconds.
        """
        told = health.battery_discharging
        discharging = self.discharging if told is None else told
        fit = msgspec.structs.replace(self, start_ratio=None, drawn_j=0.0)
        if told and health.power_mw is not None:
            power_w = health.power_mw / MW_PER_W
            fit = self._count(health.battery_ratio, power_w * period_s)
            fit = msgspec.structs.replace(fit, draw=_fitted(self.draw, load, power_w, period_s))
        drawn_j = fit.draw.at(load) * period_s if fit.draw and discharging else 0.0
        return msgspec.structs.replace(
            fit,
            energy_j=_left_j(fit, health, drawn_j),
            ratio=self.ratio if health.battery_ratio is None else health.battery_ratio,
            discharging=discharging,
        )

    def lasts_s(self, load: float) -> float | None:
        """Return how long the battery lasts at a load, in seconds; None if unknown."""
        if self.draw is None or self.energy_j is None:
            return None
        watts = self.draw.at(load)
        return self.energy_j / watts if watts >= LEAST_W else None

    def _count(self, ratio: float | None, drawn_j: float) -> BatteryFit:
        start, before = self.start_ratio, self.ratio
        if ratio is None or before is None or ratio > before:
            return msgspec.structs.replace(self, start_ratio=None, drawn_j=0.0)
        if start is None:
            fallen = ratio if ratio < before else None
            return msgspec.structs.replace(self, start_ratio=fallen, drawn_j=0.0)
        total_j, fall = self.drawn_j + drawn_j, start - ratio
        if fall < FALL or ratio == before or total_j <= 0.0:
            return msgspec.structs.replace(self, drawn_j=total_j)
        shown_j = total_j / fall
        known_j = shown_j if self.capacity_j is None else 0.8 * self.capacity_j + 0.2 * shown_j
        return msgspec.structs.replace(self, start_ratio=ratio, drawn_j=0.0, capacity_j=known_j)


def _left_j(fit: BatteryFit, health: HealthSnapshot, drawn_j: float) -> float | None:
    """Return the energy left: as read, else from the charge, else the last value minus the draw."""
    if health.battery_energy_j is not None:
        return health.battery_energy_j
    capacity_j = health.battery_capacity_j or fit.capacity_j
    if capacity_j is not None and health.battery_ratio is not None:
        return health.battery_ratio * capacity_j
    return None if fit.energy_j is None else max(fit.energy_j - max(drawn_j, 0.0), 0.0)


def _fitted(draw: Line | None, load: float, power_w: float, period_s: float) -> Line:
    if draw is None:
        variance = PRIOR_SIGMA_W**2
        draw = Line(base=power_w, slope=0.0, base_variance=variance, slope_variance=variance)
    line = draw.drifted(BASE_DRIFT_W2_PER_S * period_s, SLOPE_DRIFT_W2_PER_S * period_s)
    return line.update(load, power_w, gain=1.0, noise=NOISE_W2)
