"""The ways to make a range of a new file from the old one, and which of them is the smallest.

Rules:
- Every way is tried in full on the range itself, so a wrong expectation costs time and no size.
- A mebibyte at a time: what a patch may hold and refer to is bounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from wire.delta import layout
from wire.delta.layout import BLOCK_BYTES, Element, prefix_limit, width_of
from wire.delta.numpy_steps import planes_of, sparse
from wire.delta.zstd import compress, compress_after

if TYPE_CHECKING:
    from collections.abc import Iterable

MIN_COPY_BYTES = 32
"""A shorter copy between two other parts costs more than it saves."""

MAX_ROWS = layout.MAX_SEGMENTS // 4
"""Rows of all tensors that are looked for; each may become a segment."""

MIN_PATCH_BYTES = 64
FRAME_BYTES = 12
"""What a patch costs beside its content."""


class Part(NamedTuple):
    """A range of the new file, and how it is made."""

    action: Literal["copy", "difference", "text", "patch"]
    start: int
    length: int
    old_start: int = 0
    element: Element = "i1"
    prefix: int = 0
    packed: bytes = b""


class Files:
    """Both files, as arrays and as what can be searched.

    Args:
        old: The old file: bytes, or a map of it.
        new: The new file.
    """

    def __init__(self, old: Any, new: Any) -> None:  # noqa: ANN401 - bytes or a map
        self.text = old
        self.rows_left = MAX_ROWS
        self.old = np.frombuffer(old, np.uint8) if len(old) else np.zeros(0, np.uint8)
        self.new = np.frombuffer(new, np.uint8) if len(new) else np.zeros(0, np.uint8)

    def equal(self, start: int, old_start: int, length: int) -> bool:
        """Tell whether two ranges are the same."""
        after = self.new[start : start + length]
        return bool(np.array_equal(self.old[old_start : old_start + length], after))


def same_bytes(first: Any, second: Any) -> int:  # noqa: ANN401 - arrays
    """Return how many bytes are the same at the beginning of two ranges of one size."""
    for start in range(0, first.size, BLOCK_BYTES):
        unlike = first[start : start + BLOCK_BYTES] != second[start : start + BLOCK_BYTES]
        if unlike.any():
            return start + int(unlike.argmax())
    return int(first.size)


def best(
    files: Files, start: int, length: int, old_start: int, elements: Iterable[Element]
) -> Part:
    """Return the smallest of all ways to make a range.

    Args:
        files: Both.
        start: Of the range.
        length: Of the range, a mebibyte at most.
        old_start: Of the old range that it is subtracted from, or that a patch refers to.
        elements: What it may hold.

    Returns:
        The part.
    """
    new = files.new[start : start + length]
    ways: list[tuple[int, Part]] = [(len(compress(new)), Part("text", start, length))]
    if 0 <= old_start <= files.old.size - length:
        if files.equal(start, old_start, length):
            return Part("copy", start, length, old_start)
        old = files.old[old_start : old_start + length]
        for element in elements:
            if length % width_of(element) == 0:
                cost = _difference_bytes(old, new, element)
                ways.append((cost, Part("difference", start, length, old_start, element)))
    if length >= MIN_PATCH_BYTES:
        low, high = _prefix_around(files.old.size, old_start, length)
        packed = compress_after(files.old[low:high], new)
        patch = Part("patch", start, length, low, prefix=high - low, packed=packed)
        ways.append((len(packed) + FRAME_BYTES, patch))
    return min(ways, key=lambda way: way[0])[1]


def _difference_bytes(old: Any, new: Any, element: Element) -> int:  # noqa: ANN401 - arrays
    size = 0
    for plane in planes_of(old, new, element):
        coded = sparse(plane)
        parts = coded or (plane.tobytes(),)
        size += sum(len(compress(part)) for part in parts if part)
    return size


def _prefix_around(old_size: int, old_start: int, length: int) -> tuple[int, int]:
    """Return the old range that a patch refers to: as much as it may, around its place."""
    most = min(prefix_limit(length), old_size)
    low = min(max(0, old_start - (most - length) // 2), old_size - most)
    return low, low + most
