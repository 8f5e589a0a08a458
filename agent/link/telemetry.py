"""Moves figures and events from memory to the spool, and from there to the controller.

Rules:
- The pump sends a stored batch again and again until the controller acknowledges it, ever more
  seldom (`agent.link.resending`). What is sent for the first time is compressed if the controller
  has said that it reads that; what is sent again is plain, which any controller reads.
- While there is no connection, figures are collected when their minute is over: then each series
  has one point for a minute.
- Counters and histograms that wait in memory are kept on disk each `KEEP_S`, too, so that a kill of
  the process loses no more than that.
- A query writes nothing to disk, unless more than `HELD_POINTS` figures wait in memory: what it
  takes from the recorder waits there for the next `collect`.
- If the disk refuses to store, the pump keeps the events for the next time, but not the figures: an
  event is recorded only once.
- The controller may ask for figures less often than the device is set to, within bounds; and once
  each `REPORT_EVERY_S` for what there is now.
- A batch says what the clocks showed (`agent.link.controller_time`). If the wall clock was set,
  what was recorded before goes into a batch of its own. What the controller wants again, because
  its times may be wrong, is sent again as soon as the device knows how wrong its clock is.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Final

import msgspec

from agent.link.connection import Link
from agent.link.controller_time import ControllerTime, is_nearer
from agent.link.resending import Resending
from telemetry.device.recorder import MAX_EVENTS, Recorder
from telemetry.device.spool import Spool
from telemetry.errors import SpoolError
from wire.batch_clock import BatchClock
from wire.clock import Clock
from wire.codec import to_msgpack
from wire.packed import ZSTD, packed
from wire.reporting import MAX_REQUEST_ID, ReportRequest
from wire.telemetry import Event, Point, TelemetryAck
from wire.topics import up

KEEP_S: Final = 0.5
"""With a look at it each half second, a kill loses less than a second of figures."""

OFFLINE_S: Final = 60.0
"""Time between two collections without a connection: figures are kept by the minute anyway."""

ASKED_S: Final = (10.0, 600.0)
"""The bounds on the interval that a controller may ask for."""

EVENTS_EVERY_S: Final = 1.0
"""Events do not wait for the figures: they must survive a power cut just after a switch."""

REPORT_EVERY_S: Final = 5.0
"""The controller may ask for a report at once so often; what it asks in between is left out."""

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
        interval_s: Returns the time between two collections of figures.
        resending: Knows when batches are sent again.
        time: Knows what time it is at the controller; None where nobody tells it.
    """

    def __init__(
        self,
        device: str,
        *,
        recorder: Recorder,
        spool: Spool,
        link: Link,
        clock: Clock,
        interval_s: Callable[[], float],
        resending: Resending | None = None,
        time: ControllerTime | None = None,
    ) -> None:
        self._topic = up(device, "telemetry")
        self._recorder = recorder
        self._spool = spool
        self._link = link
        self._clock = clock
        self._interval_s = interval_s
        self._asked_s = 0.0
        self._reads: tuple[str, ...] = ()
        """The compressions that the controller reads, as far as it has said."""

        self._due_s = self._events_due_s = self._keep_due_s = float("-inf")
        self._resending = resending or Resending()
        self._time = time
        self._report_s = float("-inf")
        """When the controller may ask for a report again."""

        self._lock = threading.Lock()
        self._is_unkept = False
        """Whether figures wait here that were not kept."""

        self._points: list[Point] = []
        self._events: list[Event] = []

    def tick(self) -> None:
        """Collect and send what is due; called at least once a second.

        Raises:
            SpoolError: The spool cannot be written or read.
        """
        self._part_clocks()
        now_s = self._clock.monotonic_s()
        if now_s >= self._due_s:
            self._due_s = now_s + self._rest_s()
            self._recorder.grain_minutes = max(1, int(self.every_s / 60.0))
            self._collect(finished=self._is_alone)
            self.send()
        elif self._recorder.holds_events and now_s >= self._events_due_s:
            self._events_due_s = now_s + EVENTS_EVERY_S
            self._collect(finished=self._is_alone)
        else:
            self.keep()

    def keep(self) -> None:
        """Keep the figures that wait in memory, if it is time; any thread may call this often.

        More than one should: the one that collects may wait for something else for seconds.
        """
        now_s = self._clock.monotonic_s()
        is_new = self._is_unkept or self._recorder.has_new_figures
        if not is_new or now_s < self._keep_due_s:
            return
        with self._lock:
            self._keep_due_s = now_s + KEEP_S
            self._spool.keep((*self._points, *self._recorder.look()), self._stamp())
            self._is_unkept = False

    @property
    def is_through(self) -> bool:
        """Whether the controller has all that was collected; raises SpoolError."""
        return not self._link.is_waiting(self._topic) and not self._spool.pending(1)

    @property
    def every_s(self) -> float:
        """Time between two collections of figures while there is a connection."""
        return max(self._interval_s(), self._asked_s)

    def _rest_s(self) -> float:
        """Return the time until figures are collected again."""
        if not self._is_alone:
            return self.every_s
        return OFFLINE_S - self._clock.now_s() % OFFLINE_S

    @property
    def _is_alone(self) -> bool:
        """Whether there is no connection, and figures would otherwise come more often."""
        return self.every_s < OFFLINE_S and not self._link.is_connected()

    def hurry(self) -> None:
        """Let the next tick collect and send, whatever the interval: there is a new connection."""
        self._due_s = float("-inf")
        self._resending.begin_anew()

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
        self._collect(finished=False)

    def send(self) -> None:
        """Send the stored batches, oldest first."""
        if not self._link.is_connected():
            return
        now_s = self._clock.monotonic_s()
        waiting = {(b.boot_id, b.sequence): (b, data) for b, data in self._spool.pending(BATCHES)}
        resending = self._resending
        resending.keep_only(waiting)
        has_copies = self._link.is_waiting(self._topic)
        for key, (batch, stored) in waiting.items():
            if not resending.may_send(key, now_s, has_copies=has_copies):
                continue
            data = stored if self._time is None else to_msgpack(self._time.sent(batch))
            is_packed = ZSTD in self._reads and not resending.is_repeat(key)
            if not self._link.publish(self._topic, packed(data) if is_packed else data):
                return
            resending.note(key, now_s)

    def acknowledged(self, ack: TelemetryAck) -> None:
        """Remove what the controller has acknowledged, and send what follows."""
        if self._time is not None:
            self._time.heard(ack)
        self._spool.acknowledge(ack)
        self._reads = () if isinstance(ack.reads, msgspec.UnsetType) else ack.reads
        self._asked_s = _bounded_s(ack.report_every_s)
        done = ack.sequences
        if self._time is not None and self._time.is_known:
            # Those that are wanted again go out at once; without the time they have their turn.
            done += () if isinstance(ack.again, msgspec.UnsetType) else ack.again
        for sequence in done:
            self._resending.forget((ack.boot_id, sequence))
        self.send()

    def report(self, request: ReportRequest) -> None:
        """Collect and send what there is, because the controller asks for it.

        Args:
            request: What the last batch answers; one that comes too soon is left out.

        Raises:
            SpoolError: The spool cannot be written or read.
        """
        now_s = self._clock.monotonic_s()
        if now_s < self._report_s or not 0 < len(request.id) <= MAX_REQUEST_ID:
            return
        self._report_s = now_s + REPORT_EVERY_S
        self._part_clocks()
        with self._lock:
            self._gather(whole=True)
            self._write(answers=request.id)
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
            self._is_unkept = bool(self._points)
            if len(self._points) > HELD_POINTS:
                self._write()
            stored = self._spool.events(kinds, since_s, limit)
            held = [e for e in self._events if e.at_s >= since_s and (not kinds or e.kind in kinds)]
        return (stored + held)[-limit:]

    def _collect(self, *, finished: bool) -> None:
        with self._lock:
            self._gather(finished=finished)
            self._write()

    def _gather(self, *, whole: bool = False, finished: bool = False) -> None:
        points, events = self._recorder.drain(whole=whole, finished=finished)
        self._points += points
        self._events += events
        del self._events[:-MAX_EVENTS]

    def _part_clocks(self) -> None:
        """If the wall clock was set, write what was recorded before apart from what came since.

        Raises:
            SpoolError: The spool cannot be written.
        """
        if self._time is None or (former := self._time.former()) is None:
            return
        now = self._time.stamp()
        with self._lock:
            self._gather(whole=True)
            points, events = self._points, self._events
            for clock, is_former in ((former, True), (now, False)):
                self._points = [
                    point
                    for point in points
                    if is_nearer(point.minute * 60.0 + 30.0, former, now) is is_former
                ]
                self._events = [e for e in events if is_nearer(e.at_s, former, now) is is_former]
                try:
                    self._write(clock)
                except SpoolError:
                    self._events = events
                    raise

    def _write(
        self,
        clock: BatchClock | msgspec.UnsetType = msgspec.UNSET,
        answers: str | msgspec.UnsetType = msgspec.UNSET,
    ) -> None:
        points, self._points = self._points, []
        self._is_unkept = False
        if points or self._events or answers:
            self._spool.append(points, self._events, clock or self._stamp(), answers=answers)
            self._events = []

    def _stamp(self) -> BatchClock | msgspec.UnsetType:
        return msgspec.UNSET if self._time is None else self._time.stamp()


def _bounded_s(asked_s: float | msgspec.UnsetType) -> float:
    """Return the interval that a controller asks for, within its bounds; 0 for none."""
    if isinstance(asked_s, msgspec.UnsetType) or math.isnan(asked_s):
        return 0.0
    return min(max(asked_s, ASKED_S[0]), ASKED_S[1])
