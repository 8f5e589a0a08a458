"""Zstandard with raw prefixes: the only module that imports it, on first use.

It is `compression.zstd` from Python 3.14 on, and the package `backports.zstd` before. The package
`zstandard` cannot refer to a prefix at low levels.

Rules:
- A reader gets no more than it asks for, whatever the frame says, and a frame that needs a larger
  window than allowed is refused.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from wire.delta.layout import PATCH_WINDOW_LOG, STREAM_WINDOW_LOG
from wire.errors import DeltaError

if TYPE_CHECKING:
    from collections.abc import Callable

LEVEL = 3
TABLE_LOG = 20
MIN_MATCH_BYTES = 4
"""Of patches: an entry for each four bytes of the longest prefix, and matches of one weight."""

_MIN_PREFIX_BYTES = 8
"""The library takes no shorter prefix."""


def _library() -> Any:  # noqa: ANN401 - one of two modules
    """Return the library.

    Raises:
        ModuleNotFoundError: It is not installed.
    """
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd


def is_installed() -> bool:
    """Tell whether deltas can be made and applied here."""
    try:
        _library()
    except ImportError:
        return False
    return True


def compress(data: Any) -> bytes:  # noqa: ANN401 - any buffer
    """Compress bytes to one frame."""
    zstd = _library()
    packed: bytes = zstd.compress(data, options=_options(zstd, STREAM_WINDOW_LOG))
    return packed


def compress_small(data: bytes) -> bytes:
    """Compress a message to one frame; the tables are no larger than the message needs."""
    packed: bytes = _library().compress(data, LEVEL)
    return packed


def decompress(data: bytes, limit_bytes: int) -> bytes:
    """Decompress one frame that is all of the data.

    Args:
        data: As it came from outside.
        limit_bytes: Refuse more; no more than one byte above it is ever made.

    Returns:
        What it holds.

    Raises:
        DeltaError: It is damaged or cut off, holds more, needs too much memory, or something
            follows.
    """
    zstd = _library()
    options = {zstd.DecompressionParameter.window_log_max: STREAM_WINDOW_LOG}
    decompressor = zstd.ZstdDecompressor(options=options)
    found, rest = bytearray(), data
    try:
        while not decompressor.eof:
            part = decompressor.decompress(rest, max_length=limit_bytes + 1 - len(found))
            found += part
            rest = b""
            if len(found) > limit_bytes:
                raise DeltaError(f"it holds more than {limit_bytes} bytes")
            if not part and decompressor.needs_input:
                raise DeltaError("it is cut off")
    except zstd.ZstdError as exc:
        raise DeltaError(f"it is damaged: {exc}") from exc
    if decompressor.unused_data:
        raise DeltaError("something follows its end")
    return bytes(found)


def compress_after(prefix: Any, data: Any) -> bytes:  # noqa: ANN401 - any buffers
    """Compress bytes to one frame that refers to a prefix, too."""
    zstd = _library()
    options = _options(zstd, PATCH_WINDOW_LOG)
    parameter = zstd.CompressionParameter
    # Without these the tables of this level forget most of a prefix over 1 MiB, and a weight that
    # stayed between two others is too short for it.
    options[parameter.enable_long_distance_matching] = 1
    options |= {parameter.hash_log: TABLE_LOG, parameter.chain_log: TABLE_LOG}
    options[parameter.min_match] = MIN_MATCH_BYTES
    packed: bytes = zstd.compress(data, options=options, zstd_dict=_prefix(zstd, prefix))
    return packed


class Packer:
    """Compresses one stream to one frame, piece by piece."""

    def __init__(self) -> None:
        zstd = _library()
        self._compressor = zstd.ZstdCompressor(options=_options(zstd, STREAM_WINDOW_LOG))
        self._packed = bytearray()
        self._is_empty = True

    def write(self, data: bytes) -> None:
        """Add bytes."""
        if data:
            self._is_empty = False
            self._packed += self._compressor.compress(data)

    def finish(self) -> bytes:
        """Return the frame, or nothing when nothing was written."""
        return b"" if self._is_empty else bytes(self._packed) + self._compressor.flush()


class Unpacker:
    """Decompresses one frame, no more at a time than is asked for.

    Args:
        more: Returns the next packed bytes; none at the end.
        prefix: The old bytes that the frame refers to.
        window_log: Refuse a frame that refers back farther than two to the power of this.
    """

    def __init__(
        self,
        more: Callable[[], bytes],
        *,
        prefix: bytes = b"",
        window_log: int = STREAM_WINDOW_LOG,
    ) -> None:
        zstd = _library()
        self._more = more
        self._error: type[Exception] = zstd.ZstdError
        self._decompressor = zstd.ZstdDecompressor(
            zstd_dict=_prefix(zstd, prefix),
            options={zstd.DecompressionParameter.window_log_max: window_log},
        )

    def read(self, size: int) -> bytes:
        """Return exactly so many bytes.

        Args:
            size: How many.

        Returns:
            The bytes.

        Raises:
            DeltaError: The frame is damaged, ends before, or needs too much memory.
        """
        parts: list[bytes] = []
        missing = size
        while missing:
            part = self._step(missing)
            parts.append(part)
            missing -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def finish(self) -> None:
        """Check that the frame and its bytes end here.

        Raises:
            DeltaError: Something is left.
        """
        while not self._decompressor.eof:
            if self._step(1):
                raise DeltaError("a part of the delta holds more than its segments use")
        if self._decompressor.unused_data or self._more():
            raise DeltaError("a part of the delta has bytes after its end")

    def _step(self, size: int) -> bytes:
        if self._decompressor.eof:
            raise DeltaError("a part of the delta holds less than its segments need")
        packed = b""
        if self._decompressor.needs_input:
            packed = self._more()
            if not packed:
                raise DeltaError("a part of the delta is cut off")
        try:
            part: bytes = self._decompressor.decompress(packed, max_length=size)
        except self._error as exc:
            raise DeltaError(f"a part of the delta is damaged: {exc}") from exc
        return part


def _options(zstd: Any, window_log: int) -> dict[Any, int]:  # noqa: ANN401 - one of two modules
    parameter = zstd.CompressionParameter
    return {parameter.compression_level: LEVEL, parameter.window_log: window_log}


def _prefix(zstd: Any, prefix: Any) -> Any:  # noqa: ANN401 - one of two modules, any buffer
    if len(prefix) < _MIN_PREFIX_BYTES:
        return None
    return zstd.ZstdDict(prefix, is_raw=True).as_prefix
