from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.cli.drawing.sparkline import ASCII, BLOCKS, sparkline


@pytest.mark.parametrize(
    ("values", "shown", "plain"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 8], "▁▂▃▄▅▆▇█", "_.-~=+*#"),
        ([1, None, 8], "▁·█", "_:#"),
        ([1, math.nan, math.inf, 8], "▁··█", "_::#"),
        ([-5, 0, 5], "▁▅█", "_=#"),
        ([7], "▄", "~"),
        ([0, 0, 0], "▄▄▄", "~~~"),
        ([100.0, 100.1, 99.9], "▄▄▄", "~~~"),
        ([None, None], "··", "::"),
        ([], "", ""),
    ],
)
def test_golden(values: list[float | None], shown: str, plain: str) -> None:
    assert sparkline(values) == shown
    assert sparkline(values, unicode=False) == plain


@given(st.lists(st.none() | st.floats()), st.booleans())
def test_any_values_give_one_character_each(values: list[float | None], unicode: bool) -> None:
    word = sparkline(values, unicode=unicode)
    assert len(word) == len(values)
    assert set(word) <= set(BLOCKS + "·" if unicode else ASCII + ":")


@given(st.lists(st.floats(-1e6, 1e6), min_size=2))
def test_a_greater_value_is_never_lower(values: list[float]) -> None:
    heights = [BLOCKS.index(mark) for mark in sparkline(values)]
    ranked = sorted(zip(values, heights, strict=True))
    assert [height for _, height in ranked] == sorted(heights)
