"""Time that stands still until a test moves it."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class ManualClock:
    """A `wire.clock.Clock` under a test's control."""

    wall_s: float = 1_700_000_000.0
    steady_s: float = 100.0

    def now_s(self) -> float:
        return self.wall_s

    def monotonic_s(self) -> float:
        return self.steady_s

    def sleep(self, duration_s: float) -> None:
        self.wall_s += duration_s
        self.steady_s += duration_s

    def wait(self, event: threading.Event, duration_s: float) -> bool:
        self.sleep(duration_s)
        return event.is_set()
