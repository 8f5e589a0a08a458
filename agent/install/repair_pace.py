"""How long repairs rest: each twice as long as the one before, up to an hour. Pure."""

from __future__ import annotations

from typing import Final

REPAIR_MIN_S: Final = 30.0
REPAIR_MAX_S: Final = 3600.0
"""Storage that damages its files again and again must not keep the network busy."""


class RepairPace:
    """When something may be repaired again."""

    def __init__(self) -> None:
        self._at_s = float("-inf")
        self._rest_s = REPAIR_MIN_S

    def may_begin(self, now_s: float) -> bool:
        """Tell whether the last repair is long enough ago."""
        return now_s - self._at_s >= self._rest_s

    def begin(self, now_s: float) -> None:
        """Note a repair; the next one rests longer, unless this is the first for long."""
        is_first = now_s - self._at_s > 2 * REPAIR_MAX_S
        self._rest_s = REPAIR_MIN_S if is_first else min(2 * self._rest_s, REPAIR_MAX_S)
        self._at_s = now_s
