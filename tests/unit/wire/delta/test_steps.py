"""Differences of numbers: every bit comes back, with NumPy and without."""

from __future__ import annotations

import struct
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulators.deltas import ARITHMETIC
from wire.delta import numpy_steps, python_steps
from wire.delta.layout import Element, width_of

ELEMENTS = get_args(Element)
SPECIAL = {
    "f4": [0x00000000, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001, 0x7F800001, 1],
    "f2": [0x0000, 0x8000, 0x7C00, 0xFC00, 0x7E00, 0xFE01, 0x7F80, 0xFF81],
    "f8": [0, 1 << 63, 0x7FF0 << 48, 0xFFF0 << 48, (0x7FF8 << 48) | 5, (0xFFF0 << 48) | 1, 1, 2],
}
CODES = {2: "H", 4: "I", 8: "Q"}


def planes(old: bytes, new: bytes, element: Element) -> list[bytes]:
    return [plane.tobytes() for plane in numpy_steps.planes_of(old, new, element)]


@st.composite
def two_ranges(draw: st.DrawFn) -> tuple[bytes, bytes, Element]:
    element: Element = draw(st.sampled_from(ELEMENTS))
    size = draw(st.integers(1, 40)) * width_of(element)
    content = st.binary(min_size=size, max_size=size)
    return draw(content), draw(content), element


@given(two_ranges())
def test_any_bits_come_back_with_numpy_and_without(case: tuple[bytes, bytes, Element]) -> None:
    old, new, element = case
    for steps in ARITHMETIC.values():
        assert steps.restored(old, planes(old, new, element), element) == new


@pytest.mark.parametrize("element", SPECIAL)
@pytest.mark.parametrize("steps", ARITHMETIC.values(), ids=ARITHMETIC)
def test_nan_infinity_and_minus_zero_come_back(steps: Any, element: Element) -> None:
    bits, code = SPECIAL[element], CODES[width_of(element)]
    for turn in range(len(bits)):
        old = struct.pack(f"<{len(bits)}{code}", *bits)
        new = struct.pack(f"<{len(bits)}{code}", *bits[turn:], *bits[:turn])
        assert steps.restored(old, planes(old, new, element), element) == new


@pytest.mark.parametrize("element", ["f2", "f4", "f8"])
def test_floats_near_each_other_differ_by_little_also_across_zero(element: Element) -> None:
    kind = np.dtype(f"<{element}")
    old = np.array([-0.0, 1.0, -1.0, np.finfo(kind).tiny], kind)
    new = np.nextafter(old, kind.type(1.5))
    found = planes(old.tobytes(), new.tobytes(), element)
    assert max(found[0]) <= 4
    assert not any(map(any, found[1:]))


@given(st.binary(max_size=3000), st.integers(0, 40))
def test_a_sparse_plane_comes_back_with_numpy_and_without(content: bytes, spread: int) -> None:
    plane = b"".join(bytes(spread * 20) + bytes([byte]) for byte in content[:60])
    coded = numpy_steps.sparse(np.frombuffer(plane, np.uint8))
    if coded is not None:
        for steps in ARITHMETIC.values():
            assert steps.expanded(*coded, len(plane)) == plane


@given(st.binary(max_size=60), st.integers(0, 400))
def test_any_gaps_fit_or_are_refused_by_both_alike(gaps: bytes, count: int) -> None:
    values = bytes(range(1, 1 + len(gaps) - gaps.count(255)))
    found: list[bytes | None] = []
    for steps in (numpy_steps, python_steps):
        try:
            found.append(steps.expanded(gaps, values, count))
        except ValueError:
            found.append(None)
    assert found[0] == found[1]
