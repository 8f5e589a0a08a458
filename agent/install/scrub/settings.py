"""How stored packages are read again: the table `[scrub]` of `agent.toml`."""

from __future__ import annotations

from typing import Final

import msgspec

MAX_DAYS: Final = 366.0
LEAST_BYTES_PER_S: Final = 16 * 1024
"""With less, a gigabyte would take more than a day."""

MAX_BYTES_PER_S: Final = 8 * 1024 * 1024
"""It reads for some seconds at once, and with more that would be seen beside requests."""


class ScrubSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often and how fast."""

    every_days: float = 7.0
    """All stored packages are read once in so many days; 0 for never. Each start of a worker
    compares what it loads all the same."""

    bytes_per_s: int = 1024 * 1024
    """A gigabyte takes 17 minutes."""

    def faults(self) -> list[str]:
        """Return what is wrong, each as a line for the operator."""
        if not 0 <= self.every_days <= MAX_DAYS:
            return [f"scrub.every_days is not within 0 to {MAX_DAYS:.0f}"]
        if not LEAST_BYTES_PER_S <= self.bytes_per_s <= MAX_BYTES_PER_S:
            return [f"scrub.bytes_per_s is not within {LEAST_BYTES_PER_S} to {MAX_BYTES_PER_S}"]
        return []
