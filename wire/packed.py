"""Messages that are compressed: one Zstandard frame around MessagePack.

A message says by its first bytes whether it is compressed: no message begins with them as
MessagePack, because each is a map. Who sends must know that the receiver reads it
(`wire.telemetry.TelemetryAck`): older programs refuse it.

Rules:
- What comes from outside never takes more memory than its limit.
- A program without the library sends and reads plain messages alone.
"""

from __future__ import annotations

from typing import Final

from wire.delta import zstd
from wire.errors import DeltaError, WireFormatError

ZSTD: Final = "zstd"
MAGIC: Final = b"\x28\xb5\x2f\xfd"
"""RFC 8878, section 3.1.1: how each frame begins."""

LEAST_BYTES: Final = 1024
"""Shorter messages stay plain: they gain little."""


def readable() -> tuple[str, ...]:
    """Return the compressions that this program reads."""
    return (ZSTD,) if zstd.is_installed() else ()


def is_packed(data: bytes) -> bool:
    """Tell whether a message is compressed."""
    return data[: len(MAGIC)] == MAGIC


def packed(data: bytes) -> bytes:
    """Return a message compressed, or as it is if that is no longer or there is no library."""
    if len(data) < LEAST_BYTES or not zstd.is_installed():
        return data
    short = zstd.compress_small(data)
    return short if len(short) < len(data) else data


def unpacked(data: bytes, limit_bytes: int) -> bytes:
    """Return a message that is compressed as it was.

    Args:
        data: As it came.
        limit_bytes: Greatest length of what it holds.

    Raises:
        WireFormatError: It is damaged, holds more, or this program cannot read it.
    """
    if not zstd.is_installed():
        raise WireFormatError(
            "a compressed message cannot be read here", remedy="install edgefleet[delta]"
        )
    try:
        return zstd.decompress(data, limit_bytes)
    except DeltaError as exc:
        raise WireFormatError(f"a compressed message cannot be read: {exc.message}") from exc
