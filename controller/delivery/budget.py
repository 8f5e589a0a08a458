"""How fast the controller sends to all devices together."""

from __future__ import annotations

import threading
from typing import Final

from wire.clock import Clock
from wire.token_bucket import TokenBucket

BURST_S: Final = 1.0
"""How many seconds of the budget an idle controller saves up."""


class Budget:
    """A limit on bytes per second: a token bucket. Any thread may ask and spend.

    Args:
        clock: Durations.
        bytes_per_s: The rate that is allowed in the long run.
    """

    def __init__(self, clock: Clock, bytes_per_s: int) -> None:
        self._clock = clock
        self._bucket = TokenBucket(bytes_per_s, bytes_per_s * BURST_S, clock.monotonic_s())
        self._lock = threading.Lock()

    def wait_s(self, size_bytes: int) -> float:
        """Return how long to wait until so many bytes may be sent; 0 if they may be sent now."""
        with self._lock:
            return self._bucket.wait_s(size_bytes, self._clock.monotonic_s())

    def spend(self, size_bytes: int) -> None:
        """Note that so many bytes were sent."""
        with self._lock:
            self._bucket.spend(size_bytes, self._clock.monotonic_s())
