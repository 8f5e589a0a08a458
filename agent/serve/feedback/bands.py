"""Thermal bands: how hot a device was, in few enough words to group by. Pure.

The bands are the same on every device, whatever its policy: their bounds are the defaults of a
policy's `cool_headroom` and `hot_headroom`.
"""

from __future__ import annotations

from typing import Final

from wire.health import HealthSnapshot

WARM_FROM: Final = 0.70
HOT_FROM: Final = 0.85
"""On the scale where 0 is nominal and 1 is severe throttling."""


def thermal_band(health: HealthSnapshot) -> str:
    """Return the band of some readings.

    Args:
        health: The readings.

    Returns:
        `cool`, `warm` or `hot`; `unknown` where no sensor tells. A device that is slowed down is
        hot, whatever its sensors say.
    """
    if health.throttled or (health.headroom is not None and health.headroom >= HOT_FROM):
        return "hot"
    if health.headroom is None:
        return "unknown"
    return "warm" if health.headroom >= WARM_FROM else "cool"
