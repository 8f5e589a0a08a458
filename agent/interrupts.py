"""Ends work early: because the agent stops, or because a newer desired state has arrived.

Rules:
- The work itself checks for an end at its safe points; no other thread ends it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from agent.errors import StoppedError, SupersededError
from wire.clock import Clock

SLICE_S = 0.2
"""Longest wait without a check: a stop must be done within some seconds."""


class Interrupts:
    """Two requests that any thread may make: stop the agent, end the running install.

    Args:
        clock: For waiting.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stop = threading.Event()
        self._superseded = threading.Event()
        self._sleepers: list[Callable[[], None]] = []

    def wake_on_stop(self, wake: Callable[[], None]) -> None:
        """Register a function that wakes a sleeping thread at a stop.

        Args:
            wake: The function; `stop` calls it, after `stopping` has become true.
        """
        self._sleepers.append(wake)

    def stop(self) -> None:
        """Ask every thread of the agent to end."""
        self._stop.set()
        for wake in self._sleepers:
            wake()

    @property
    def stopping(self) -> bool:
        """Whether the agent is being stopped."""
        return self._stop.is_set()

    def supersede(self) -> None:
        """Ask the running install to end, because a newer desired state waits."""
        self._superseded.set()

    def clear_superseded(self) -> None:
        """Note that the newer desired state has been taken."""
        self._superseded.clear()

    def check(self, *, abandon: bool) -> None:
        """Raise an error if the work must end now.

        Args:
            abandon: Whether a newer install may begin at this point.

        Raises:
            StoppedError: The agent is being stopped.
            SupersededError: A newer desired state has come.
        """
        if self._stop.is_set():
            raise StoppedError("the agent is being stopped")
        if abandon and self._superseded.is_set():
            raise SupersededError("a newer desired state has arrived")

    def wait(self, duration_s: float, *, abandon: bool) -> None:
        """Wait, and check again and again.

        Args:
            duration_s: How long to wait.
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
