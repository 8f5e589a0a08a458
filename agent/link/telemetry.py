"""Moves figures and events from memory to the spool, and from there to the controller.

Rules:
- The pump sends a stored batch again and again until the controller acknowledges it, at most once
  in `RESEND_S`, and not while the broker has not acknowledged what was sent: the connection keeps
  those copies.
- A query writes nothing to disk, unless more than `HELD_POINTS` figures wait in memory: what it
  takes from the recorder waits there for the next `collect`.
- If the disk refuses to store, the pump keeps the events for the next time, but not the figures: an
  event is recorded only once.
"""

from __future__ import annotations

import threading
from typing import Final

from agent.link.connection import Link
from telemetry.device.recorder import MAX_EVENTS, Recorder
from telemetry.device.spool import Spool
from wire.clock import Clock
from wire.messages import Event, Point, TelemetryAck
from wire.topics import up

RESEND_S: Final = 30.0
EVENTS_EVERY_S: Final = 1.0
"""Events do not wait for the figures: they must survive a power cut just after a switch."""

BATCHES: Final = 8
"""How many may be on their way at one time: about a mebibyte."""

HELD_POINTS: Final = 4096
"""How many figures a query leaves in memory at most: 16 drains of a full recorder."""


class TelemetryPump:
    """Moves telemetry off the device; usable from several threads.

    Args:
        device: The device.
        recorder: Gathers telemetry in memory.
        spool: Stores telemetry on disk.
        link: Sends telemetry to the controller.
        clock: For the intervals.
        interval_s: Time between two collections of figures.
    """

    def __init__(
        self,
        device: str,
        *,
        recorder: Recorder,
        spool: Spool,
        link: Link,
        clock: Clock,
        interval_s: float,
    ) -> None:
        self._topic = up(device, "telemetry")
        self._recorder = recorder
        self._spool = spool
        self._link = link
        self._clock = clock
        self._interval_s = interval_s
        self._due_s = self._events_due_s = float("-inf")
        self._sent_s: dict[tuple[str, int], float] = {}
        self._lock = threading.Lock()
        self._points: list[Point] = []
        self._events: list[Event] = []

    def tick(self) -> None:
        """Collect and send what is due; called at least once a second.

        Raises:
            SpoolError: The spool cannot be written or read.
        """
        now_s = self._clock.monotonic_s()
        if now_s >= self._due_s:
            self._due_s = now_s + self._interval_s
            self.collect()
            self.send()
        elif self._recorder.holds_events and now_s >= self._events_due_s:
            self._events_due_s = now_s + EVENTS_EVERY_S
            self.collect()

    def hurry(self) -> None:
        """Let the next tick collect and send, whatever the interval."""
        self._due_s = float("-inf")

    def close(self) -> None:
        """Write what is in memory and close the spool.

        Raises:
            SpoolError: The spool cannot be written; it is closed all the same.
        """
        try:
            with self._lock:
                self._gather(whole=True)
                self._write()
        finally:
            self._spool.close()

    def collect(self) -> None:
        """Write the telemetry in memory to disk; raises SpoolError if that fails."""
        with self._lock:
            self._gather()
            self._write()

    def send(self) -> None:
        """Send the stored batches, oldest first."""
        if not self._link.is_connected():
            return
        now_s = self._clock.monotonic_s()
        waiting = {(b.boot_id, b.sequence): data for b, data in self._spool.pending(BATCHES)}
        self._sent_s = {key: at_s for key, at_s in self._sent_s.items() if key in waiting}
        has_copies = self._link.is_waiting(self._topic)
        for key, data in waiting.items():
            sent_s = self._sent_s.get(key)
            if sent_s is not None and (has_copies or now_s - sent_s < RESEND_S):
                continue
            if not self._link.publish(self._topic, data):
                return
            self._sent_s[key] = now_s

    def acknowledged(self, ack: TelemetryAck) -> None:
        """Remove what the controller has acknowledged, and send what follows."""
        self._spool.acknowledge(ack)
        for sequence in ack.sequences:
            self._sent_s.pop((ack.boot_id, sequence), None)
        self.send()

    def events(self, kinds: tuple[str, ...], since_s: float, limit: int) -> list[Event]:
        """Return the events of this device, delivered or not.

        Args:
            kinds: Only events of these kinds; empty for all.
            since_s: Only events from this wall time on.
            limit: Greatest number of events; the newest are returned.

        Returns:
            Events, oldest first.

        Raises:
            SpoolError: The spool cannot be read or written.
        """
        with self._lock:
            self._gather()
            if len(self._points) > HELD_POINTS:
                self._write()
            stored = self._spool.events(kinds, since_s, limit)
            held = [e for e in self._events if e.at_s >= since_s and (not kinds or e.kind in kinds)]
        return (stored + held)[-limit:]

    def _gather(self, *, whole: bool = False) -> None:
        points, events = self._recorder.drain(whole=whole)
        self._points += points
        self._events += events
        del self._events[:-MAX_EVENTS]

    def _write(self) -> None:
        points, self._points = self._points, []
        if points or self._events:
            self._spool.append(points, self._events)
            self._events = []
