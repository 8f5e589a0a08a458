"""The form of a delta: its header, its segments, and the bounds of every number in them. Pure.

A delta is a prelude of 18 bytes (magic, version, two sizes of the header), the header as
MessagePack compressed by Zstandard, the streams, and the patches. The segments give the new file
from its first byte to its last; what they need, they take in order from the streams and patches.

Rules:
- Every size is bounded before anything is read or reserved by it.
- The segments, the streams and the patches account for every byte of the new file and of the delta.
- The old ranges of segments are counted from the end of the range before, so that most are 0.
- Another version of this form has another number in the prelude, and is refused.
"""

from __future__ import annotations

import struct
from typing import Annotated, Final, Literal

import msgspec

from wire.codec import from_msgpack, to_msgpack
from wire.errors import DeltaError, WireFormatError

VERSION: Final = 1
MAGIC: Final = b"\x89EFDELTA"
PRELUDE: Final = struct.Struct("<8sHII")
"""Magic, version, and the size of the header in bytes, as it is packed and as it is read."""

MAX_FILE_BYTES: Final = 16 * 1024**3
MAX_HEADER_BYTES: Final = 2 * 1024**2
MAX_SEGMENTS: Final = 65_536

BLOCK_BYTES: Final = 1024**2
"""The new file is made in blocks of this size; it is a multiple of every element's width."""

STREAM_WINDOW_LOG: Final = 20
"""A stream refers back by 1 MiB at most, which bounds what its reader keeps: eleven streams may be
open at once."""

PATCH_WINDOW_LOG: Final = 23
MAX_PREFIX_BYTES: Final = 4 * 1024**2
FREE_PREFIX_BYTES: Final = 64 * 1024
PREFIX_FACTOR: Final = 4
"""The old bytes that a patch refers to: 64 KiB, and four for each byte that it makes. Otherwise
many small patches could make a device read its old file for hours."""

COUNTS: Final = 0
GAPS: Final = 1
LITERALS: Final = 2
PLANE: Final = 3
"""Numbers of the streams; that of the first plane is followed by seven more."""

STREAMS: Final = 11
DENSE: Final = 0xFFFF_FFFF
"""In the stream of counts: the plane of this block holds every byte, not the nonzero ones alone."""

ESCAPE: Final = 255
"""In the stream of gaps: 255 zeros, and no byte after them yet."""

Element = Literal["i1", "i2", "i4", "i8", "f1", "f2", "f4", "f8", "n1"]
"""What is subtracted: integers, floats or two integers of four bits, and their width in bytes."""

Offset = Annotated[int, msgspec.Meta(ge=-MAX_FILE_BYTES, le=MAX_FILE_BYTES)]
Size = Annotated[int, msgspec.Meta(ge=0, le=MAX_FILE_BYTES)]
Length = Annotated[int, msgspec.Meta(ge=1, le=MAX_FILE_BYTES)]
Digest = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


class Copy(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=0):
    """Bytes of the old file."""

    length: Length
    skip: Offset


class Difference(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """Numbers of the old file, and how far the new ones are from them."""

    length: Length
    skip: Offset
    element: Element


class Text(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    """New bytes, from the stream of literals."""

    length: Length


class Patch(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=3):
    """Bytes that were compressed with some old bytes as their prefix."""

    length: Annotated[int, msgspec.Meta(ge=1, le=BLOCK_BYTES)]
    skip: Offset
    prefix: Annotated[int, msgspec.Meta(ge=0, le=MAX_PREFIX_BYTES)]
    packed: Annotated[int, msgspec.Meta(ge=1, le=2 * BLOCK_BYTES)]


Segment = Copy | Difference | Text | Patch


class Header(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a delta is made from, what it makes, and how."""

    old_size_bytes: Size
    old_sha256: Digest
    new_size_bytes: Size
    new_sha256: Digest
    streams: Annotated[tuple[Size, ...], msgspec.Meta(min_length=STREAMS, max_length=STREAMS)]
    """The packed size of each stream in bytes; 0 for one that nothing uses."""

    segments: Annotated[tuple[Segment, ...], msgspec.Meta(max_length=MAX_SEGMENTS)]

    def to_bytes(self) -> bytes:
        """Return the canonical bytes, before they are compressed."""
        return to_msgpack(self)


def header_sizes(prelude: bytes) -> tuple[int, int]:
    """Return the sizes of the header that follows a prelude.

    Args:
        prelude: The first bytes of a delta.

    Returns:
        Its size in bytes, packed and unpacked.

    Raises:
        DeltaError: It is no delta, of another version, or its header is too large.
    """
    if len(prelude) != PRELUDE.size or not prelude.startswith(MAGIC):
        raise DeltaError("this is not a delta")
    _, version, packed, size = PRELUDE.unpack(prelude)
    if version != VERSION:
        raise DeltaError(
            f"the delta has version {version}, and only version {VERSION} is known",
            remedy="update this software, or send the whole file",
        )
    if not (1 <= packed <= MAX_HEADER_BYTES and 1 <= size <= MAX_HEADER_BYTES):
        raise DeltaError(f"the delta's header of {size} bytes is out of bounds")
    return packed, size


def header_from_bytes(data: bytes, *, payload_bytes: int, limit_bytes: int) -> Header:
    """Read a header and check every number in it.

    Args:
        data: The header, no longer compressed.
        payload_bytes: How many bytes of the delta follow the header.
        limit_bytes: The new file may not be larger.

    Returns:
        The header.

    Raises:
        DeltaError: It is malformed, or something in it is out of bounds.
    """
    try:
        header = from_msgpack(data, Header, limit_bytes=MAX_HEADER_BYTES)
    except WireFormatError as exc:
        raise DeltaError(f"the delta's header: {exc.message}") from exc
    if header.new_size_bytes > limit_bytes:
        raise DeltaError(
            f"the delta makes {header.new_size_bytes} bytes, over the limit of {limit_bytes}"
        )
    if sum(segment.length for segment in header.segments) != header.new_size_bytes:
        raise DeltaError("the delta's segments do not make up the new file")
    patches = sum(s.packed for s in header.segments if isinstance(s, Patch))
    if sum(header.streams) + patches != payload_bytes:
        raise DeltaError("the delta is cut off or has bytes that belong to nothing")
    _check_old_ranges(header)
    return header


def width_of(element: Element) -> int:
    """Return how many bytes an element has."""
    return int(element[1])


def prefix_limit(length: int) -> int:
    """Return how many old bytes a patch of some length may refer to."""
    return min(MAX_PREFIX_BYTES, FREE_PREFIX_BYTES + PREFIX_FACTOR * length)


def pays(delta_bytes: int, full_bytes: int) -> bool:
    """Tell whether to send a delta, and not the whole file.

    Above 60 % of the file the device's work and the second copy on the controller are not worth it.

    Args:
        delta_bytes: Size of the delta.
        full_bytes: Size of the new file.

    Returns:
        Whether the delta is to be sent.
    """
    return delta_bytes * 100 <= full_bytes * 60


def _check_old_ranges(header: Header) -> None:
    place = 0
    for segment in header.segments:
        if isinstance(segment, Text):
            continue
        size = segment.prefix if isinstance(segment, Patch) else segment.length
        place += segment.skip
        if place < 0 or place + size > header.old_size_bytes:
            raise DeltaError("a segment of the delta lies outside of the old file")
        place += size
        if isinstance(segment, Patch) and size > prefix_limit(segment.length):
            raise DeltaError("a patch of the delta refers to more old bytes than are allowed")
        if isinstance(segment, Difference) and segment.length % width_of(segment.element):
            raise DeltaError("a difference of the delta ends inside of a number")
