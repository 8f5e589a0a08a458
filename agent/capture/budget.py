"""How much of its budget of a day a capture has used. Pure.

Rules:
- Days are those of UTC. A clock that goes back begins no new day, so a device that starts without
  the time does not get its budget at each start.
- A capture that is started anew begins with all of its budget.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

DAY_S: Final = 86_400


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What has been captured in a day."""

    day: int = 0
    """Days since 1970."""

    captures: dict[str, int] = {}
    """Bytes of each capture."""

    def at(self, now_s: float) -> Spent:
        """Return what counts now: nothing if another day has begun."""
        day = int(now_s // DAY_S)
        return Spent(day=day) if day > self.day else self

    def left_bytes(self, capture: str, bytes_per_day: int) -> int:
        """Return what a capture may still take this day."""
        return max(0, bytes_per_day - self.captures.get(capture, 0))

    def plus(self, capture: str, size_bytes: int) -> Spent:
        """Return the same after a sample was taken."""
        used = self.captures.get(capture, 0) + size_bytes
        return Spent(day=self.day, captures=self.captures | {capture: used})

    def only(self, captures: Collection[str]) -> Spent:
        """Return the same without captures that have ended."""
        kept = {name: used for name, used in self.captures.items() if name in captures}
        return Spent(day=self.day, captures=kept)
