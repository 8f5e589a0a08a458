"""What time it is at least: when something believed was signed, and how long the device ran since.

Rules:
- A clock that stands or lies far behind still tells how long this device has run.
- What has passed is saved with the floors. Without it a device with a wrong clock that starts often
  would see no metadata end.
"""

from __future__ import annotations

import contextlib
from typing import Final

import msgspec

from agent.errors import StorageError
from agent.trust.floors import Floors
from agent.trust.kept import KeptFiles
from agent.trust.trusted import Clocked
from wire.clock import Clock

NOTE_EVERY_S: Final = 6 * 3600.0
"""How much time a device forgets at most that is killed again and again."""


class KnownTime:
    """The time by what is believed; for one thread at a time.

    Args:
        kept: Where floors are kept.
        clock: Wall time, and how long the device runs.
        grace_s: How long after its end metadata still counts as fresh.
    """

    def __init__(self, kept: KeptFiles, clock: Clock, grace_s: float) -> None:
        self._kept = kept
        self._clock = clock
        self._grace_s = grace_s
        self._since_s = clock.monotonic_s()
        """When the floors were read or saved."""

    def now(self) -> Clocked:
        """Return when it is."""
        ran_s = self._clock.monotonic_s() - self._since_s
        time_s = self._kept.floors.time_s
        floor_s = time_s + ran_s if time_s else 0.0
        return Clocked(now_s=self._clock.now_s(), floor_s=floor_s, grace_s=self._grace_s)

    @property
    def is_due(self) -> bool:
        """Whether what has passed is to be saved."""
        return self._clock.monotonic_s() - self._since_s >= NOTE_EVERY_S

    def note(self) -> None:
        """Save how much time has passed since something was signed."""
        if self._kept.floors.time_s:
            with contextlib.suppress(StorageError):  # then less is known after the next start
                self.keep_floors(self._kept.floors)

    def keep_floors(self, floors: Floors) -> None:
        """Save floors, with the time that this device has run since; raises StorageError."""
        if floors.time_keys == self._kept.floors.time_keys:
            passed_s = max(floors.time_s, self.now().floor_s)
            floors = msgspec.structs.replace(floors, time_s=passed_s)
        self._kept.keep_floors(floors)
        self._since_s = self._clock.monotonic_s()
