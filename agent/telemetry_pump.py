"""Brings figures and events from memory to the spool, and from there to the controller.

Rules:
- What is on disk is sent until it is acknowledged; a batch that is on its way is not sent again
  before `RESEND_S`.
"""

from __future__ import annotations

from typing import Final

from agent.link import Link
from telemetry.recorder import Recorder
from telemetry.spool import Spool
from wire.clock import Clock
from wire.messages import Event, TelemetryAck
from wire.topics import up

RESEND_S: Final = 30.0
BATCHES: Final = 8
"""On their way at one time: about a mebibyte."""


class TelemetryPump:
    """Moves telemetry off the device.

    Args:
        device: Whose.
        recorder: Where it gathers.
        spool: Where it waits.
        link: Where it goes.
        clock: For sending again.
    """

    def __init__(
        self, device: str, *, recorder: Recorder, spool: Spool, link: Link, clock: Clock
    ) -> None:
        self._topic = up(device, "telemetry")
        self._recorder = recorder
        self._spool = spool
        self._link = link
        self._clock = clock
        self._sent_s: dict[tuple[str, int], float] = {}

    def collect(self) -> None:
        """Bring to disk what gathered in memory."""
        points, events = self._recorder.drain()
        if points or events:
            self._spool.append(points, events)

    def send(self) -> None:
        """Send what waits, oldest first."""
        if not self._link.is_connected():
            return
        now_s = self._clock.monotonic_s()
        waiting = {(b.boot_id, b.sequence): data for b, data in self._spool.pending(BATCHES)}
        self._sent_s = {key: at_s for key, at_s in self._sent_s.items() if key in waiting}
        for key, data in waiting.items():
            if now_s - self._sent_s.get(key, float("-inf")) < RESEND_S:
                continue
            if not self._link.publish(self._topic, data):
                return
            self._sent_s[key] = now_s

    def acknowledged(self, ack: TelemetryAck) -> None:
        """Forget what the controller has, and send what follows."""
        self._spool.acknowledge(ack)
        for sequence in ack.sequences:
            self._sent_s.pop((ack.boot_id, sequence), None)
        self.send()

    def events(self, kinds: tuple[str, ...], since_s: float, limit: int) -> list[Event]:
        """Return what happened on this device, oldest first, with or without a connection."""
        self.collect()
        return list(self._spool.events(kinds, since_s, limit))
