"""How often a device decides while nobody asks anything of it. Pure.

A decision costs about as much as all else that the supervisor does in a second. While no request
comes, no answer can be better or worse, so a device decides only every few seconds; as soon as a
request has come, or the readings change, it decides in the same second.

Rules:
- A device that is warm, short of memory, or slowed down has no time to rest.
"""

from __future__ import annotations

from typing import Final

from wire.health import HealthSnapshot
from wire.policy import PolicySpec

REST_S: Final = 5.0
"""Longest time without a decision: a heat that rises by itself takes minutes."""

CALM_HEADROOM: Final = 0.6
"""Up to this heat nothing is near a limit."""

PLENTY: Final = 2.0
"""Times the memory that is to stay free: with less, memory is looked at every second."""

CHANGES: Final = (
    ("headroom", 0.01),
    ("cpu_busy_ratio", 0.2),
    ("cpu_stall_ratio", 0.1),
    ("load_ratio", 0.25),
    ("battery_ratio", 0.005),
)
"""By how much a reading may differ from the one of the last decision."""

MEMORY_CHANGE: Final = 1.0 / 16.0
"""The same for free memory, as a share of it."""

EQUAL: Final = (
    "throttled",
    "fan_ratio",
    "cpu_frequency_limit_ratio",
    "battery_discharging",
    "utc_offset_s",
)
"""Readings that have to be as they were."""


def may_rest(before: HealthSnapshot, now: HealthSnapshot, spec: PolicySpec) -> bool:
    """Tell whether readings call for no decision of their own.

    Args:
        before: The readings of the last decision.
        now: The newest readings.
        spec: The policy, which says how much memory stays free.
    """
    free_bytes = now.memory_available_bytes
    is_calm = (now.headroom or 0.0) <= CALM_HEADROOM and not now.throttled
    has_room = free_bytes is None or free_bytes >= PLENTY * spec.low_memory_bytes
    return (
        is_calm
        and has_room
        and all(getattr(before, name) == getattr(now, name) for name in EQUAL)
        and all(_is_near(getattr(before, n), getattr(now, n), most) for n, most in CHANGES)
        and _is_near(
            before.memory_available_bytes, free_bytes, MEMORY_CHANGE * float(free_bytes or 0)
        )
    )


def _is_near(before: float | None, now: float | None, most: float) -> bool:
    if before is None or now is None:
        return before is now
    return abs(now - before) <= most
