"""The telemetry of a simulated device, in memory: batches wait until the controller has them.

Rules:
- As on a device: what is not acknowledged is sent again, ever more seldom; events and figures are
  cut into batches that a broker accepts; the oldest batches go when too many wait, and a later
  batch says how many have gone. What a device keeps on disk is here in memory alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from agent.link.resending import Resending
from telemetry.batches import cut
from telemetry.device.recorder import Recorder
from wire.codec import to_msgpack
from wire.telemetry import Event, TelemetryAck, TelemetryBatch

MAX_WAITING: Final = 64


class MemorySpool:
    """The batches of one start of a device.

    Args:
        device: Whose they are.
        boot_id: This start.
        chance: Varies when batches are sent again.
    """

    def __init__(self, device: str, boot_id: str, chance: Callable[[], float]) -> None:
        self._device = device
        self._boot_id = boot_id
        self._waiting: dict[int, bytes] = {}
        self._resending = Resending(chance)
        self._next = 0
        self._dropped = 0
        self.lost = 0
        """Batches that were dropped, in all."""

    def collect(self, recorder: Recorder) -> None:
        """Make batches of what was recorded."""
        points, events = recorder.drain(whole=True)
        groups, refused = cut((*points, *events))
        self._dropped += refused
        for group in groups:
            batch = TelemetryBatch(
                device=self._device,
                boot_id=self._boot_id,
                sequence=self._next,
                points=tuple(item for item in group if not isinstance(item, Event)),
                events=tuple(item for item in group if isinstance(item, Event)),
                dropped=self._dropped,
            )
            self._waiting[self._next] = to_msgpack(batch)
            self._next, self._dropped = self._next + 1, 0
        while len(self._waiting) > MAX_WAITING:
            del self._waiting[min(self._waiting)]
            self._dropped += 1
            self.lost += 1

    def send(self, now_s: float, publish: Callable[[bytes], bool]) -> int:
        """Send what is due, the oldest first; return how many batches went out.

        Args:
            now_s: Monotonic.
            publish: Tells whether there was a connection.
        """
        sent = 0
        for number, data in self._waiting.items():
            key = (self._boot_id, number)
            if not self._resending.may_send(key, now_s, has_copies=False):
                continue
            if not publish(data):
                break
            self._resending.note(key, now_s)
            sent += 1
        return sent

    def acknowledged(self, ack: TelemetryAck) -> int:
        """Forget what the controller has stored; return how many batches that were."""
        if ack.boot_id != self._boot_id:
            return 0
        stored = [number for number in ack.sequences if number in self._waiting]
        for number in stored:
            del self._waiting[number]
            self._resending.forget((self._boot_id, number))
        return len(stored)
