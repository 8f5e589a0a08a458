"""Differences of numbers in NumPy: how far new numbers are from old ones, bit by bit.

Floats become integers in the same order first. Differences wrap around, and small ones of either
sign become small unsigned ones. A plane holds one byte of each: the first plane the lowest. So
every bit comes back, of NaN and of -0.0 too.

Rules:
- All numbers are little-endian.
- `expanded` and `restored` do the same as their namesakes in `wire.delta.python_steps`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wire.delta.layout import ESCAPE, Element, width_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Unsigned = NDArray[Any]

SPARSE_SHARE = 0.4
"""Planes with a smaller share of nonzero bytes are written as gaps and bytes. An entropy coder of
whole bits needs one for each zero of a dense plane."""


def planes_of(old: Any, new: Any, element: Element) -> list[Unsigned]:  # noqa: ANN401 - buffers
    """Return the planes of the differences between two ranges.

    Args:
        old: The old range; a multiple of the element's width.
        new: The new one, of the same size.
        element: What both hold.

    Returns:
        One plane for each byte of an element.
    """
    width = width_of(element)
    if element == "n1":
        return [_nibble_steps(_numbers(old, 1), _numbers(new, 1))]
    before, after = _numbers(old, width), _numbers(new, width)
    if element[0] == "f":
        before, after = _ordered(before), _ordered(after)
    steps = after - before
    folded = (steps << 1) ^ np.negative(steps >> (8 * width - 1))
    rows = folded.view(np.uint8).reshape(-1, width)
    return [rows[:, place] for place in range(width)]


def numbers_of(data: Any, element: Element) -> Unsigned:  # noqa: ANN401 - any buffer
    """Return the numbers of a range as unsigned integers; floats in their order.

    Args:
        data: The range; a multiple of the element's width.
        element: What it holds.

    Returns:
        The numbers; two integers of four bits are one.
    """
    numbers = _numbers(data, width_of(element))
    return _ordered(numbers) if element[0] == "f" else numbers


def sparse(plane: Unsigned) -> tuple[bytes, bytes] | None:
    """Return the gaps before the nonzero bytes of a plane, and those bytes.

    Args:
        plane: The plane.

    Returns:
        Both, or None where most bytes are not zero.
    """
    is_set = plane != 0  # NumPy finds what is true several times as fast as what is not zero
    if np.count_nonzero(is_set) > SPARSE_SHARE * plane.size:
        return None
    places = np.flatnonzero(is_set)
    gaps = np.diff(places, prepend=-1) - 1
    escapes = gaps // ESCAPE
    coded = np.full(int(escapes.sum()) + gaps.size, ESCAPE, np.uint8)
    coded[np.cumsum(escapes + 1) - 1] = gaps % ESCAPE
    return coded.tobytes(), plane[places].tobytes()


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
    steps = np.frombuffer(gaps, np.uint8).astype(np.int64)
    ends = np.cumsum(steps + (steps != ESCAPE))
    places = ends[steps != ESCAPE] - 1
    if places.size and places[-1] >= count:
        raise ValueError("a byte lies outside of its plane")
    plane = np.zeros(count, np.uint8)
    plane[places] = np.frombuffer(values, np.uint8)
    return plane.tobytes()


def restored(old: bytes, planes: Sequence[bytes], element: Element) -> bytes:
    """Return the new range of an old one and the planes of their differences.

    Args:
        old: The old range.
        planes: One for each byte of an element.
        element: What the range holds.

    Returns:
        The new range.
    """
    width = width_of(element)
    if element == "n1":
        return _nibbles_restored(_numbers(old, 1), np.frombuffer(planes[0], np.uint8))
    rows = np.empty((len(planes[0]), width), np.uint8)
    for place, plane in enumerate(planes):
        rows[:, place] = np.frombuffer(plane, np.uint8)
    folded = rows.reshape(-1).view(f"<u{width}")
    steps = (folded >> 1) ^ np.negative(folded & 1)
    before = _numbers(old, width)
    if element[0] != "f":
        return bytes((before + steps).tobytes())
    after = _ordered(before) + steps
    top = np.array(1 << (8 * width - 1), after.dtype)
    return bytes((after ^ (((after >> (8 * width - 1)) - 1) | top)).tobytes())


def _numbers(data: Any, width: int) -> Unsigned:  # noqa: ANN401 - any buffer
    return np.frombuffer(data, f"<u{width}")


def _ordered(numbers: Unsigned) -> Unsigned:
    """Return the bits of floats as unsigned integers in the order of the floats."""
    bits = 8 * numbers.dtype.itemsize
    top = np.array(1 << (bits - 1), numbers.dtype)
    mapped: Unsigned = numbers ^ (np.negative(numbers >> (bits - 1)) | top)
    return mapped


def _nibble_steps(before: Unsigned, after: Unsigned) -> Unsigned:
    low = (after - before) & 15
    high = ((after >> 4) - (before >> 4)) & 15
    folded: Unsigned = (_folded4(high) << 4) | _folded4(low)
    return folded


def _folded4(steps: Unsigned) -> Unsigned:
    folded: Unsigned = ((steps << 1) ^ np.negative(steps >> 3)) & 15
    return folded


def _nibbles_restored(before: Unsigned, folded: Unsigned) -> bytes:
    low = (before + _unfolded4(folded & 15)) & 15
    high = ((before >> 4) + _unfolded4(folded >> 4)) & 15
    return ((high << 4) | low).tobytes()


def _unfolded4(folded: Unsigned) -> Unsigned:
    steps: Unsigned = (folded >> 1) ^ np.negative(folded & 1)
    return steps
