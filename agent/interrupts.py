"""How long work is ended early: by a stop of the agent, or by a newer desired state.

Rules:
- Work asks at its safe points; nobody ends it from outside.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from agent.errors import StoppedError, SupersededError
from wire.clock import Clock

SLICE_S = 0.2
"""Longest wait without asking: a stop must be done within some seconds."""


class Interrupts:
    """Two wishes that other threads may have of an install.

    Args:
        clock: For waiting.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stop = threading.Event()
        self._newer = threading.Event()
        self._sleepers: list[Callable[[], None]] = []

    def wake_on_stop(self, wake: Callable[[], None]) -> None:
        """Have a sleeper woken when everything is to end.

        Args:
            wake: Called after the wish can be seen, by whoever wishes it.
        """
        self._sleepers.append(wake)

    def stop(self) -> None:
        """Wish that everything ends."""
        self._stop.set()
        for wake in self._sleepers:
            wake()

    @property
    def stopping(self) -> bool:
        """Whether everything is to end."""
        return self._stop.is_set()

    def newer(self) -> None:
        """Wish that the present install makes room for a newer one."""
        self._newer.set()

    def made_room(self) -> None:
        """Say that the newer install begins."""
        self._newer.clear()

    def check(self, *, abandon: bool) -> None:
        """End the work if somebody wishes so.

        Args:
            abandon: Whether this is a place where a newer install may begin.

        Raises:
            StoppedError: The agent is being stopped.
            SupersededError: A newer desired state has come.
        """
        if self._stop.is_set():
            raise StoppedError("the agent is being stopped")
        if abandon and self._newer.is_set():
            raise SupersededError("a newer desired state has come")

    def wait(self, duration_s: float, *, abandon: bool) -> None:
        """Wait, asking all the while.

        Args:
            duration_s: How long.
            abandon: Whether a newer install may begin meanwhile.

        Raises:
            StoppedError: The agent is being stopped.
            SupersededError: A newer desired state has come.
        """
        end_s = self._clock.monotonic_s() + duration_s
        self.check(abandon=abandon)
        while (rest_s := end_s - self._clock.monotonic_s()) > 0:
            self._clock.sleep(min(rest_s, SLICE_S))
            self.check(abandon=abandon)
