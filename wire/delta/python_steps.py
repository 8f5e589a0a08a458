"""Differences of numbers without NumPy: slower, and the same to the last bit.

A device has NumPy with almost every runtime; a variant that was compiled ahead of time runs
without.
"""

from __future__ import annotations

import sys
from array import array
from itertools import repeat
from typing import TYPE_CHECKING

from wire.delta.layout import ESCAPE, Element, width_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}


def expanded(gaps: bytes, values: bytes, count: int) -> bytes:
    """Return the plane of some gaps and nonzero bytes.

    Args:
        gaps: What lies before each byte, with escapes.
        values: The bytes, as many as gaps without the escapes.
        count: The size of the plane.

    Returns:
        The plane.

    Raises:
        ValueError: A byte lies outside of the plane.
    """
    plane = bytearray(count)
    remaining = iter(values)
    place = 0
    for gap in gaps:
        place += gap
        if gap != ESCAPE:
            if place >= count:
                raise ValueError("a byte lies outside of its plane")
            plane[place] = next(remaining)
            place += 1
    return bytes(plane)


def restored(old: bytes, planes: Sequence[bytes], element: Element) -> bytes:
    """Return the new range of an old one and the planes of their differences.

    Args:
        old: The old range.
        planes: One for each byte of an element.
        element: What the range holds.

    Returns:
        The new range.
    """
    if not any(map(any, planes)):
        return old
    width = width_of(element)
    if element == "n1":
        return bytes(map(_nibbles, old, planes[0]))
    rows = bytearray(len(old))
    for place, plane in enumerate(planes):
        rows[place::width] = plane
    before, folded = _numbers(old, width), _numbers(rows, width)
    restore = _float if element[0] == "f" else _integer
    after = array(_CODES[width], map(restore, before, folded, repeat(8 * width)))
    return _little(after).tobytes()


def _integer(before: int, folded: int, bits: int) -> int:
    return (before + ((folded >> 1) ^ -(folded & 1))) & ((1 << bits) - 1)


def _float(before: int, folded: int, bits: int) -> int:
    every, top = (1 << bits) - 1, 1 << (bits - 1)
    ordered = before ^ (every if before & top else top)
    after = (ordered + ((folded >> 1) ^ -(folded & 1))) & every
    return after ^ (top if after & top else every)


def _nibbles(before: int, folded: int) -> int:
    low = (before & 15) + (((folded & 15) >> 1) ^ -(folded & 1))
    high = (before >> 4) + ((folded >> 5) ^ -((folded >> 4) & 1))
    return (high & 15) << 4 | (low & 15)


def _numbers(data: bytes | bytearray, width: int) -> array[int]:
    numbers = array(_CODES[width])
    numbers.frombytes(data)
    return _little(numbers)


def _little(numbers: array[int]) -> array[int]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
