"""The state of a device at one instant. Pure values.

Rules:
- A value that was not read is None: an unknown value never means cool, full or free.
- A ratio is within 0.0 to 1.0, unless its text says that it can be greater.
"""

from __future__ import annotations

import msgspec

from wire.durations import DAY_S


class HealthSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Readings of one instant; None where a sensor is missing or its reading cannot be trusted."""

    at_s: float
    """Wall time, seconds since the epoch."""

    utc_offset_s: float = 0.0
    """Local time minus UTC at that instant, daylight saving included."""

    temperature_c: float | None = None
    """The hottest zone of the processor."""

    headroom: float | None = None
    """Heat on the scale where 0.0 is nominal and 1.0 is severe throttling (Android ADPF)."""

    severe_c: float | None = None
    """The temperature of headroom 1.0, for the zone that is nearest to its own limit."""

    throttled: bool | None = None
    """Whether the kernel, the processor or the firmware slows the processor or the graphics unit
    down, now or since the last reading."""

    fan_ratio: float | None = None
    """Present state of the fastest fan, divided by its greatest."""

    cpu_frequency_ratio: float | None = None
    """Present frequency divided by the greatest, 0.0 to 1.0."""

    cpu_frequency_limit_ratio: float | None = None
    """Frequency that the kernel allows now, divided by the greatest; a limit makes it below 1.0."""

    cpu_busy_ratio: float | None = None
    """Share of the time since the last reading in which the cores were busy."""

    cpu_stall_ratio: float | None = None
    """Share of the last 10 s in which at least one task waited for a core."""

    load_ratio: float | None = None
    """One-minute load average per core; above 1.0, more tasks want to run than there are cores."""

    battery_ratio: float | None = None
    """Charge, 0.0 to 1.0."""

    battery_discharging: bool | None = None
    battery_energy_j: float | None = None
    """Energy that is left in the battery, in joules."""

    battery_capacity_j: float | None = None
    """Energy of the full battery, in joules."""

    power_mw: float | None = None
    """Draw from the battery in milliwatts."""

    memory_available_bytes: int | None = None
    memory_total_bytes: int | None = None
    memory_stall_ratio: float | None = None
    """Share of the last 10 s in which at least one task waited for memory."""

    memory_full_stall_ratio: float | None = None
    """Share of the last 10 s in which all tasks waited for memory."""

    gpu_frequency_ratio: float | None = None
    """Present frequency of the graphics unit, divided by its greatest."""

    gpu_busy_ratio: float | None = None
    """How busy the graphics unit is."""

    @property
    def local_s(self) -> float:
        """Local time of day, in seconds since midnight."""
        return (self.at_s + self.utc_offset_s) % DAY_S
