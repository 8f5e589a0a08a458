"""How long the controller has heard its devices.

Rules:
- Without a connection to the broker the controller hears no device.
- After a connection was lost, the devices too must come back and repeat their reports. Until then
  nobody is to be judged by what the controller has not heard.
- A process that did not run, as in a virtual machine that was paused, has heard nobody either: what
  came meanwhile waits to be read, or the broker has given the connection up without saying so.
- When devices were heard is wall time. If that clock is set, or the machine has slept, it says
  nothing until they are heard anew.
"""

from __future__ import annotations

import logging
import threading

from telemetry.server.alerts.answers import CLOCK_STEP_S
from wire.clock import Clock

_log = logging.getLogger(__name__)

BACK_AFTER_S = 60.0
"""How long the devices have to come back after a lost connection. They connect again within
`wire.mqtt.RECONNECT_MAX_S`; the rest is for what they have to repeat."""

BEAT_S = 1.0
"""How often a thread that does nothing else says that the process runs."""

STOPPED_AFTER_S = 10.0
"""How long it has said nothing if the process did not run; on a busy machine it is less late."""


class Reception:
    """The time without interruption in which the controller has heard its devices.

    Args:
        clock: Wall time and durations.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._ahead_s = clock.now_s() - clock.monotonic_s()
        self._even_since_s = clock.monotonic_s()
        self._since_s: float | None = None
        self._was_lost = False
        self._beat_s: float | None = None

    def note(self, *, up: bool) -> None:
        """Take a change of the connection with the broker."""
        with self._lock:
            if not up:
                self._since_s, self._was_lost = None, True
            elif self._since_s is None:
                self._since_s = self._clock.monotonic_s()

    def beat(self) -> None:
        """Note that the process runs: each `BEAT_S`, or never."""
        with self._lock:
            self._look()
            self._beat_s = self._clock.monotonic_s()

    def heard_s(self) -> float:
        """Return for how long wall times tell when devices were heard; 0 without a connection.

        It is to be asked often: the wall clock is compared with what it was the last time.
        """
        with self._lock:
            now_s = self._clock.monotonic_s()
            ahead_s = self._clock.now_s() - now_s
            if abs(ahead_s - self._ahead_s) > CLOCK_STEP_S:
                self._even_since_s = now_s
            self._ahead_s = ahead_s
            even_s = now_s - self._even_since_s
            return min(self._up_s(), even_s)

    def settled_s(self) -> float:
        """Return how long the connection has held since devices have come back to it."""
        with self._lock:
            return max(0.0, self._up_s() - (BACK_AFTER_S if self._was_lost else 0.0))

    def _look(self) -> None:
        """Take a time in which the process did not run as one without a connection."""
        now_s = self._clock.monotonic_s()
        if self._beat_s is None or now_s - self._beat_s <= STOPPED_AFTER_S:
            return
        _log.warning(
            "this process did not run for %.0f s: devices have %.0f s to be heard anew",
            now_s - self._beat_s,
            BACK_AFTER_S,
        )
        self._beat_s, self._was_lost = now_s, True
        if self._since_s is not None:
            self._since_s = now_s

    def _up_s(self) -> float:
        self._look()
        since_s = self._since_s
        return 0.0 if since_s is None else self._clock.monotonic_s() - since_s
