"""When devices were silent in the past, by what they measured.

Rules:
- What a device measured while it was away and sent later counts as heard: the store has no other
  time. So the past shows at most the silences that there were.
- Of a time of which minutes are no longer kept no silence is known.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import NamedTuple

from telemetry.errors import NotKeptError
from telemetry.server.alerts.answers import Heard
from telemetry.server.question import SECONDS_PER_MINUTE
from telemetry.server.store import TelemetryStore


class _Measured(NamedTuple):
    first: int
    last: int
    """The minutes of the first and the last measurement."""

    gaps: list[tuple[int, int]]
    """The minutes around each silence, rising."""


class Silences:
    """The silences of devices.

    Args:
        store: The telemetry.
        enrolled: When each device that should be heard was enrolled, wall time.
        since_s: From when on they will be asked for, wall time.
        until_s: Until when.
        longer_than_s: Shorter silences do not count.

    Raises:
        TelemetryStoreError: The database failed.
    """

    def __init__(
        self,
        store: TelemetryStore,
        enrolled: Mapping[str, float],
        since_s: float,
        until_s: float,
        longer_than_s: float,
    ) -> None:
        self._enrolled = enrolled
        self._begin_s = max(since_s - longer_than_s - SECONDS_PER_MINUTE, 0.0)
        begin, end = (int(at_s // SECONDS_PER_MINUTE) for at_s in (self._begin_s, until_s))
        shortest = int(longer_than_s // SECONDS_PER_MINUTE)
        measured, gaps = store.silences(begin, end + 1, longer_than=shortest)
        with store.snapshot() as snapshot:
            first_kept, *_ = (kept.first for kept in snapshot.kept())
        self._known_since_s = (first_kept and first_kept + shortest) * SECONDS_PER_MINUTE
        self._measured = {each.device: _Measured(each.first, each.last, []) for each in measured}
        for device, before, after in gaps:
            if device in self._measured:  # it may have begun to measure in between
                self._measured[device].gaps.append((before, after))

    def heard(self, at_s: float) -> Heard:
        """Return when each device had been heard last at a time.

        Args:
            at_s: The time, a whole minute.

        Raises:
            NotKeptError: What devices measured then is no longer kept by the minute.
        """
        if at_s < self._known_since_s:
            raise NotKeptError("minutes of so long ago are no longer kept")
        return {
            device: max(self._heard(device, at_s), enrolled_s)
            for device, enrolled_s in self._enrolled.items()
            if enrolled_s <= at_s
        }

    def _heard(self, device: str, at_s: float) -> float:
        known = self._measured.get(device)
        minute = int(at_s // SECONDS_PER_MINUTE)  # the first that is not known yet
        if known is None or minute <= known.first:
            return self._begin_s
        # The last gap that begins before that minute.
        at = bisect_left(known.gaps, (minute, 0)) - 1
        if at >= 0 and minute <= known.gaps[at][1]:
            return (known.gaps[at][0] + 1.0) * SECONDS_PER_MINUTE
        return min((known.last + 1.0) * SECONDS_PER_MINUTE, at_s)
