"""Fetches blobs piece by piece over messages: the source that every device has.

Rules:
- Messages may get lost, and the controller may be away: the device asks again, less and less often
  (`agent.install.fetch.flow`). A transfer ends when it is complete or when somebody ends it.
- A connection that breaks costs what was under way. If it stays away, the transfer ends for now.
- What was asked for comes, and costs, also when a budget ends the transfer: it is taken before.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from math import ceil
from typing import Final

import msgspec

from agent.errors import DeferredError
from agent.install.fetch.asking import Request
from agent.install.fetch.flow import MAX_WINDOW_BYTES, Flow
from agent.install.fetch.part import Blob, Part
from agent.install.fetch.slowness import Slow, Watch
from agent.install.fetch.sources import Errand, SlowError, SourceName
from agent.install.fetch.transfer import Transfer
from wire.clock import Clock
from wire.codec import to_json
from wire.delivery import NOTHING_LEFT, Chunk, ChunkRequest
from wire.errors import TransportError
from wire.progress import MQTT
from wire.topics import up

POLL_S: Final = 0.2
OFFLINE_S: Final = 60.0
"""So long a transfer waits for its connection: what it has need not be hashed again after it."""

HELD_BYTES: Final = 2 * MAX_WINDOW_BYTES
"""How much may wait to be written; a device is sent one window at most."""

REST_S: Final = 2.0
"""When nothing has come for so long, nothing more is awaited of what is under way."""

ANSWER_BYTES: Final = 1024
"""What an answer takes beside its data, roughly."""

Publish = Callable[[str, bytes, int | None], bool]


class MessageSource:
    """Asks the controller for pieces, for one blob at a time.

    Args:
        device: The device that requests chunks.
        publish: Publishes a message; False without a connection.
        clock: For round trips and for waiting.
        watch: Knows whether the answers come too slowly; None for no bound.
        poll_s: How long it waits for an answer before it looks for an end of the transfer.
    """

    name: SourceName = MQTT

    def __init__(
        self,
        device: str,
        publish: Publish,
        clock: Clock,
        *,
        watch: Watch | None = None,
        poll_s: float = POLL_S,
    ) -> None:
        self._device = device
        self._publish = publish
        self._clock = clock
        self._watch = watch
        self._poll_s = poll_s
        self._flow = Flow()
        self._wanted = ""
        self._seen: tuple[int, int] | msgspec.UnsetType = msgspec.UNSET
        self._reconnected = False
        self._offline_s = 0.0
        self._held: deque[Chunk] = deque()
        self._held_bytes = 0
        self._came = threading.Condition()

    def deliver(self, chunk: Chunk) -> None:
        """Hand over a received chunk; called by the thread that receives messages."""
        with self._came:
            held_bytes = self._held_bytes + len(chunk.data) + ANSWER_BYTES
            if chunk.sha256 != self._wanted or held_bytes > HELD_BYTES:
                return  # the device finds out what is lacking, and asks for it
            self._held.append(chunk)
            self._held_bytes = held_bytes
            self._came.notify()

    def reconnected(self) -> None:
        """Note that the connection is new; called by the thread that receives messages."""
        with self._came:
            self._reconnected = True
            self._came.notify()

    def bring(self, part: Part, errand: Errand) -> None:
        """Bring all that a partial file lacks; see `ChunkSource`.

        Raises:
            TransportError: There was no connection for some time.
            BlobMissingError: The controller has no such blob.
            IntegrityError: Too many chunks were wrong.
            DeferredError: The transfer may cost no more now.
            SlowError: The answers come too slowly, and there is another source.
        """
        transfer = Transfer(part, self._flow)
        self._begin(part.blob.sha256)
        try:
            while not transfer.complete:
                errand.check()
                if self._take_reconnected():
                    self._restart(transfer)
                now_s = self._clock.monotonic_s()
                request = transfer.next(now_s)
                if request is not None and not self._send(part.blob, request):
                    self._restart(transfer)
                    self._wait_for_connection(errand)
                    continue
                self._take_next(transfer, transfer.wait_s(now_s), errand)
            if self._seen is not msgspec.UNSET:  # else the controller does not count
                self._send(part.blob, transfer.thanks())
        except DeferredError:
            self._take_rest(transfer, errand)
            raise
        finally:
            self._begin("")

    def end(self) -> None:
        """Do nothing: this source keeps nothing open."""

    def _take_next(self, transfer: Transfer, wait_s: float, errand: Errand) -> bool:
        """Take the next answer, and tell whether one has come in time."""
        began_s, had_bytes = self._clock.monotonic_s(), transfer.useful_bytes
        chunk = self._next(wait_s)
        came_s = self._clock.monotonic_s()
        if chunk is not None:
            if isinstance(chunk.number, int):
                self._seen = (chunk.number, chunk.index)
            if size_bytes := transfer.take(chunk, came_s):
                errand.progress(size_bytes, MQTT)
        self._judge(came_s - began_s, transfer.useful_bytes - had_bytes, chunk, errand)
        return chunk is not None

    def _judge(
        self, waited_s: float, useful_bytes: int, chunk: Chunk | None, errand: Errand
    ) -> None:
        """Look whether the answers come too slowly.

        Raises:
            SlowError: They do, and there is another source.
        """
        watch = self._watch
        if watch is None:
            return
        rate = watch.waited(waited_s, self._flow.patience_s)
        if rate is None and useful_bytes and chunk is not None:
            said_s = chunk.waited_s if isinstance(chunk.waited_s, float) else 0.0
            rate = watch.came(useful_bytes, said_s)
        if rate is None:
            return
        least = watch.least_bytes_per_s
        slow = Slow(who="the controller", bytes_per_s=rate, least_bytes_per_s=least)
        if errand.too_slow(slow):
            raise SlowError(slow)

    def _take_rest(self, transfer: Transfer, errand: Errand) -> None:
        """Take what is under way, although nothing more may be asked for."""
        quiet_s = 0.0
        while transfer.under_way and quiet_s < REST_S:
            with contextlib.suppress(DeferredError):
                errand.check()
            quiet_s = 0.0 if self._take_next(transfer, POLL_S, errand) else quiet_s + POLL_S

    def _begin(self, wanted: str) -> None:
        with self._came:
            self._wanted = wanted
            self._held.clear()
            self._held_bytes = 0

    def _take_reconnected(self) -> bool:
        with self._came:
            was, self._reconnected = self._reconnected, False
            return was

    def _restart(self, transfer: Transfer) -> None:
        """Note that nothing is under way."""
        self._seen = (self._flow.last, NOTHING_LEFT)
        transfer.restart()

    def _send(self, blob: Blob, request: Request) -> bool:
        message = ChunkRequest(
            device=self._device,
            sha256=blob.sha256,
            chunk_bytes=request.piece_bytes,
            indices=request.indices,
            number=request.number,
            seen=self._seen,
            patience_s=round(request.patience_s, 3),
        )
        topic = up(self._device, "chunk_request")
        if self._publish(topic, to_json(message), ceil(request.patience_s)):
            self._offline_s = 0.0
            return True
        return False

    def _wait_for_connection(self, errand: Errand) -> None:
        """Wait a little before the next request.

        Raises:
            TransportError: There has been no connection for some time.
        """
        if self._offline_s >= OFFLINE_S:
            self._offline_s = 0.0
            raise TransportError("no connection to the broker")
        errand.check()
        self._clock.sleep(POLL_S)
        self._offline_s += POLL_S

    def _next(self, wait_s: float) -> Chunk | None:
        with self._came:
            if not self._held:
                self._came.wait(min(wait_s, self._poll_s))
            if not self._held:
                return None
            chunk = self._held.popleft()
            self._held_bytes -= len(chunk.data) + ANSWER_BYTES
            return chunk
