"""Sends the samples that the device keeps, one after the other, when telemetry has been sent.

Rules:
- Telemetry goes first: nothing is sent while a batch of it waits.
- A sample goes in parts; each is sent again until the controller says that it has it, ever more
  seldom (`agent.link.resending`). The device removes the sample when all of it is there.
- Of a sample that the controller refuses nothing more is sent; it is removed and counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from agent.capture.store import SampleStore, StoredSample
from agent.link.connection import Link
from agent.link.resending import Resending
from wire.capture import PIECE_BYTES, pieces_of
from wire.clock import Clock
from wire.codec import to_msgpack
from wire.samples import SampleAck, SamplePiece
from wire.topics import up

AT_ONCE: Final = 4
"""How many parts may be on their way: half a mebibyte."""


class _Going(msgspec.Struct):
    name: str
    sample: StoredSample
    left: set[int]
    """The parts that the controller does not have."""


class Sending:
    """Brings samples to the controller. Not for several threads.

    Args:
        device: The device.
        store: Has the samples.
        link: The connection to the controller.
        clock: For repeats.
        may_send: Tells whether telemetry has been sent.
        refused: Takes the head of a sample that the controller refused.
        resending: Knows when parts are sent again.
    """

    def __init__(
        self,
        device: str,
        *,
        store: SampleStore,
        link: Link,
        clock: Clock,
        may_send: Callable[[], bool],
        refused: Callable[[bytes], None],
        resending: Resending | None = None,
    ) -> None:
        self._device = device
        self._topic = up(device, "sample")
        self._store = store
        self._link = link
        self._clock = clock
        self._may_send = may_send
        self._refused = refused
        self._resending = resending or Resending()
        self._going: _Going | None = None

    def hurry(self) -> None:
        """Begin to count anew when parts are sent again: there is a new connection."""
        self._resending.begin_anew()

    def send(self) -> None:
        """Send what is due; called about once a second.

        Raises:
            StorageError: A sample cannot be read.
        """
        if not self._link.is_connected() or self._link.is_denied(self._topic):
            return
        going = self._next()
        if going is None or not self._may_send():
            return
        now_s, has_copies = self._clock.monotonic_s(), self._link.is_waiting(self._topic)
        for piece in sorted(going.left)[:AT_ONCE]:
            key = (going.name, piece)
            if not self._resending.may_send(key, now_s, has_copies=has_copies):
                continue
            if not self._link.publish(self._topic, self._message(going, piece)):
                return
            self._resending.note(key, now_s)

    def acknowledged(self, ack: SampleAck) -> None:
        """Take the controller's answer to a part, and send what follows.

        Args:
            ack: As it came.

        Raises:
            StorageError: The sample cannot be removed, or the next one not be read.
        """
        going = self._going
        if going is None or ack.sample != going.name:
            return
        if not isinstance(ack.refused, msgspec.UnsetType):
            self._refused(going.sample.head)
            going.left.clear()
        self._resending.forget((going.name, ack.piece))
        going.left.discard(ack.piece)
        if not going.left:
            self._going = None
            self._resending.keep_only(())
            self._store.remove(going.name)
        self.send()

    def _next(self) -> _Going | None:
        """Return the sample that is on its way, or the next one."""
        if self._going is None or not self._store.has(self._going.name):
            found = self._store.oldest()
            self._going = None
            if found is not None:
                name, sample = found
                left = set(range(pieces_of(len(sample.sealed))))
                self._going = _Going(name=name, sample=sample, left=left)
        return self._going

    def _message(self, going: _Going, piece: int) -> bytes:
        sealed = going.sample.sealed
        begin = piece * PIECE_BYTES
        return to_msgpack(
            SamplePiece(
                device=self._device,
                sample=going.name,
                head=going.sample.head,
                piece=piece,
                pieces=pieces_of(len(sealed)),
                blob=sealed[begin : begin + PIECE_BYTES],
            )
        )
