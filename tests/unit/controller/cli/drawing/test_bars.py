from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from controller.cli.drawing.bars import Bar, bars
from controller.cli.drawing.lines import Canvas, Piece, painted, shortened
from wire.console.table import cell_width

ANSI = re.compile(r"\x1b\[\d+m")
GROUPS = [
    Bar("fp32", 12.0, "12 ms"), Bar("int8 \u30ab", 6.1, "6.1 ms"), Bar("none", None, "-"),
]  # fmt: skip


def test_bars_begin_at_zero() -> None:
    assert bars(GROUPS, Canvas(30)) == [
        "fp32    ███████████████ 12 ms",
        "int8 \u30ab ███████▋ 6.1 ms",
        "none     -",
    ]
    assert bars(GROUPS, Canvas(30, unicode=False)) == [
        "fp32    ############### 12 ms",
        "int8 \u30ab ######## 6.1 ms",
        "none     -",
    ]


def test_what_is_negative_goes_to_the_left() -> None:
    groups = [Bar("a", 10.0, "10"), Bar("b", -5.0, "-5")]
    assert bars(groups, Canvas(21)) == ["a      ██████████▋ 10", "b █████ -5"]


def test_long_names_leave_room_for_bars() -> None:
    (line,) = bars([Bar("a" * 50, 1.0, "1")], Canvas(30))
    assert line == "a" * 11 + "… " + "█" * 15 + " 1"


@given(
    st.lists(st.tuples(st.text(max_size=30), st.none() | st.floats(), st.text(max_size=9))),
    st.integers(1, 100), st.booleans(), st.booleans(),
)  # fmt: skip
def test_no_line_is_wider_than_asked(
    groups: list[tuple[str, float | None, str]], width: int, unicode: bool, colour: bool
) -> None:
    canvas = Canvas(width, unicode=unicode, colour=colour)
    shown = bars([Bar(*group) for group in groups], canvas)
    assert len(shown) == len(groups)
    assert all(cell_width(ANSI.sub("", line)) <= width for line in shown)


@given(st.text(max_size=40), st.integers(0, 40), st.booleans())
def test_a_shortened_text_fits(text: str, width: int, unicode: bool) -> None:
    short = shortened(text, width, unicode=unicode)
    assert cell_width(short) <= width
    assert short == text or text.startswith(short[:-1])


def test_painted_pieces_end_at_the_edge() -> None:
    canvas = Canvas(7, colour=True)
    pieces = [Piece("abc", 0), Piece("defgh", 1), Piece("never")]
    assert painted(pieces, canvas) == "\x1b[36mabc\x1b[0m\x1b[33mdef…\x1b[0m"
    assert painted([Piece("ab"), Piece("   ")], canvas) == "ab"
