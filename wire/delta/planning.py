"""Splits a new file into parts: what is copied, subtracted, patched or sent as it is.

Rules:
- A tensor of both files is subtracted, or copied where it is the same.
- The bytes between tensors are compared with those at the same place between the old tensors. What
  differs is tried in every way that fits, a mebibyte at a time, and the smallest is taken.
- Of a file without known tensors, every byte is between tensors.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from wire.delta.layout import BLOCK_BYTES, Element, prefix_limit, width_of
from wire.delta.numpy_steps import planes_of, sparse
from wire.delta.zstd import compress, compress_after

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wire.delta.places import Pair

MIN_COPY_BYTES = 32
"""A shorter copy between two other parts costs more than it saves."""

MIN_PATCH_BYTES = 64
MIN_FLOATS_BYTES = 4096
"""Of shorter ranges nobody asks whether they hold floats."""

ALIGNMENT = 8
"""Compilers place constants at such offsets in a file, or at larger ones."""

FRAME_BYTES = 12
"""What a patch costs beside its content."""

ANCHORS = 16
ANCHOR_BYTES = 32
ANCHOR_KINDS = 8
"""An anchor has that many different bytes: zeros are found everywhere."""

SEARCH_BYTES = 16 * 1024**2
"""How far from where it is expected a moved part is looked for."""


class Part(NamedTuple):
    """A range of the new file, and how it is made."""

    action: Literal["copy", "difference", "text", "patch"]
    start: int
    length: int
    old_start: int = 0
    element: Element = "i1"
    prefix: int = 0
    packed: bytes = b""


def plan(old: Any, new: Any, pairs: Iterable[Pair]) -> list[Part]:  # noqa: ANN401 - bytes or a map
    """Split a new file into parts.

    Args:
        old: The old file: bytes, or a map of it.
        new: The new file.
        pairs: The tensors of both, in the order of the new file.

    Returns:
        The parts, in order, without gaps.
    """
    return list(_joined(_parts(_Files(old, new), pairs)))


class _Files:
    """Both files, as arrays and as what can be searched."""

    def __init__(self, old: Any, new: Any) -> None:  # noqa: ANN401 - bytes or a map
        self.text = old
        self.old = np.frombuffer(old, np.uint8) if len(old) else np.zeros(0, np.uint8)
        self.new = np.frombuffer(new, np.uint8) if len(new) else np.zeros(0, np.uint8)

    def equal(self, start: int, old_start: int, length: int) -> bool:
        """Tell whether two ranges are the same."""
        after = self.new[start : start + length]
        return bool(np.array_equal(self.old[old_start : old_start + length], after))


def _parts(files: _Files, pairs: Iterable[Pair]) -> Iterator[Part]:
    place = old_place = 0
    for new, old in pairs:
        gap = new.offset - place
        is_onwards = old_place <= old.offset <= old_place + gap + BLOCK_BYTES
        begin = old_place if is_onwards else max(0, old.offset - gap)
        yield from _between(files, place, new.offset, begin, old.offset)
        is_same = files.equal(new.offset, old.offset, new.length)
        action: Literal["copy", "difference"] = "copy" if is_same else "difference"
        yield Part(action, new.offset, new.length, old.offset, new.element)
        place, old_place = new.offset + new.length, old.offset + old.length
    yield from _between(files, place, files.new.size, old_place, files.old.size)


def _between(files: _Files, start: int, end: int, old_start: int, old_end: int) -> Iterator[Part]:
    """Yield the parts of a range in which there is no tensor.

    Args:
        files: Both.
        start: Of the new range.
        end: Of the new range.
        old_start: Of the old range that it is compared with.
        old_end: Of the old range.
    """
    length = end - start
    new, old = files.new[start:end], files.old[old_start : max(old_start, old_end)]
    shorter = min(new.size, old.size)
    head = _same(new[:shorter], old[:shorter])
    rest = shorter - head
    tail = _same(new[::-1][:rest], old[::-1][:rest])
    if length > MIN_FLOATS_BYTES and head < length:  # numbers within must not be cut
        head -= min(head, (start + head) % ALIGNMENT)
        tail -= min(tail, (tail - end) % ALIGNMENT)
    if head < MIN_COPY_BYTES and head < length:
        head = 0
    if tail < MIN_COPY_BYTES:
        tail = 0
    if head:
        yield Part("copy", start, head, old_start)
    if length > head + tail:
        yield from _pieces(files, start + head, end - tail, old_start + head)
    if tail:
        yield Part("copy", end - tail, tail, old_end - tail)


def _same(first: Any, second: Any) -> int:  # noqa: ANN401 - arrays
    """Return how many bytes are the same at the beginning of two ranges of one size."""
    for start in range(0, first.size, BLOCK_BYTES):
        unlike = first[start : start + BLOCK_BYTES] != second[start : start + BLOCK_BYTES]
        if unlike.any():
            return start + int(unlike.argmax())
    return int(first.size)


def _pieces(files: _Files, start: int, end: int, old_start: int) -> Iterator[Part]:
    """Yield the best part for each mebibyte of a range that differs."""
    shift = old_start - start
    for begin in range(start, end, BLOCK_BYTES):
        length = min(BLOCK_BYTES, end - begin)
        shift = _shift_of(files, begin, length, shift)
        yield _best(files, begin, length, begin + shift)


def _shift_of(files: _Files, start: int, length: int, shift: int) -> int:
    """Return where the old file has what a range holds, from the ranges of it that did not change.

    Args:
        files: Both.
        start: Of the range.
        length: Of the range.
        shift: What is expected.

    Returns:
        How much further on it is in the old file, or what was expected when nothing is found.
    """
    if length < MIN_FLOATS_BYTES:
        return shift
    found: Counter[int] = Counter()
    for place in range(start, start + length - ANCHOR_BYTES, length // ANCHORS):
        anchor = files.new[place : place + ANCHOR_BYTES].tobytes()
        if len(set(anchor)) < ANCHOR_KINDS:
            continue
        wanted = place + shift
        if files.old[max(0, wanted) : max(0, wanted + ANCHOR_BYTES)].tobytes() == anchor:
            return shift
        low, high = max(0, wanted - SEARCH_BYTES), max(0, wanted + SEARCH_BYTES)
        where = files.text.find(anchor, low, high)
        if where >= 0:
            found[where - place] += 1
    return found.most_common(1)[0][0] if found else shift


def _best(files: _Files, start: int, length: int, old_start: int) -> Part:
    """Return the smallest of all ways to make a range."""
    new = files.new[start : start + length]
    ways: list[tuple[int, Part]] = [(len(compress(new)), Part("text", start, length))]
    if 0 <= old_start <= files.old.size - length:
        if files.equal(start, old_start, length):
            return Part("copy", start, length, old_start)
        old = files.old[old_start : old_start + length]
        elements: tuple[Element, ...] = ("i1",) if length < MIN_FLOATS_BYTES else ("i1", "f2", "f4")
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


def _joined(parts: Iterable[Part]) -> Iterator[Part]:
    """Yield the parts, with those joined that go on where the one before ends."""
    last: Part | None = None
    for part in parts:
        if last is None:
            last = part
        elif (kept := _together(last, part)) is not None:
            last = kept
        else:
            yield last
            last = part
    if last is not None:
        yield last


def _together(first: Part, second: Part) -> Part | None:
    """Return two parts as one, or None when they do not fit together.

    A short copy joins differences of bytes: it is one with nothing but zeros.
    """
    whole = first._replace(length=first.length + second.length)
    if first.action == second.action == "text":
        return whole
    if first.old_start + first.length != second.old_start:
        return None
    if first.action == second.action == "copy":
        return whole
    is_first, is_second = (_is_in_bytes(part) for part in (first, second))
    if is_first and is_second and "difference" in {first.action, second.action}:
        return whole._replace(action="difference", element="i1")
    is_same = first.action == second.action == "difference" and first.element == second.element
    return whole if is_same else None


def _is_in_bytes(part: Part) -> bool:
    if part.action == "copy":
        return part.length < MIN_COPY_BYTES * 4
    return part.action == "difference" and part.element == "i1"
