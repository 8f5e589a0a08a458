"""How long the controller has heard its devices.

Rules:
- Without a connection to the broker the controller hears no device.
- After a connection was lost, the devices too must come back and repeat their reports. Until then
  nobody is to be judged by what the controller has not heard.
"""

from __future__ import annotations

from wire.clock import Clock

BACK_AFTER_S = 60.0
"""How long the devices have to come back after a lost connection. They connect again within
`wire.mqtt.RECONNECT_MAX_S`; the rest is for what they have to repeat."""


class Reception:
    """The time without interruption in which the controller has heard its devices.

    Args:
        clock: Durations.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_s: float | None = None
        self._was_lost = False

    def note(self, *, up: bool) -> None:
        """Take a change of the connection with the broker."""
        if not up:
            self._since_s, self._was_lost = None, True
        elif self._since_s is None:
            self._since_s = self._clock.monotonic_s()

    def heard_s(self) -> float:
        """Return how long the connection has held; 0 while there is none."""
        since_s = self._since_s
        return 0.0 if since_s is None else self._clock.monotonic_s() - since_s

    def settled_s(self) -> float:
        """Return the same without the time in which devices come back after a lost connection."""
        return max(0.0, self.heard_s() - (BACK_AFTER_S if self._was_lost else 0.0))
