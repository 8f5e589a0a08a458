"""The figures that no batch of the spool holds yet, where the end of the process cannot reach them.

The recorder keeps them in memory, and a batch is made each ten seconds or each minute. So they are
also written to a file beside the spool, some times a second while there are any, and become batches
when the spool is opened again.

Rules:
- The file is two places that are written in turn: one that was being written when the process
  ended does not count, and the other does.
- It is not flushed: it is for the end of the process, not for a power cut, and is mostly
  overwritten before the kernel writes it to the flash.
- It never raises: without it telemetry is kept as well as before.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from wire.codec import from_msgpack, to_msgpack
from wire.errors import WireFormatError
from wire.messages import SCHEMA_VERSION
from wire.telemetry import TelemetryBatch

_HEAD: Final = struct.Struct("<4sIQI")
"""Mark, checksum of all that follows it, number of the write, length of what follows the head."""

_MARK: Final = b"EFo1"
PLACE_BYTES: Final = 1024 * 1024
"""Of each of the two; the file has holes where nothing was written."""

_NUMBER: Final = struct.Struct("<QI")


class OpenFigures:
    """The file of one spool. Not thread-safe.

    Args:
        path: Of the file; it is made when there is something to keep.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._number = 0
        self._holds = True
        """Whether there may be something in the file."""

    def read(self) -> list[TelemetryBatch]:
        """Return what was kept last; nothing if there is none, or it cannot be read."""
        try:
            data = self._path.read_bytes()
        except OSError:
            return []
        found = [_read(data[:PLACE_BYTES]), _read(data[PLACE_BYTES:])]
        number, body = max((each for each in found if each is not None), default=(0, b""))
        self._number = number
        try:
            kept = from_msgpack(body, list[TelemetryBatch]) if body else []
        except WireFormatError:
            return []
        return [batch for batch in kept if batch.schema_version == SCHEMA_VERSION]

    def keep(self, batches: Sequence[TelemetryBatch]) -> None:
        """Write batches in place of what was kept before.

        Args:
            batches: What would be appended to the spool now; none to forget.
        """
        if not batches and not self._holds:
            return
        body = to_msgpack(list(batches)) if batches else b""
        number = self._number + 1
        if _HEAD.size + len(body) > PLACE_BYTES:
            return  # far more than a recorder holds
        numbered = _NUMBER.pack(number, len(body))
        head = _HEAD.pack(_MARK, zlib.crc32(body, zlib.crc32(numbered)), number, len(body))
        try:
            os.pwrite(self._opened(), head + body, number % 2 * PLACE_BYTES)
        except OSError:
            # What stands there must not count once more: removing it needs no room.
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
            self.close()
            return
        self._number, self._holds = number, bool(batches)

    def close(self) -> None:
        """Give the file back; a later call opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _opened(self) -> int:
        if self._descriptor is None:
            flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
            self._descriptor = os.open(self._path, flags, 0o600)
        return self._descriptor


def _read(place: bytes) -> tuple[int, bytes] | None:
    """Return the number and the content of a place; None if it was not written whole."""
    if len(place) < _HEAD.size:
        return None
    mark, checksum, number, length = _HEAD.unpack_from(place)
    body = place[_HEAD.size : _HEAD.size + length]
    if mark != _MARK or len(body) != length:
        return None
    is_whole = zlib.crc32(body, zlib.crc32(_NUMBER.pack(number, length))) == checksum
    return (number, body) if is_whole else None
