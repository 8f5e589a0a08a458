"""Makes the new version of a file from the old one and a delta.

Rules:
- The new file appears under its name when it is whole, has its digest and is on the disk.
- Memory is bounded by the form of a delta: blocks of a mebibyte, eleven streams with windows of
  one, and one patch with its prefix. No size in the delta changes that.
- Every fault of the delta, and an old file that it was not made from, is a `DeltaError`. A fault of
  this machine's storage is an `OSError`.
- A delta need not be signed: the caller knows the new file's digest from what was signed, and
  checks it again.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, Protocol

from wire.delta import layout
from wire.delta.layout import BLOCK_BYTES, Copy, Difference, Header, Patch, Text
from wire.delta.zstd import Unpacker
from wire.errors import DeltaError
from wire.files import PRIVATE, open_file, sync_directory, temporary_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

READ_BYTES = 64 * 1024


class Steps(Protocol):
    """The arithmetic of differences: `wire.delta.numpy_steps` or `wire.delta.python_steps`."""

    def expanded(self, gaps: bytes, values: bytes, count: int) -> bytes:
        """Return the plane of some gaps and nonzero bytes."""

    def restored(self, old: bytes, planes: Sequence[bytes], element: layout.Element) -> bytes:
        """Return the new range of an old one and the planes of their differences."""


def decode(
    old: Path,
    delta: Path,
    new: Path,
    *,
    limit_bytes: int = layout.MAX_FILE_BYTES,
    steps: Steps | None = None,
) -> None:
    """Make a new file.

    Args:
        old: The version that the device has.
        delta: What leads from it to the new one.
        new: Where to write; a file that is there is replaced.
        limit_bytes: The new file's size as it was signed; the delta may not make more.
        steps: The arithmetic; None for NumPy where it is installed.

    Raises:
        DeltaError: The delta is malformed, or it was not made from this old file.
        OSError: A file cannot be read or written.
        ModuleNotFoundError: Zstandard is not installed; ask `wire.delta.zstd.is_installed` before.
    """
    with ExitStack() as opened:
        source = opened.enter_context(open_file(old))
        parts = opened.enter_context(open_file(delta))
        header, start = _header(parts, limit_bytes)
        _check_old(source, header)
        maker = _Maker(source.fileno(), _Payload(parts.fileno(), start, header), steps)
        _write(new, header, maker.blocks(header))


def read_header(delta: Path, *, limit_bytes: int = layout.MAX_FILE_BYTES) -> Header:
    """Return what a delta is made from and what it makes.

    Args:
        delta: The delta.
        limit_bytes: The new file may not be larger.

    Returns:
        Its header, checked.

    Raises:
        DeltaError: The delta is malformed.
        OSError: It cannot be read.
    """
    with open_file(delta) as parts:
        return _header(parts, limit_bytes)[0]


def default_steps() -> Steps:
    """Return the fastest arithmetic that is installed."""
    try:
        from wire.delta import numpy_steps
    except ImportError:
        from wire.delta import python_steps

        return python_steps
    return numpy_steps


def _header(parts: BinaryIO, limit_bytes: int) -> tuple[Header, int]:
    """Return the header, and where the payload begins."""
    packed, size = layout.header_sizes(parts.read(layout.PRELUDE.size))
    start = layout.PRELUDE.size + packed
    reader = Unpacker(partial(next, _range(parts.fileno(), layout.PRELUDE.size, packed), b""))
    content = reader.read(size)
    reader.finish()
    payload_bytes = os.fstat(parts.fileno()).st_size - start
    header = layout.header_from_bytes(
        content, payload_bytes=payload_bytes, limit_bytes=min(limit_bytes, layout.MAX_FILE_BYTES)
    )
    return header, start


def _check_old(source: BinaryIO, header: Header) -> None:
    size = os.fstat(source.fileno()).st_size
    if size == header.old_size_bytes:
        digest = hashlib.sha256()
        for block in _range(source.fileno(), 0, size, BLOCK_BYTES):
            digest.update(block)
        if digest.digest() == header.old_sha256:
            return
    raise DeltaError(
        "the delta was made from another version of the file",
        remedy="send the whole file",
    )


class _Payload:
    """The streams of a delta, which are read side by side, and its patches.

    Args:
        descriptor: Of the delta.
        start: Where the header ends.
        header: It.
    """

    def __init__(self, descriptor: int, start: int, header: Header) -> None:
        self._descriptor = descriptor
        self._place = start
        self._streams: list[Unpacker | None] = []
        for size in header.streams:
            more = partial(next, _range(descriptor, self._place, size), b"")
            self._streams.append(Unpacker(more) if size else None)
            self._place += size

    def read(self, stream: int, size: int) -> bytes:
        """Return the next bytes of a stream.

        Args:
            stream: Its number.
            size: How many.

        Returns:
            The bytes.

        Raises:
            DeltaError: There are not so many.
        """
        reader = self._streams[stream]
        if not size:
            return b""
        if reader is None:
            raise DeltaError("a part of the delta is missing")
        return reader.read(size)

    def patch(self, size: int) -> bytes:
        """Return the next patch, as it is packed."""
        packed = _exactly(self._descriptor, self._place, size)
        self._place += size
        return packed

    def finish(self) -> None:
        """Check that nothing is left."""
        for reader in self._streams:
            if reader is not None:
                reader.finish()


class _Maker:
    """Makes the blocks of the new file, from its first byte to its last.

    Args:
        source: Descriptor of the old file.
        payload: What the segments need beside it.
        steps: The arithmetic, or None to choose it when it is needed.
    """

    def __init__(self, source: int, payload: _Payload, steps: Steps | None) -> None:
        self._source = source
        self._payload = payload
        self._steps = steps
        self._place = 0

    def blocks(self, header: Header) -> Iterator[bytes]:
        """Yield the blocks, and check at the end that nothing of the delta is left."""
        for segment in header.segments:
            match segment:
                case Patch():
                    yield self._patched(segment)
                case Text():
                    for size in _sizes(segment.length):
                        yield self._payload.read(layout.LITERALS, size)
                case Copy():
                    for old in self._old(segment.skip, segment.length):
                        yield old
                case Difference():
                    for old in self._old(segment.skip, segment.length):
                        yield self._moved(old, segment.element)
        self._payload.finish()

    def _old(self, skip: int, length: int) -> Iterator[bytes]:
        start = self._place + skip
        self._place = start + length
        return _range(self._source, start, length, BLOCK_BYTES)

    def _patched(self, patch: Patch) -> bytes:
        prefix = b"".join(self._old(patch.skip, patch.prefix))
        packed = iter((self._payload.patch(patch.packed),))
        reader = Unpacker(
            partial(next, packed, b""), prefix=prefix, window_log=layout.PATCH_WINDOW_LOG
        )
        made = reader.read(patch.length)
        reader.finish()
        return made

    def _moved(self, old: bytes, element: layout.Element) -> bytes:
        if self._steps is None:
            self._steps = default_steps()
        width = layout.width_of(element)
        count = len(old) // width
        planes = [self._plane(self._steps, number, count) for number in range(width)]
        return self._steps.restored(old, planes, element)

    def _plane(self, steps: Steps, number: int, count: int) -> bytes:
        gap_count = int.from_bytes(self._payload.read(layout.COUNTS, 4), "little")
        if gap_count == layout.DENSE:
            return self._payload.read(layout.PLANE + number, count)
        if gap_count > count:
            raise DeltaError("a plane of the delta has more bytes than numbers")
        gaps = self._payload.read(layout.GAPS, gap_count)
        values = self._payload.read(layout.PLANE + number, gap_count - gaps.count(layout.ESCAPE))
        try:
            return steps.expanded(gaps, values, count)
        except ValueError as exc:
            raise DeltaError(f"a plane of the delta is wrong: {exc}") from exc


def _write(new: Path, header: Header, blocks: Iterator[bytes]) -> None:
    """Write the new file beside its place, and move it there when it is right and durable.

    Raises:
        DeltaError: The blocks cannot be made, or make another file.
        OSError: It cannot be written.
    """
    temporary = temporary_of(new)
    temporary.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(temporary, flags, PRIVATE), "wb") as stream:
            for block in _hashed(blocks, header):
                stream.write(block)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(new)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(new.parent)


def _hashed(blocks: Iterator[bytes], header: Header) -> Iterator[bytes]:
    """Yield the blocks, and fail after the last when they are not the new file.

    Raises:
        DeltaError: They are not.
    """
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(block)
        yield block
    if digest.digest() != header.new_sha256:
        raise DeltaError("what the delta makes does not have the digest that it says")


def _sizes(length: int, block_bytes: int = BLOCK_BYTES) -> Iterator[int]:
    for start in range(0, length, block_bytes):
        yield min(block_bytes, length - start)


def _range(
    descriptor: int, start: int, length: int, block_bytes: int = READ_BYTES
) -> Iterator[bytes]:
    """Yield a range of a file in blocks."""
    for size in _sizes(length, block_bytes):
        yield _exactly(descriptor, start, size)
        start += size


def _exactly(descriptor: int, start: int, size: int) -> bytes:
    data = os.pread(descriptor, size, start)
    while len(data) < size:  # a signal, or the file has become shorter meanwhile
        more = os.pread(descriptor, size - len(data), start + len(data))
        if not more:
            raise DeltaError("a file of the delta became shorter while it was read")
        data += more
    return data
