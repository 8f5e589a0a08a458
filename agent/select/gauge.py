"""What the gauge of a battery says of its charge, and which of its readings are believed. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from wire.health import HealthSnapshot

LEAP: Final = 0.1
QUICKEST_S: Final = 600.0
"""No battery is charged or emptied sooner; a gauge may correct itself by a leap at once."""

BELIEVED: Final = 3
"""A gauge that says so often in a row what cannot be is believed: it was wrong before."""

CLEAR: Final = 0.05
"""Below this charge, a gauge in hundredths tells no capacity from the energy."""


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """The charge as it was last believed."""

    ratio: float | None = None
    energy_j: float | None = None
    whole_j: float | None = None
    odd: int = 0
    """Readings in a row, until now, that cannot be."""


def believed(health: HealthSnapshot, before: Shown, period_s: float) -> tuple[HealthSnapshot, int]:
    """Return the readings without a charge that cannot be.

    One reading of zero, which some gauges give now and then, would be learnt as a great draw.

    Args:
        health: The readings.
        before: The charge before them.
        period_s: Time since then.

    Returns:
        The readings, and how many in a row have now been left out.
    """
    leap = LEAP + period_s / QUICKEST_S
    pairs = [(health.battery_ratio, before.ratio, 1.0)]
    pairs.append((health.battery_energy_j, before.energy_j, before.whole_j or 0.0))
    is_odd = any(
        now is not None and then is not None and whole > 0.0 and abs(now - then) > leap * whole
        for now, then, whole in pairs
    )
    if not is_odd or before.odd + 1 >= BELIEVED:
        return health, 0
    left_out = msgspec.structs.replace(health, battery_ratio=None, battery_energy_j=None)
    return left_out, before.odd + 1


def capacity_j(health: HealthSnapshot, known_j: float | None) -> float | None:
    """Return what the full battery holds: as reported, from charge and energy, or as known."""
    if health.battery_capacity_j:
        return health.battery_capacity_j
    left_j, ratio = health.battery_energy_j, health.battery_ratio
    return left_j / ratio if left_j and ratio and ratio >= CLEAR else known_j


def left_j(
    health: HealthSnapshot, energy_j: float | None, known_j: float | None, drawn_j: float
) -> float | None:
    """Return the energy left: as read, from the charge, or the last value less what was drawn.

    Args:
        health: The readings.
        energy_j: The last value; None if it is unknown.
        known_j: What the full battery holds, as far as it is known.
        drawn_j: Drawn since the last value.
    """
    if health.battery_energy_j is not None:
        return health.battery_energy_j
    whole_j = health.battery_capacity_j or known_j
    if whole_j is not None and health.battery_ratio is not None:
        return health.battery_ratio * whole_j
    return None if energy_j is None else max(energy_j - max(drawn_j, 0.0), 0.0)
