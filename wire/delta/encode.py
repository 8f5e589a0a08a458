"""Makes a delta from two versions of a file.

Rules:
- Whatever the bytes of both files are, the delta makes the new one to the last bit.
- Equal files and equal tensors give equal deltas, as long as Zstandard's version is the same.
- It needs NumPy, and memory for the delta beside the two files.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from wire.delta import layout
from wire.delta.layout import BLOCK_BYTES, Copy, Difference, Header, Patch, Segment, Text
from wire.delta.numpy_steps import planes_of, sparse
from wire.delta.pairing import pairs
from wire.delta.places import within
from wire.delta.planning import plan
from wire.delta.zstd import Packer, compress

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wire.delta.places import Place
    from wire.delta.ways import Part


def encode(
    old: Any,  # noqa: ANN401 - bytes or a map
    new: Any,  # noqa: ANN401 - bytes or a map
    *,
    old_places: Iterable[Place] = (),
    new_places: Iterable[Place] = (),
) -> bytes:
    """Make a delta.

    Args:
        old: The old file: bytes, or a map of it (`mmap`).
        new: The new file.
        old_places: Its tensors (`wire.delta.formats`); without them it is taken as mere bytes.
        new_places: The tensors of the new file.

    Returns:
        The delta. Ask `wire.delta.layout.pays` whether it is worth sending.
    """
    found = pairs(old, new, within(old_places, len(old)), within(new_places, len(new)))
    parts = plan(old, new, found)
    if len(parts) > layout.MAX_SEGMENTS:
        parts = plan(old, new, [])
    writer = _Writer(memoryview(old), memoryview(new))
    for part in parts:
        writer.add(part)
    return writer.finish()


class _Writer:
    """Writes the parts of a delta.

    Args:
        old: The old file.
        new: The new file.
    """

    def __init__(self, old: memoryview, new: memoryview) -> None:
        self._old = old
        self._new = new
        self._place = 0
        self._streams = [Packer() for _ in range(layout.STREAMS)]
        self._patches: list[bytes] = []
        self._segments: list[Segment] = []

    def add(self, part: Part) -> None:
        """Write the next part."""
        self._segments.append(self._segment(part))
        end = part.start + part.length
        if part.action == "patch":
            self._patches.append(part.packed)
        elif part.action == "text":
            for start in range(part.start, end, BLOCK_BYTES):
                stop = min(end, start + BLOCK_BYTES)
                self._streams[layout.LITERALS].write(bytes(self._new[start:stop]))
        elif part.action == "difference":
            for done in range(0, part.length, BLOCK_BYTES):
                self._subtract(part, done, min(BLOCK_BYTES, part.length - done))

    def finish(self) -> bytes:
        """Return the delta."""
        streams = [stream.finish() for stream in self._streams]
        header = Header(
            old_size_bytes=len(self._old),
            old_sha256=hashlib.sha256(self._old).digest(),
            new_size_bytes=len(self._new),
            new_sha256=hashlib.sha256(self._new).digest(),
            streams=tuple(map(len, streams)),
            segments=tuple(self._segments),
        ).to_bytes()
        packed = compress(header)
        prelude = layout.PRELUDE.pack(layout.MAGIC, layout.VERSION, len(packed), len(header))
        return b"".join((prelude, packed, *streams, *self._patches))

    def _segment(self, part: Part) -> Segment:
        if part.action == "text":
            return Text(length=part.length)
        skip = part.old_start - self._place
        if part.action == "patch":
            self._place = part.old_start + part.prefix
            packed = len(part.packed)
            return Patch(length=part.length, skip=skip, prefix=part.prefix, packed=packed)
        self._place = part.old_start + part.length
        if part.action == "copy":
            return Copy(length=part.length, skip=skip)
        return Difference(length=part.length, skip=skip, element=part.element)

    def _subtract(self, part: Part, done: int, length: int) -> None:
        old = self._old[part.old_start + done : part.old_start + done + length]
        new = self._new[part.start + done : part.start + done + length]
        for number, plane in enumerate(planes_of(old, new, part.element)):
            coded = sparse(plane)
            gaps, values = (b"", plane.tobytes()) if coded is None else coded
            count = layout.DENSE if coded is None else len(gaps)
            self._streams[layout.COUNTS].write(count.to_bytes(4, "little"))
            self._streams[layout.GAPS].write(gaps)
            self._streams[layout.PLANE + number].write(values)
