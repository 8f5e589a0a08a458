"""The state of a device at one instant. Pure values.

Rules:
- A value that was not read is None: an unknown value never means cool, full or free.
- A ratio is 0.0 to 1.0 of what its name says, unless its text says more.
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

    severe_c: float | None = None
    """Where that scale has its 1.0, in the zone that is nearest to it."""

    throttled: bool | None = None
    """Whether the kernel, the processor or the firmware slows the processor or the graphics unit
    down, now or since the last reading."""

    fan_ratio: float | None = None
    """Present state of the fastest fan over its greatest."""

    cpu_frequency_ratio: float | None = None
    """Present frequency over the greatest, 0.0 to 1.0."""

    cpu_frequency_limit_ratio: float | None = None
    """Frequency that the kernel now allows over the greatest: below 1.0 somebody limits it."""

    cpu_busy_ratio: float | None = None
    """Share of the time since the last reading in which the cores worked."""

    cpu_stall_ratio: float | None = None
    """Share of the last 10 s in which something waited for a core."""

    load_ratio: float | None = None
    """One-minute load average over the number of cores; over 1.0 when more want to run."""

    battery_ratio: float | None = None
    """Charge, 0.0 to 1.0."""

    battery_discharging: bool | None = None
    battery_energy_j: float | None = None
    """What is left in the battery, in joules."""

    battery_capacity_j: float | None = None
    """What the battery holds when it is full, in joules."""

    power_mw: float | None = None
    """Draw from the battery in milliwatts."""

    memory_available_bytes: int | None = None
    memory_total_bytes: int | None = None
    memory_stall_ratio: float | None = None
    """Share of the last 10 s in which something waited for memory."""

    memory_full_stall_ratio: float | None = None
    """Share of the last 10 s in which everything waited for memory."""

    gpu_frequency_ratio: float | None = None
    """Present frequency of the graphics unit over its greatest."""

    gpu_busy_ratio: float | None = None
    """How busy the graphics unit is."""
