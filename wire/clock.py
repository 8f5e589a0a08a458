"""The clock, which the caller passes to the code that needs it.

Rules:
- `now_s` is wall time and may jump; it is for people, signatures and telemetry.
- `monotonic_s` never goes back; every duration and deadline uses it.
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """A source of time and of waiting."""

    def now_s(self) -> float:
        """Return wall time in seconds since 1970-01-01T00:00:00Z."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds since an arbitrary instant; never goes back."""
        ...

    def sleep(self, duration_s: float) -> None:
        """Wait for a duration in seconds."""
        ...

    def wait(self, event: threading.Event, duration_s: float) -> bool:
        """Wait for an event for at most so many seconds; tell whether it has happened."""
        ...


def steady_s() -> float:
    """Return how long the machine has been switched on, in seconds; it runs on while it sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def local_time(at_s: float) -> datetime:
    """Return what the clock on the wall shows here at a wall time, with its distance from UTC."""
    return datetime.fromtimestamp(at_s, UTC).astimezone()


class SystemClock:
    """The machine's own clocks."""

    def now_s(self) -> float:
        """Return wall time in seconds since the epoch."""
        return time.time()

    def monotonic_s(self) -> float:
        """Return the monotonic clock in seconds."""
        return time.monotonic()

    def sleep(self, duration_s: float) -> None:
        """Sleep for a duration in seconds."""
        time.sleep(duration_s)

    def wait(self, event: threading.Event, duration_s: float) -> bool:
        """Wait for an event for at most so many seconds; tell whether it has happened."""
        return event.wait(duration_s)
