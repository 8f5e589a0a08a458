from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.durations import format_duration, parse_duration_s
from wire.errors import WireFormatError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0), ("10s", 10), ("500ms", 0.5), ("1.5m", 90), ("1h30m", 5400), ("1D", 86_400),
        ("2w", 1_209_600), (" 5m ", 300), ("0s", 0), ("50ms", 0.05), ("2d", 172_800), ("1h", 3600),
    ],
)  # fmt: skip
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    ["", "x", "-5s", "5 m", "1y", "1h-", "nan", "1e3", "\n", "\u0661h", "9" * 99, "h", "1hh"],
)
def test_no_durations(text: str) -> None:
    with pytest.raises(WireFormatError, match="is not a duration; write it as 90s, 15m, 1h30m"):
        parse_duration_s(text)


@pytest.mark.parametrize("text", ["12", " 5 ", "1.5", "00", "300"])
def test_a_number_without_a_unit_is_refused(text: str) -> None:
    with pytest.raises(WireFormatError, match="has no unit; write it as 90s, 15m, 1h30m"):
        parse_duration_s(text)


@given(st.text(max_size=20))
def test_any_text_is_a_duration_or_a_clear_fault(text: str) -> None:
    try:
        seconds = parse_duration_s(text)
    except WireFormatError:
        return
    assert 0 <= seconds < math.inf


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.05, "50ms"), (90, "1m30s"), (3600, "1h"), (5400.5, "1h30m500ms"),
     (8 * 86_400, "1w1d")],
)  # fmt: skip
def test_a_duration_is_written_with_its_largest_unit_first(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.integers(0, 10**12))
def test_what_is_written_is_read_back(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    assert parse_duration_s(format_duration(seconds)) == pytest.approx(seconds)
