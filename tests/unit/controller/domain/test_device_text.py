"""Texts from devices."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controller.domain.device_text import clean


@given(st.text(), st.integers(0, 100))
def test_a_text_is_one_bounded_line(text: str, bound: int) -> None:
    kept = clean(text, bound)
    assert len(kept) <= bound
    assert kept.isprintable()
    assert len(kept.splitlines()) <= 1


def test_what_can_be_printed_stays() -> None:
    assert clean("zu heiß: 91 °C", 64) == "zu heiß: 91 °C"
    assert clean("a\0b\nc", 64) == "a b c"
