"""A blob that is being fetched, in its partial file: which chunks are here, and which are correct.

Rules:
- A chunk counts as here only if it has the signed digest; its bytes come to the file before that.
- The digests of its chunks show what a partial file holds, so no second file is needed.
- What has come is flushed to the disk every few seconds: a power cut costs little of it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

import msgspec

from agent.errors import FetchError
from wire.clock import Clock
from wire.codec import sha256_hex
from wire.errors import IntegrityError
from wire.files import PRIVATE, sync_directory
from wire.package.index import CHUNK_BYTES, FileEntry

MAX_BAD_CHUNKS: Final = 8
SYNC_BYTES: Final = 1024 * 1024
SYNC_LEAST_S: Final = 1.0
SYNC_MOST_S: Final = 10.0
"""What has come is flushed when it is this much, but no more often than the one time; and when it
is little, after the other."""


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

    def is_right(self, index: int, data: bytes | memoryview) -> bool:
        """Tell whether bytes can be that chunk, by length and digest."""
        if len(data) != self.length(index):
            return False
        return self.chunks is None or sha256_hex(data) == self.chunks[index]


class Part:
    """The partial file of a blob, open as long as the `with` block.

    Args:
        blob: The blob.
        path: Path of the partial file; it is made if it is missing.
        clock: For the times between two flushes.
        wrote: Called with the size of what is written.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(
        self,
        blob: Blob,
        path: Path,
        clock: Clock,
        wrote: Callable[[int], None] = lambda _size: None,
    ) -> None:
        self.blob = blob
        self.path = path
        self._clock = clock
        self._wrote = wrote
        self._descriptor = _opened(path)
        try:
            sync_directory(path.parent)
        except OSError:
            os.close(self._descriptor)
            raise
        self._lacking = dict.fromkeys(range(blob.count))
        self._bad = 0
        self._unsynced_bytes = 0
        self._synced_s = clock.monotonic_s()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    @property
    def lacking(self) -> tuple[int, ...]:
        """The chunks that are not here, in their order."""
        return tuple(self._lacking)

    @property
    def complete(self) -> bool:
        """Whether every chunk is here."""
        return not self._lacking

    def recall(self, check: Callable[[], None]) -> int:
        """Find the chunks that are here already.

        Args:
            check: Called before each chunk; raises to end the transfer.

        Returns:
            Their size in bytes.
        """
        found_bytes = 0
        for index in self.lacking if self.blob.chunks is not None else ():
            check()
            if self.blob.is_right(index, self._read(index)):
                self._lacking.pop(index)
                found_bytes += self.blob.length(index)
        return found_bytes

    def keep(self, index: int, data: bytes) -> int:
        """Keep a chunk.

        Args:
            index: Which one.
            data: Its bytes.

        Returns:
            Its size; 0 if it is here already, or is wrong.

        Raises:
            IntegrityError: Too many chunks were wrong.
        """
        kept_bytes = self.keep_right(index, data)
        if kept_bytes is None:
            self._note_bad()
        return kept_bytes or 0

    def keep_right(self, index: int, data: bytes | memoryview) -> int | None:
        """Keep a chunk of a source that is left when it gives a wrong one.

        Args:
            index: Which one.
            data: Its bytes.

        Returns:
            Its size; 0 if it is here already; None if it is wrong, which does not count.
        """
        if index not in self._lacking:
            return 0
        if not self.blob.is_right(index, data):
            return None
        self._write(index * self.blob.chunk_bytes, data)
        self._lacking.pop(index)
        return len(data)

    def write(self, offset_bytes: int, data: bytes) -> None:
        """Write a part of a chunk that is not here; `finish` checks the whole."""
        self._write(offset_bytes, data)

    def finish(self, index: int, data: bytes | None = None) -> int:
        """Check a chunk that was written in parts.

        Args:
            index: Which one.
            data: Its bytes, if the caller has them together.

        Returns:
            Its size; 0 if it is wrong.

        Raises:
            IntegrityError: Too many chunks were wrong.
        """
        if not self.blob.is_right(index, data if data is not None else self._read(index)):
            self._note_bad()
            return 0
        self._lacking.pop(index, None)
        return self.blob.length(index)

    def replace(self, path: Path) -> int:
        """Take a file in place of the partial one, if every chunk of it is right.

        Args:
            path: The file, on the same file system, complete and on the disk; it is moved.

        Returns:
            How many bytes it brought that were not here; 0 if it is not the blob.
        """
        other = _opened(path)
        for index in range(self.blob.count):
            if not self.blob.is_right(index, self._read(index, other)):
                os.close(other)
                return 0
        path.replace(self.path)
        os.close(self._descriptor)
        self._descriptor = other
        brought_bytes = sum(self.blob.length(index) for index in self._lacking)
        self._lacking.clear()
        return brought_bytes

    def is_possible(self) -> bool:
        """Tell whether what is here can be the blob; if not, nothing of it counts any more.

        Where each chunk is checked, all that is here is right.
        """
        if self.blob.chunks is not None or not self.complete or self._is_whole():
            return True
        self._lacking = dict.fromkeys(range(self.blob.count))
        return False

    def close_whole(self) -> None:
        """Flush the file, and check it if only the whole can be checked.

        Where each chunk is checked, the install hashes the whole later, before it is used.

        Raises:
            FetchError: The content is wrong, and it is unknown which chunk.
        """
        os.ftruncate(self._descriptor, self.blob.size_bytes)
        os.fsync(self._descriptor)
        if self.blob.chunks is None and not self._is_whole():
            self.path.unlink(missing_ok=True)
            raise FetchError(f"the content received for {self.blob.sha256} has another digest")

    def _is_whole(self) -> bool:
        digest = hashlib.sha256()
        for index in range(self.blob.count):
            digest.update(self._read(index))
        return digest.hexdigest() == self.blob.sha256

    def _note_bad(self) -> None:
        self._bad += 1
        if self._bad >= MAX_BAD_CHUNKS:
            raise IntegrityError(
                f"{self._bad} chunks of {self.blob.sha256} arrived with wrong content"
            )

    def _read(self, index: int, descriptor: int | None = None) -> bytes:
        blob = self.blob
        source = self._descriptor if descriptor is None else descriptor
        return os.pread(source, blob.length(index), index * blob.chunk_bytes)

    def _write(self, offset_bytes: int, data: bytes | memoryview) -> None:
        view = memoryview(data)
        self._unsynced_bytes += len(view)
        while view:
            written = os.pwrite(self._descriptor, view, offset_bytes)
            view = view[written:]
            offset_bytes += written
        self._wrote(len(data))
        now_s = self._clock.monotonic_s()
        least_s = SYNC_LEAST_S if self._unsynced_bytes >= SYNC_BYTES else SYNC_MOST_S
        if now_s - self._synced_s >= least_s:
            os.fdatasync(self._descriptor)
            self._unsynced_bytes, self._synced_s = 0, now_s


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, PRIVATE)
