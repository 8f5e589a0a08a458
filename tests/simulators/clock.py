"""A clock that tests move: sleeping takes no time and moves it."""

from __future__ import annotations

import threading


class FakeClock:
    """Time as a test says.

    Args:
        at_s: Wall time at the beginning, seconds since the epoch.
    """

    def __init__(self, at_s: float = 1_750_000_000.0) -> None:
        self._lock = threading.Lock()
        self._at_s = at_s
        self._elapsed_s = 0.0
        self.slept_s: list[float] = []

    def now_s(self) -> float:
        return self._at_s + self._elapsed_s

    def monotonic_s(self) -> float:
        return self._elapsed_s

    def sleep(self, duration_s: float) -> None:
        self.slept_s.append(duration_s)
        self.advance(duration_s)

    def wait(self, event: threading.Event, duration_s: float) -> bool:
        if not event.is_set():
            self.sleep(duration_s)
        return event.is_set()

    def correct(self, by_s: float) -> None:
        """Set the wall clock right, as NTP does; no time passes."""
        with self._lock:
            self._at_s += by_s

    def advance(self, duration_s: float) -> None:
        """Let time pass."""
        with self._lock:
            self._elapsed_s += duration_s
