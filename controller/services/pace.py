"""How often work is done whose cost grows with the fleet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from wire.clock import Clock

SHARE: Final = 0.05
"""Which part of the time such work takes at most. With a small fleet each tick does it: it takes
some milliseconds."""


class Pace:
    """Lets work that took long wait before it is done again.

    Args:
        clock: Durations.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due_at_s = clock.monotonic_s()

    def is_due(self) -> bool:
        """Tell whether it is time to do the work."""
        return self._clock.monotonic_s() >= self._due_at_s

    @contextmanager
    def working(self) -> Iterator[None]:
        """Do the work in the `with` block."""
        began_s = self._clock.monotonic_s()
        try:
            yield
        finally:
            now_s = self._clock.monotonic_s()
            self._due_at_s = began_s + (now_s - began_s) / SHARE
