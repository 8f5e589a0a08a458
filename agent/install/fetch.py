"""Fetches blobs chunk by chunk over messages, and goes on where a transfer stopped.

Rules:
- A chunk is checked against its signed digest when it comes; a blob without a list of chunk
  digests (the envelope, whose digest is signed) is checked as a whole. Only a correct blob gets its
  name.
- The chunks that arrived stay in a partial file, also after a power cut.
- Messages may get lost: the agent requests a chunk again after `retry_s`. A transfer that gets no
  new chunk for `stall_s` ends with a retryable error.

Source:
    `CHUNK_BYTES` and a window of 8 to 16 were measured best over MQTT.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Callable
from pathlib import Path

import msgspec

from agent.errors import FetchError, storage_faults
from agent.install.transfer import Blob, LocalChunks, Transfer, check_whole
from agent.packages import refuse_links
from wire.clock import Clock
from wire.codec import to_json
from wire.errors import TransportError
from wire.files import PRIVATE
from wire.messages import Chunk, ChunkRequest
from wire.topics import up

WINDOW = 8
RETRY_S = 2.0
STALL_S = 30.0
POLL_S = 0.2
REQUEST_EXPIRY_S = 60
"""If a broker keeps a request for longer than this, the agent has sent it again."""

Publish = Callable[[str, bytes, int | None], bool]


class Hooks(msgspec.Struct, frozen=True, kw_only=True):
    """Functions that a transfer calls while it runs."""

    progress: Callable[[int], None]
    """Called with the size of each chunk that is new on this device."""

    check: Callable[[], None]
    """Called often; raises to end the transfer."""

    local: LocalChunks = lambda _digest: None
    """Returns a chunk by its digest if another package on this device has it."""


class Fetcher:
    """Fetches one blob at a time.

    Args:
        device: The device that requests chunks.
        publish: Publishes a message; False without a connection.
        clock: For deadlines.
        window: Chunks that may be requested at the same time.
        retry_s: After this time the agent requests a chunk again.
        stall_s: After this time without a new chunk the transfer ends for now.
    """

    def __init__(
        self,
        device: str,
        publish: Publish,
        clock: Clock,
        *,
        window: int = WINDOW,
        retry_s: float = RETRY_S,
        stall_s: float = STALL_S,
    ) -> None:
        self._device = device
        self._publish = publish
        self._clock = clock
        self._window = window
        self._retry_s = retry_s
        self._stall_s = stall_s
        self._wanted = ""
        self._inbox: queue.Queue[Chunk] = queue.Queue(maxsize=4 * window)

    def deliver(self, chunk: Chunk) -> None:
        """Hand over a received chunk; called by the thread that receives messages."""
        if chunk.sha256 == self._wanted:
            try:
                self._inbox.put_nowait(chunk)
            except queue.Full:
                return  # the agent requests it again after `retry_s`

    def fetch(self, blob: Blob, part: Path, target: tuple[Path, str], hooks: Hooks) -> None:
        """Fetch a blob and move it to its place.

        Args:
            blob: The blob.
            part: Path of the partial file; correct chunks in it are kept.
            target: Directory and relative path of the finished file.
            hooks: Functions to call meanwhile.

        Raises:
            FetchError: No new chunk came for a while; try again later.
            TransportError: There is no connection.
            BlobMissingError: The controller has no such blob.
            IntegrityError: The content differs from what was signed.
            StorageError: The device's storage failed.
        """
        refuse_links(*target)
        place = target[0] / target[1]
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with storage_faults(f"cannot store {target[1]}"):
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(part, flags, PRIVATE)
            try:
                self._fill(Transfer(blob, descriptor), hooks)
                os.ftruncate(descriptor, blob.size_bytes)
                os.fsync(descriptor)
                check_whole(blob, descriptor, part)
            finally:
                os.close(descriptor)
            part.replace(place)

    def _fill(self, transfer: Transfer, hooks: Hooks) -> None:
        transfer.recall(hooks.local, hooks.check)
        self._wanted = transfer.blob.sha256
        self._drain()
        heard_s = self._clock.monotonic_s()
        try:
            while not transfer.complete:
                hooks.check()
                self._ask(transfer)
                chunk = self._next()
                now_s = self._clock.monotonic_s()
                if chunk is not None and transfer.take(chunk):
                    hooks.progress(len(chunk.data))
                    heard_s = now_s
                elif now_s - heard_s > self._stall_s:
                    raise FetchError(f"no new chunk arrived for {self._stall_s:g} s")
        finally:
            self._wanted = ""

    def _ask(self, transfer: Transfer) -> None:
        indices = transfer.to_ask(self._clock.monotonic_s(), self._window, self._retry_s)
        if not indices:
            return
        request = ChunkRequest(
            device=self._device,
            sha256=transfer.blob.sha256,
            chunk_bytes=transfer.blob.chunk_bytes,
            indices=indices,
        )
        topic = up(self._device, "chunk_request")
        if not self._publish(topic, to_json(request), REQUEST_EXPIRY_S):
            raise TransportError("no connection to the broker")

    def _next(self) -> Chunk | None:
        try:
            return self._inbox.get(timeout=min(self._retry_s, POLL_S))
        except queue.Empty:
            return None

    def _drain(self) -> None:
        while not self._inbox.empty():
            self._inbox.get_nowait()
