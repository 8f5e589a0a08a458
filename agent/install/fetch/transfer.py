"""The progress of one blob on the disk: which chunks are here, and which are correct.

Rules:
- A chunk counts as here only if it has the signed digest; its pieces come to the file before that.
- The digests of its chunks show what a partial file holds, so no second file is needed.
- What has come is flushed to the disk every few seconds: a power cut costs little of it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from agent.errors import BlobMissingError, FetchError
from agent.install.fetch.asking import Asking, Request
from agent.install.fetch.flow import MIN_PIECE_BYTES, Flow
from agent.install.fetch.pieces import Pieces
from wire.codec import sha256_hex
from wire.errors import IntegrityError
from wire.messages import Chunk
from wire.package.index import CHUNK_BYTES, FileEntry

MAX_BAD_CHUNKS: Final = 8
SYNC_BYTES: Final = 1024 * 1024
SYNC_LEAST_S: Final = 1.0
SYNC_MOST_S: Final = 10.0
"""What has come is flushed when it is this much, but no more often than the one time; and when it
is little, after the other."""

LocalChunks = Callable[[str], bytes | None]
"""Returns a chunk by its digest if this device has it elsewhere; the caller checks it."""


class Blob(msgspec.Struct, frozen=True, kw_only=True):
    """A blob that the agent has to fetch."""

    sha256: str
    size_bytes: int
    chunk_bytes: int = CHUNK_BYTES
    chunks: tuple[str, ...] | None = None
    """Digest of each chunk, or None if only the whole blob can be checked."""

    @classmethod
    def of_file(cls, entry: FileEntry, chunk_bytes: int) -> Blob:
        """Return the blob that is a file of a package."""
        return cls(
            sha256=entry.sha256,
            size_bytes=entry.size_bytes,
            chunk_bytes=chunk_bytes,
            chunks=entry.chunks,
        )

    @property
    def count(self) -> int:
        """The number of chunks."""
        return -(-self.size_bytes // self.chunk_bytes)

    def length(self, index: int) -> int:
        """Return the size of a chunk in bytes."""
        return min(self.chunk_bytes, self.size_bytes - index * self.chunk_bytes)

    def is_right(self, index: int, data: bytes) -> bool:
        """Tell whether bytes can be that chunk, by length and digest."""
        if len(data) != self.length(index):
            return False
        return self.chunks is None or sha256_hex(data) == self.chunks[index]


class Transfer:
    """One blob that is being fetched.

    Args:
        blob: The blob.
        descriptor: Descriptor of the partial file, open for reading and writing.
        flow: The window and the patience.
        now_s: Monotonic time.
    """

    def __init__(self, blob: Blob, descriptor: int, flow: Flow, now_s: float) -> None:
        self.blob = blob
        self._descriptor = descriptor
        self._pieces = Pieces(blob.size_bytes, blob.chunk_bytes, MIN_PIECE_BYTES)
        self._asking = Asking(flow, self._pieces, blob.size_bytes)
        self._bad = 0
        self._unsynced_bytes = 0
        self._synced_s = now_s

    @property
    def complete(self) -> bool:
        """Whether every chunk is here."""
        return self._pieces.complete

    def recall(self, local: LocalChunks, check: Callable[[], None]) -> None:
        """Find chunks that are here already, in the partial file or in another package.

        Args:
            local: Finds chunks of other packages.
            check: Called before each chunk; raises to end the transfer.
        """
        for index in range(self.blob.count):
            check()
            if not self._recall_one(index, local):
                self._pieces.add(index)

    def _recall_one(self, index: int, local: LocalChunks) -> bool:
        blob = self.blob
        if blob.chunks is None:
            return False
        if blob.is_right(index, self._read(index)):
            return True
        known = local(blob.chunks[index])
        if known is None or not blob.is_right(index, known):
            return False
        _write_all(self._descriptor, known, index * blob.chunk_bytes)
        return True

    def next(self, now_s: float) -> Request | None:
        """Return what to ask for now, or None."""
        return self._asking.next(now_s)

    def thanks(self) -> Request:
        """Return the request that only tells the controller what has come."""
        return self._asking.thanks()

    def wait_s(self, now_s: float) -> float:
        """Return how long nothing is to be done if nothing comes."""
        return self._asking.wait_s(now_s)

    def restart(self) -> None:
        """Note that the connection is new: nothing is under way."""
        self._asking.restart()

    def take(self, chunk: Chunk, now_s: float) -> int:
        """Keep an answer if it is needed.

        Args:
            chunk: As it came.
            now_s: Monotonic time.

        Returns:
            The size of the chunk that it completes; 0 if it completes none.

        Raises:
            BlobMissingError: The controller has no such blob.
            IntegrityError: Too many chunks were wrong.
        """
        if chunk.missing:
            raise BlobMissingError(
                f"the controller has no blob {self.blob.sha256}",
                remedy="publish the release again",
            )
        size_bytes = len(chunk.data)
        number = chunk.number if isinstance(chunk.number, int) else None
        place = self._asking.place(number, chunk.index, size_bytes)
        if place is None:
            return 0
        waited_s = chunk.waited_s if isinstance(chunk.waited_s, float) else 0.0
        done = self._asking.arrived(place, size_bytes, waited_s, now_s)
        if number is not None:
            self._asking.settle(number)
        if done is None:
            return 0
        _write_all(self._descriptor, chunk.data, place.offset_bytes)
        self._unsynced_bytes += size_bytes
        self._sync(now_s)
        if not done:
            return 0
        index = place.offset_bytes // self.blob.chunk_bytes
        is_chunk = size_bytes == self.blob.length(index)
        return self._finished(index, chunk.data if is_chunk else self._read(index))

    def _finished(self, index: int, data: bytes) -> int:
        if self.blob.is_right(index, data):
            return self.blob.length(index)
        self._bad += 1
        if self._bad >= MAX_BAD_CHUNKS:
            raise IntegrityError(
                f"{self._bad} chunks of {self.blob.sha256} arrived with wrong content"
            )
        self._pieces.again(index)
        return 0

    def _read(self, index: int) -> bytes:
        blob = self.blob
        return os.pread(self._descriptor, blob.length(index), index * blob.chunk_bytes)

    def _sync(self, now_s: float) -> None:
        least_s = SYNC_LEAST_S if self._unsynced_bytes >= SYNC_BYTES else SYNC_MOST_S
        if now_s - self._synced_s >= least_s:
            os.fdatasync(self._descriptor)
            self._unsynced_bytes, self._synced_s = 0, now_s


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view = view[written:]
        offset += written


def check_whole(blob: Blob, descriptor: int, part: Path) -> None:
    """Check that all chunks together are the blob; remove the partial file if they are not.

    Args:
        blob: The expected blob.
        descriptor: Descriptor of the partial file.
        part: Path of the partial file.

    Raises:
        FetchError: The content is wrong, and without chunk digests it is unknown which chunk.
        IntegrityError: Correct chunks give a wrong file: the signed digests contradict each other.
    """
    digest = hashlib.sha256()
    for index in range(blob.count):
        digest.update(os.pread(descriptor, blob.length(index), index * blob.chunk_bytes))
    if digest.hexdigest() == blob.sha256:
        return
    part.unlink(missing_ok=True)
    if blob.chunks is None:
        raise FetchError(f"the content received for {blob.sha256} has another digest")
    raise IntegrityError(f"the chunks of {blob.sha256} do not give the signed file")
