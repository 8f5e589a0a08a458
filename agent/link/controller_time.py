"""What time it is at the controller, and by how much this device's clock is wrong.

Rules:
- Only an acknowledgement of this start of the agent tells it, and only if it came soon after its
  batch was sent: so the error is at most half of `LATE_S`. One that comes later, because something
  waited at the broker, tells nothing.
- Durations are those of the steady clock, which runs on while the device sleeps; so the wall clock
  may be set meanwhile, and batches that were made before are still known to be wrong, and by how
  much.
- Of a batch of an earlier start it is known only what was known when it was made: nobody can tell
  how long the device was off.
- Only telemetry goes by this. What is signed goes by signed times (`agent.trust`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import msgspec

from wire.batch_clock import BatchClock
from wire.clock import Clock
from wire.telemetry import TelemetryAck, TelemetryBatch

LATE_S: Final = 60.0
JUMP_S: Final = 30.0
"""A wall clock that moves by more against the steady one was set; figures are of whole minutes."""

LATE_ANSWERS: Final = 3
"""After so many late answers, each to something that was sent after the one before had come, the
road to the controller is too slow: the device cannot know the time."""


class ControllerTime:
    """Knows the controller's time from its acknowledgements.

    Args:
        start: Identifies this start of the agent; its batches' boot identifiers begin with it.
        clock: Wall time.
        steady_s: Returns the steady clock.
    """

    def __init__(self, start: str, clock: Clock, steady_s: Callable[[], float]) -> None:
        self._start = start
        self._clock = clock
        self._steady_s = steady_s
        self._base_s: float | None = None
        """The controller's time less the steady clock; None while it is unknown."""

        self._late = 0
        self._late_at_s = -math.inf
        self._last = self._now()

    @property
    def is_known(self) -> bool:
        """Whether batches of this start say how wrong the clock is."""
        return self._base_s is not None

    def stamp(self) -> BatchClock:
        """Return the clocks of a batch that is made now."""
        now = self._now()
        if self._base_s is None:
            return now
        return msgspec.structs.replace(now, ahead_s=self._ahead_s(now))

    def former(self) -> BatchClock | None:
        """Return the clocks as they would be, had the wall clock not been set since the last call.

        Returns:
            None if it was not set.
        """
        last, self._last = self._last, self._now()
        passed_s = self._last.made_steady_s - last.made_steady_s
        would_be = msgspec.structs.replace(self._last, made_at_s=last.made_at_s + passed_s)
        if abs(self._last.made_at_s - would_be.made_at_s) < JUMP_S:
            return None
        if self._base_s is None:
            return would_be
        return msgspec.structs.replace(would_be, ahead_s=self._ahead_s(would_be))

    def heard(self, ack: TelemetryAck) -> None:
        """Learn from an acknowledgement."""
        at_s, sent_s = ack.at_s, ack.sent_steady_s
        if isinstance(at_s, msgspec.UnsetType) or isinstance(sent_s, msgspec.UnsetType):
            return
        now_s = self._steady_s()
        took_s = now_s - sent_s
        if not self._is_own(ack.boot_id) or not math.isfinite(at_s) or not took_s >= 0.0:
            return
        if took_s <= LATE_S:
            self._base_s, self._late = at_s - (now_s + sent_s) / 2.0, 0
        elif sent_s >= self._late_at_s:
            self._late, self._late_at_s = self._late + 1, now_s

    def sent(self, batch: TelemetryBatch) -> TelemetryBatch:
        """Return a batch with what is known of its clocks when it is sent now."""
        clock = batch.clock
        if isinstance(clock, msgspec.UnsetType):
            return batch
        now_s = self._steady_s()
        if not self._is_own(batch.boot_id):
            ahead_s = None if isinstance(clock.ahead_s, msgspec.UnsetType) else clock.ahead_s
            told = msgspec.structs.replace(clock, sent_steady_s=now_s, ahead_s=ahead_s)
        else:
            told = msgspec.structs.replace(
                clock,
                sent_steady_s=now_s,
                shown_s=clock.made_at_s + now_s - clock.made_steady_s,
                ahead_s=self._told_ahead_s(clock),
            )
        return msgspec.structs.replace(batch, clock=told)

    def _told_ahead_s(self, clock: BatchClock) -> float | msgspec.UnsetType | None:
        if self._base_s is not None:
            return self._ahead_s(clock)
        return None if self._late >= LATE_ANSWERS else msgspec.UNSET

    def _ahead_s(self, clock: BatchClock) -> float:
        return clock.made_at_s - clock.made_steady_s - (self._base_s or 0.0)

    def _now(self) -> BatchClock:
        return BatchClock(made_at_s=self._clock.now_s(), made_steady_s=self._steady_s())

    def _is_own(self, boot_id: str) -> bool:
        return boot_id.partition(".")[0] == self._start


def is_nearer(at_s: float, first: BatchClock, second: BatchClock) -> bool:
    """Tell whether a wall time is nearer to what one clock shows than to what another shows."""
    return abs(at_s - first.made_at_s) < abs(at_s - second.made_at_s)
