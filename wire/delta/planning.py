"""Splits a new file into parts: what is copied, subtracted, patched or sent as it is.

Rules:
- A tensor that the old file has too is copied; one that is near its old one is subtracted. Of
  another one, rows that the old one has are copied, and the rest is made in the way that is the
  smallest for its beginning.
- The bytes between tensors are compared with those at the same place between the old tensors. What
  differs is tried in every way that fits, a mebibyte at a time, and the smallest is taken.
- Of a file without known tensors, every byte is between tensors.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from wire.delta.layout import BLOCK_BYTES, Element
from wire.delta.tensors import tensor_parts
from wire.delta.ways import MIN_COPY_BYTES, Files, Part, best, same_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wire.delta.places import Pair

MIN_FLOATS_BYTES = 4096
"""Of shorter ranges nobody asks whether they hold floats."""

ALIGNMENT = 8
"""Compilers place constants at such offsets in a file, or at larger ones."""

ANCHORS = 16
ANCHOR_BYTES = 32
ANCHOR_KINDS = 8
"""An anchor has that many different bytes: zeros are found everywhere."""

SEARCH_BYTES = 16 * 1024**2
"""How far from where it is expected a moved part is looked for."""


def plan(old: Any, new: Any, pairs: Iterable[Pair]) -> list[Part]:  # noqa: ANN401 - bytes or a map
    """Split a new file into parts.

    Args:
        old: The old file: bytes, or a map of it.
        new: The new file.
        pairs: The tensors of both, in the order of the new file.

    Returns:
        The parts, in order, without gaps.
    """
    return list(_joined(_parts(Files(old, new), pairs)))


def _parts(files: Files, pairs: Iterable[Pair]) -> Iterator[Part]:
    place = old_place = 0
    for pair in pairs:
        new, old = pair.new, pair.old
        gap = new.offset - place
        is_onwards = old_place <= old.offset <= old_place + gap + BLOCK_BYTES
        begin = old_place if is_onwards else max(0, old.offset - gap)
        yield from _between(files, place, new.offset, begin, old.offset)
        yield from tensor_parts(files, pair)
        place, old_place = new.offset + new.length, old.offset + old.length
    yield from _between(files, place, files.new.size, old_place, files.old.size)


def _between(files: Files, start: int, end: int, old_start: int, old_end: int) -> Iterator[Part]:
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
    head = same_bytes(new[:shorter], old[:shorter])
    rest = shorter - head
    tail = same_bytes(new[::-1][:rest], old[::-1][:rest])
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


def _pieces(files: Files, start: int, end: int, old_start: int) -> Iterator[Part]:
    """Yield the best part for each mebibyte of a range that differs."""
    shift = old_start - start
    for begin in range(start, end, BLOCK_BYTES):
        length = min(BLOCK_BYTES, end - begin)
        shift = _shift_of(files, begin, length, shift)
        elements: tuple[Element, ...] = ("i1",) if length < MIN_FLOATS_BYTES else ("i1", "f2", "f4")
        yield best(files, begin, length, begin + shift, elements)


def _shift_of(files: Files, start: int, length: int, shift: int) -> int:
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
