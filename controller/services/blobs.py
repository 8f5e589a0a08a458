"""Blobs: files that are named by the SHA-256 of their content.

Rules:
- A blob is complete and correct, or absent: `BlobWriter` writes a temporary file, hashes the
  content, flushes the file to the disk and then renames it.
- A writer holds a lock on its temporary file. So what a killed process left is told from what
  another controller with the same directory writes now.
- Writing a blob that is already there changes nothing.
- No blob is larger than the limit, whatever its sender announces.
- The group of the directory may read blobs as far as the umask allows, so that another server can
  give them away; by default the unit allows nothing.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from controller.errors import StorageError, TooLargeError, UnknownBlobError
from wire.errors import IntegrityError, WireFormatError
from wire.files import opened_alone, remove_abandoned, sync_directory
from wire.package.index import is_digest

MAX_BLOB_BYTES = 16 * 1024**3
READ_BYTES = 256 * 1024
FOLDER_CHARS = 2
UPLOADS_FOLDER = "incoming"
DELTAS_FOLDER = "deltas"
"""A store in the directory of the store: of what can be made again from the blobs."""

UPLOAD = "upload it first"
FILE_MODE, FOLDER_MODE = 0o640, 0o750
NAME_BYTES = 16


class BlobStore:
    """Blobs under a directory, in subfolders named after the first two digits.

    Args:
        directory: Created when missing.
        max_blob_bytes: The largest blob.

    Raises:
        StorageError: The directory cannot be made or written.
    """

    def __init__(self, directory: Path, *, max_blob_bytes: int = MAX_BLOB_BYTES) -> None:
        self._directory = directory
        self._max_blob_bytes = max_blob_bytes
        try:
            (directory / UPLOADS_FOLDER).mkdir(mode=0o700, parents=True, exist_ok=True)
            for stray in (directory / UPLOADS_FOLDER).iterdir():
                remove_abandoned(stray)  # left by a process that was killed while it wrote
        except OSError as exc:
            raise StorageError(
                f"cannot use the blob directory {directory}: {_why(exc)}",
                remedy="choose a directory in which the controller may write",
            ) from exc

    def size_bytes(self, sha256: str) -> int | None:
        """Return the size of a blob, or None when it is not there.

        Raises:
            WireFormatError: Not a digest.
            StorageError: The disk does not answer.
        """
        try:
            return self._path(sha256).stat().st_size
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise StorageError(f"cannot read the size of blob {sha256}: {_why(exc)}") from exc

    def writer(self, sha256: str) -> BlobWriter:
        """Begin to write a blob.

        Args:
            sha256: What its content must hash to.

        Returns:
            The writer, to be used in a `with` statement.

        Raises:
            WireFormatError: Not a digest.
            StorageError: The disk cannot be written.
        """
        return BlobWriter(
            self._path(sha256), sha256, self._directory / UPLOADS_FOLDER, self._max_blob_bytes
        )

    def put(self, content: bytes) -> str:
        """Store content that is in memory.

        Args:
            content: The bytes.

        Returns:
            Their SHA-256.

        Raises:
            TooLargeError: Over the limit.
            StorageError: The disk cannot be written.
        """
        sha256 = hashlib.sha256(content).hexdigest()
        with self.writer(sha256) as writer:
            writer.write(content)
            writer.finish()
        return sha256

    def read(self, sha256: str, *, offset: int = 0, length: int) -> bytes:
        """Return a part of a blob.

        Args:
            sha256: The blob.
            offset: Where the part begins, in bytes.
            length: The greatest number of bytes.

        Returns:
            The bytes; fewer at the end of the blob.

        Raises:
            WireFormatError: Not a digest.
            UnknownBlobError: It is not there.
            StorageError: The disk cannot be read.
        """
        try:
            with self._path(sha256).open("rb") as file:
                file.seek(offset)
                return file.read(length)
        except FileNotFoundError as exc:
            raise UnknownBlobError(f"there is no blob {sha256}", remedy=UPLOAD) from exc
        except OSError as exc:
            raise StorageError(f"cannot read blob {sha256}: {_why(exc)}") from exc

    def open(self, sha256: str) -> BinaryIO:
        """Open a blob, to read it.

        Args:
            sha256: The blob.

        Returns:
            Its content as a stream without a buffer.

        Raises:
            WireFormatError: Not a digest.
            UnknownBlobError: It is not there.
            StorageError: The disk cannot be read.
        """
        try:
            return self._path(sha256).open("rb", buffering=0)
        except FileNotFoundError as exc:
            raise UnknownBlobError(f"there is no blob {sha256}", remedy=UPLOAD) from exc
        except OSError as exc:
            raise StorageError(f"cannot read blob {sha256}: {_why(exc)}") from exc

    def parts(self, sha256: str) -> Generator[bytes]:
        """Return a blob's content in parts.

        Args:
            sha256: The blob.

        Returns:
            The parts; each is read when it is asked for. The file is open until it is closed.

        Raises:
            WireFormatError: Not a digest.
            UnknownBlobError: It is not there.
        """
        if self.size_bytes(sha256) is None:
            raise UnknownBlobError(f"there is no blob {sha256}", remedy=UPLOAD)
        return self._parts(sha256)

    def path(self, sha256: str) -> Path:
        """Return where a blob is, for a process that reads it by itself.

        Raises:
            WireFormatError: Not a digest.
        """
        return self._path(sha256)

    def remove(self, sha256: str) -> None:
        """Remove a blob; without one of that name nothing changes.

        Raises:
            WireFormatError: Not a digest.
            StorageError: The disk cannot be written.
        """
        try:
            self._path(sha256).unlink(missing_ok=True)
        except OSError as exc:
            raise StorageError(f"cannot remove blob {sha256}: {_why(exc)}") from exc

    def names(self) -> list[str]:
        """Return the digests of all blobs.

        Raises:
            StorageError: The disk cannot be read.
        """
        try:
            folders = [p for p in self._directory.iterdir() if len(p.name) == FOLDER_CHARS]
            return sorted(
                path.name for folder in folders for path in folder.iterdir() if is_digest(path.name)
            )
        except OSError as exc:
            raise StorageError(f"cannot read {self._directory}: {_why(exc)}") from exc

    def _parts(self, sha256: str) -> Generator[bytes]:
        offset = 0
        while part := self.read(sha256, offset=offset, length=READ_BYTES):
            offset += len(part)
            yield part

    def _path(self, sha256: str) -> Path:
        if not is_digest(sha256):
            raise WireFormatError(f"not a SHA-256 digest: {sha256[:80]!r}")
        return self._directory / sha256[:FOLDER_CHARS] / sha256


class BlobWriter:
    """Writes one blob to the disk; without `finish` nothing of it remains.

    Args:
        target: Where the blob will be.
        sha256: What it must hash to.
        aside: Where it is written first, on the same file system.
        max_bytes: The largest size.

    Raises:
        StorageError: The disk cannot be written.
    """

    def __init__(self, target: Path, sha256: str, aside: Path, max_bytes: int) -> None:
        self._target = target
        self._sha256 = sha256
        self._max_bytes = max_bytes
        self._hash = hashlib.sha256()
        self.size_bytes = 0
        try:
            self._aside = aside / secrets.token_hex(NAME_BYTES)
            descriptor = opened_alone(self._aside, FILE_MODE)
        except OSError as exc:
            raise StorageError(f"cannot store a blob: {_why(exc)}", remedy=_room(exc)) from exc
        self._file = os.fdopen(descriptor, "wb")

    def write(self, part: bytes) -> None:
        """Take the next part.

        Args:
            part: Some bytes.

        Raises:
            TooLargeError: The blob is over the limit.
            StorageError: The disk cannot be written.
        """
        self.size_bytes += len(part)
        if self.size_bytes > self._max_bytes:
            raise TooLargeError(f"the blob is larger than the limit of {self._max_bytes} bytes")
        self._hash.update(part)
        try:
            self._file.write(part)
        except OSError as exc:
            raise StorageError(f"cannot store a blob: {_why(exc)}", remedy=_room(exc)) from exc

    def finish(self) -> None:
        """Check the content and move the blob to its place.

        Raises:
            IntegrityError: The content is not what was announced.
            StorageError: The disk cannot be written.
        """
        found = self._hash.hexdigest()
        if found != self._sha256:
            raise IntegrityError(
                f"the content was announced as {self._sha256}, but its digest is {found}"
            )
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._target.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
            self._aside.rename(self._target)
            self._file.close()  # which ends the lock: another controller may be starting
            for directory in (self._target.parent, self._target.parent.parent):
                sync_directory(directory)
        except OSError as exc:
            raise StorageError(f"cannot store a blob: {_why(exc)}", remedy=_room(exc)) from exc

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(OSError):
            self._file.close()
        self._aside.unlink(missing_ok=True)


def _room(exc: OSError) -> str:
    """Return what helps against a full disk; empty if it is another fault."""
    return "make room on the disk of blobs_dir" if exc.errno in {errno.ENOSPC, errno.EDQUOT} else ""


def _why(exc: OSError) -> str:
    return (exc.strerror or str(exc)).lower()
