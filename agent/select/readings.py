"""Leaves out readings that no device can have, before a policy goes by them. Pure.

Rules:
- Such a reading is unknown. Sensors leave it out already; one that came through would be learnt,
  and would spoil what was learnt before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from wire.health import HealthSnapshot

_RATIO: Final = (0.0, 1.0)
POSSIBLE: Final[Mapping[str, tuple[float, float]]] = MappingProxyType(
    {
        "temperature_c": (-273.15, 1e4),
        "headroom": (-1e3, 1e3),
        "fan_ratio": _RATIO,
        "cpu_frequency_limit_ratio": (1e-3, 1.0),
        "cpu_busy_ratio": _RATIO,
        "cpu_stall_ratio": _RATIO,
        "load_ratio": (0.0, 1e7),
        "battery_ratio": _RATIO,
        "battery_energy_j": (0.0, 1e9),
        "battery_capacity_j": (1e-3, 1e9),
        "power_mw": (0.0, 1e9),
        "memory_available_bytes": (0, 2**63),
    }
)
"""The least and the greatest value of each reading that a policy goes by."""


def possible(health: HealthSnapshot) -> HealthSnapshot:
    """Return the readings without those that no device can have.

    Args:
        health: The readings.
    """
    replaced: dict[str, Any] = {}
    for name, (least, most) in POSSIBLE.items():
        value = getattr(health, name)
        if value is not None and not least <= value <= most:
            replaced[name] = None
    for name in ("at_s", "utc_offset_s"):
        if not math.isfinite(getattr(health, name)):
            replaced[name] = 0.0
    return msgspec.structs.replace(health, **replaced) if replaced else health
