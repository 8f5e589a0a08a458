"""Reasons are one short line, and a difference from the promise is put in words."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runtime_adapters.checks import MAX_REASON, fallback_reason, shortened


@given(st.text(max_size=2000))
def test_a_reason_is_one_short_printable_line(text: str) -> None:
    line = shortened(text)
    assert 0 < len(line) <= MAX_REASON
    assert line.isprintable()


def test_a_short_reason_stays() -> None:
    assert shortened("no such\n  file: é") == "no such file: é"
    assert shortened(" \n") == "no reason given"


def test_a_kept_promise_is_no_fallback() -> None:
    assert fallback_reason({"device": "CPU"}, {"device": "CPU", "more": "x"}) == ""


def test_a_broken_promise_is_named() -> None:
    assert (
        fallback_reason({"device": "GPU", "hint": "bf16"}, {"device": "CPU"})
        == "device is CPU, promised was GPU; hint is unknown, promised was bf16"
    )
