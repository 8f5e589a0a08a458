"""The operator's word that an install goes on whatever its hooks, conditions or budgets say.

Rules:
- It holds for one install: the first that one of these would hold or fail from then on, and only
  within its time. It ends with that install, so it holds for no repair of the release. No later
  veto is overridden by accident.
- It is kept in memory alone: after a restart they count again.
"""

from __future__ import annotations

import threading

from agent.ports import RecorderPort
from wire.clock import Clock
from wire.durations import format_duration


class Override:
    """Whether hooks are overridden; usable from any thread.

    Args:
        events: Takes an event for each order.
        clock: For how long it holds.
    """

    def __init__(self, events: RecorderPort, clock: Clock) -> None:
        self._events = events
        self._clock = clock
        self._lock = threading.Lock()
        self._end_s = float("-inf")
        self._install: tuple[str, int] | None = None

    def allow(self, for_s: float) -> None:
        """Let one install go on.

        Args:
            for_s: How long from now.
        """
        with self._lock:
            self._end_s, self._install = self._clock.monotonic_s() + for_s, None
        reason = (
            f"the operator overrides what would hold one install within {format_duration(for_s)}"
        )
        self._events.event("override", reason, {"for_s": for_s})

    def clear(self) -> None:
        """Let the hooks count again."""
        with self._lock:
            self._end_s, self._install = float("-inf"), None
        self._events.event(
            "override", "the operator lets hooks, window, battery and budgets count again", {}
        )

    def end(self, install: tuple[str, int]) -> None:
        """Note that an install has ended, and with it the override that held for it."""
        with self._lock:
            if self._install == install:
                self._end_s, self._install = float("-inf"), None

    @property
    def rest_s(self) -> float | None:
        """How long it still holds; None if it does not."""
        with self._lock:
            rest_s = self._end_s - self._clock.monotonic_s()
        return rest_s if rest_s > 0 else None

    def covers(self, install: tuple[str, int]) -> bool:
        """Tell whether the hooks of an install are overridden; from then on of no other.

        Args:
            install: The model that is being installed, and its revision.

        Returns:
            Whether it goes on.
        """
        with self._lock:
            if self._clock.monotonic_s() >= self._end_s:
                return False
            if self._install is None:
                self._install = install
            return self._install == install
