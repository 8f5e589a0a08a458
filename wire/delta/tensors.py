"""How a tensor is made from the old one that it was paired with.

Rules:
- One that is near the old one is subtracted, and nothing else is tried: that is what training does.
- Of another one, rows that the old one has are copied: output channels in another order, or some
  of them trained. What is left is tried in every way at its beginning; that way is kept, and a
  patch chosen anew for each mebibyte.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from wire.delta.layout import BLOCK_BYTES, Element, width_of
from wire.delta.ways import MIN_COPY_BYTES, Files, Part, best, same_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wire.delta.places import Pair

TRIAL_BYTES: Final = 128 * 1024
"""How much of a tensor is tried in every way; a multiple of every element's width."""

ALIGNMENT: Final = 8
"""A multiple of every element's width."""

MIN_ROW_BYTES: Final = 128
"""Shorter rows are left to patches, which take about as many bytes for each as a segment."""

PRINT_BYTES: Final = 16


def tensor_parts(files: Files, pair: Pair) -> Iterator[Part]:
    """Yield the parts of a tensor.

    Args:
        files: Both.
        pair: The tensor, and the old one.

    Yields:
        The parts, in order, without gaps.
    """
    new, old, likeness = pair
    if likeness == "same":
        yield Part("copy", new.offset, new.length, old.offset)
    elif likeness == "near":
        yield Part("difference", new.offset, new.length, old.offset, new.element)
    else:
        yield from _far(files, pair)


def _far(files: Files, pair: Pair) -> Iterator[Part]:
    new, old, _ = pair
    row_bytes = _row_bytes(files, pair)
    sources = _rows(files, pair, row_bytes) if row_bytes else []
    if sources.count(None) * 2 >= len(sources):
        sources, row_bytes = [None], new.length
    place = 0
    for is_sent, rows in groupby(sources, lambda source: source is None):
        if is_sent:
            length = row_bytes * sum(1 for _ in rows)
            start, old_start = new.offset + place, old.offset + place
            yield from _pieces(files, start, length, old_start, new.element)
            place += length
            continue
        for source in rows:
            yield Part("copy", new.offset + place, row_bytes, source or 0)
            place += row_bytes


def _row_bytes(files: Files, pair: Pair) -> int:
    """Return the size of what belongs to one place of the first axis.

    Args:
        files: Both; the rows are taken from those that may be looked for.
        pair: The tensor, and the old one.

    Returns:
        The size in bytes; 0 for a tensor whose rows are not looked for.
    """
    new = pair.new
    count = new.shape[0] if new.shape else 1
    if not 1 < count <= files.rows_left or new.length % count:
        return 0
    size = new.length // count
    if size < MIN_ROW_BYTES or size % width_of(new.element):
        return 0
    files.rows_left -= count
    return size


def _rows(files: Files, pair: Pair, row_bytes: int) -> list[int | None]:
    """Return where the old tensor has each row of the new one, as far as it does."""
    new, old, _ = pair
    places: dict[bytes, int] = {}
    for place in range(old.offset, old.offset + old.length, row_bytes):
        places.setdefault(_print(files.old, place, row_bytes), place)
    found: list[int | None] = []
    for done in range(0, new.length, row_bytes):
        start, expected = new.offset + done, old.offset + done
        likely = (expected, places.get(_print(files.new, start, row_bytes), expected))
        found.append(next((p for p in likely if files.equal(start, p, row_bytes)), None))
    return found


def _print(content: Any, place: int, row_bytes: int) -> bytes:  # noqa: ANN401 - an array
    """Return some bytes of a row, which equal ones have in common."""
    end = place + row_bytes
    middle = place + row_bytes // 2
    ends = content[place : place + PRINT_BYTES], content[end - PRINT_BYTES : end]
    return b"".join(part.tobytes() for part in (*ends, content[middle : middle + PRINT_BYTES]))


def _pieces(
    files: Files, start: int, length: int, old_start: int, element: Element
) -> Iterator[Part]:
    """Yield the parts of a range of numbers in the way that is the smallest at its beginning."""
    old = files.old[old_start : old_start + length]
    same = same_bytes(files.new[start : start + length], old)
    same = length if same == length else same - same % ALIGNMENT
    if same >= MIN_COPY_BYTES:
        yield Part("copy", start, same, old_start)
        start, old_start, length = start + same, old_start + same, length - same
    if not length:
        return
    elements = dict.fromkeys((element, "i1"))
    trial = best(files, start, min(TRIAL_BYTES, length), old_start, elements)
    if trial.length == length:
        yield trial
    elif trial.action == "patch":
        for done in range(0, length, BLOCK_BYTES):
            size = min(BLOCK_BYTES, length - done)
            yield best(files, start + done, size, old_start + done, elements)
    else:
        yield trial._replace(length=length)
