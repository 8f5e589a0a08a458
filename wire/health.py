"""How a device is at one instant.

Rules:
- What was not read is None: unknown is never taken for cool, full or free.
"""

from __future__ import annotations

import msgspec


class HealthSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Readings of one instant; None where the device has no such sensor or it lied."""

    at_s: float
    """Wall time, seconds since the epoch."""

    temperature_c: float | None = None
    """The hottest zone of the processor."""

    headroom: float | None = None
    """Heat on the scale where 0.0 is nominal and 1.0 is severe throttling (Android ADPF)."""

    cpu_frequency_ratio: float | None = None
    """Present frequency over the greatest, 0.0 to 1.0."""

    battery_ratio: float | None = None
    """Charge, 0.0 to 1.0."""

    battery_discharging: bool | None = None
    power_mw: float | None = None
    """Draw from the battery in milliwatts."""

    memory_available_bytes: int | None = None
    memory_total_bytes: int | None = None
    load_ratio: float | None = None
    """One-minute load average over the number of cores."""
