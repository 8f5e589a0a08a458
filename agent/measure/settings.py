"""Whether this device measures packages for the fleet: the table `[measure]` of `agent.toml`."""

from __future__ import annotations

from typing import Final

import msgspec

MAX_LIMIT_S: Final = 86_400.0


class MeasureSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether this device measures packages that the controller asks it to measure."""

    allow: bool = False
    """Whoever owns the device decides: without it every request is refused, also where the operator
    of the fleet has lent the device."""

    limit_s: float = 1800.0
    """How long one measurement may take, with its download."""

    def faults(self) -> list[str]:
        """Return what is wrong, each as a line for the operator."""
        if not 0 < self.limit_s <= MAX_LIMIT_S:
            return [f"measure.limit_s is not above 0 and at most {MAX_LIMIT_S:.0f}"]
        return []
