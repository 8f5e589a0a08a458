"""The progress of one blob: which chunks are here, requested or missing, and which are correct.

Rules:
- A transfer keeps a chunk only if it was requested and has the signed digest.
- The digests of its chunks show what a partial file holds, so no second file is needed.
- The caller sends requests and knows the time; this module touches only the partial file.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from agent.errors import BlobMissingError, FetchError
from wire.codec import sha256_hex
from wire.errors import IntegrityError
from wire.messages import Chunk
from wire.package.index import CHUNK_BYTES, FileEntry

MAX_BAD_CHUNKS = 8
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
    """

    def __init__(self, blob: Blob, descriptor: int) -> None:
        self.blob = blob
        self._descriptor = descriptor
        self._missing: deque[int] = deque()
        self._asked: dict[int, float] = {}
        self._bad = 0

    @property
    def complete(self) -> bool:
        """Whether every chunk is here."""
        return not self._missing and not self._asked

    def recall(self, local: LocalChunks, check: Callable[[], None]) -> None:
        """Find chunks that are here already, in the partial file or in another package.

        Args:
            local: Finds chunks of other packages.
            check: Called before each chunk; raises to end the transfer.
        """
        for index in range(self.blob.count):
            check()
            if not self._recall_one(index, local):
                self._missing.append(index)

    def _recall_one(self, index: int, local: LocalChunks) -> bool:
        blob = self.blob
        if blob.chunks is None:
            return False
        here = os.pread(self._descriptor, blob.length(index), index * blob.chunk_bytes)
        if blob.is_right(index, here):
            return True
        known = local(blob.chunks[index])
        if known is None or not blob.is_right(index, known):
            return False
        _write_all(self._descriptor, known, index * blob.chunk_bytes)
        return True

    def to_ask(self, now_s: float, window: int, retry_s: float) -> tuple[int, ...]:
        """Choose chunks to request now: first overdue ones, then new ones."""
        overdue = [index for index, asked_s in self._asked.items() if now_s - asked_s >= retry_s]
        free = window - len(self._asked)
        # Half a window at a time: one request for several chunks, while others are on their way.
        fresh = (
            [self._missing.popleft() for _ in range(min(free, len(self._missing)))]
            if free >= window // 2
            else []
        )
        for index in (*overdue, *fresh):
            self._asked[index] = now_s
        return (*overdue, *fresh)

    def take(self, chunk: Chunk) -> bool:
        """Keep a chunk if it was requested and is correct; return whether it is kept.

        Raises:
            BlobMissingError: The controller has no such blob.
            IntegrityError: Too many chunks were wrong.
        """
        if chunk.missing:
            raise BlobMissingError(
                f"the controller has no blob {self.blob.sha256}",
                remedy="publish the release again",
            )
        if chunk.index not in self._asked:
            return False
        if not self.blob.is_right(chunk.index, chunk.data):
            self._bad += 1
            if self._bad >= MAX_BAD_CHUNKS:
                raise IntegrityError(
                    f"{self._bad} chunks of {self.blob.sha256} arrived with wrong content"
                )
            return False
        _write_all(self._descriptor, chunk.data, chunk.index * self.blob.chunk_bytes)
        del self._asked[chunk.index]
        return True


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
