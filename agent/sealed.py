"""A JSON file with a checksum: it is read as it was written, or counts as damaged.

Rules:
- The checksum covers all other bytes of the file. It is compared before anything is parsed.
- The checksum is the first key of the JSON object, so an agent that knows no checksums reads the
  file as well.
- What stands in the place of a file, such as a directory, is moved aside before a write.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from agent.errors import storage_faults
from wire.codec import from_json, sha256_hex, to_json
from wire.errors import IntegrityError, WireFormatError
from wire.files import read_regular, temporary_of, write_atomic

T = TypeVar("T", bound=msgspec.Struct)

WriteFile = Callable[[Path, bytes], None]
"""Replaces the content of a file completely or not at all; raises OSError."""

CORRUPT: Final = ".corrupt"
_HEAD: Final = b'{"checksum":"'
_TAIL: Final = b'",'
_BODY_AT: Final = len(_HEAD) + 64 + len(_TAIL)


def seal(value: msgspec.Struct) -> bytes:
    """Return a value as JSON with a checksum."""
    body = to_json(value)[1:]
    return _HEAD + sha256_hex(body).encode() + _TAIL + body


def unseal(data: bytes, kind: type[T], *, limit_bytes: int) -> T:
    """Check and read what `seal` returned.

    Args:
        data: The bytes of the file.
        kind: The type of the value.
        limit_bytes: Refuse anything longer.

    Returns:
        The value.

    Raises:
        IntegrityError: There is no checksum, or it is another one.
        WireFormatError: It is not of that type.
    """
    body = data[_BODY_AT:]
    if len(data) > limit_bytes or data[:_BODY_AT] != _HEAD + sha256_hex(body).encode() + _TAIL:
        raise IntegrityError("the content does not match its checksum")
    return from_json(b"{" + body, kind, limit_bytes=limit_bytes)


class SealedFile(Generic[T]):
    """A value in a file of its own.

    Args:
        path: Path of the file; the first write makes it.
        kind: The type of the value.
        limit_bytes: A longer file counts as damaged.
        unsealed_head: How a file begins that an agent without checksums wrote; empty if there is
            none.
        write: Writes the file.
    """

    def __init__(
        self,
        path: Path,
        kind: type[T],
        *,
        limit_bytes: int,
        unsealed_head: bytes = b"",
        write: WriteFile = write_atomic,
    ) -> None:
        self.path = path
        self._kind = kind
        self._limit_bytes = limit_bytes
        self._unsealed_head = unsealed_head
        self._write = write
        self.is_sealed = False
        """Whether the file that was read has a checksum."""

    @property
    def was_damaged(self) -> bool:
        """Whether a damaged file was moved aside, now or at an earlier start."""
        return self._aside.exists()

    def read(self) -> T | None:
        """Return the value, or None if there is no file.

        Raises:
            IntegrityError: The file is damaged, or cannot be read.
        """
        try:
            data = read_regular(self.path, self._limit_bytes + 1)
            if self._unsealed_head and data.startswith(self._unsealed_head):
                return from_json(data, self._kind, limit_bytes=self._limit_bytes)
            self.is_sealed = True
            return unseal(data, self._kind, limit_bytes=self._limit_bytes)
        except FileNotFoundError:
            return None
        except (OSError, WireFormatError) as exc:
            raise IntegrityError(f"{self.path.name} cannot be read: {exc}") from exc

    def write(self, value: msgspec.Struct) -> None:
        """Replace the value.

        Args:
            value: The new value, which `read` can read.

        Raises:
            StorageError: It could not be written; the old one is still there.
        """
        content = seal(value)
        with storage_faults(f"cannot write {self.path.name}"):
            try:
                self._write(self.path, content)
            except IsADirectoryError:
                self._clear_way()
                self._write(self.path, content)

    def set_aside(self) -> None:
        """Move a damaged file to another name, in place of an earlier one, if it can be moved."""
        with contextlib.suppress(OSError):  # a read-only disk keeps it
            if self._aside.is_dir():
                shutil.rmtree(self._aside)
            self._aside.unlink(missing_ok=True)
            self.path.replace(self._aside)

    @property
    def _aside(self) -> Path:
        return self.path.with_name(self.path.name + CORRUPT)

    def _clear_way(self) -> None:
        temporary = temporary_of(self.path)
        if temporary.is_dir():
            shutil.rmtree(temporary)
        if self.path.is_dir():
            self.set_aside()
