from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.console.table import cell_width, field_lines, hanging, layout, wrap

COLUMNS = ("DEVICE", "STATE", "PHASE", "LABELS")
ROW = ("cam-berlin-entrance", "enrolled", "downloading", "site=berlin floor=3 owner=kim")


def test_without_a_width_everything_is_whole() -> None:
    table = layout(COLUMNS, [ROW])
    assert table.lines[1] == "  ".join(ROW)
    assert table.left_out == []


def test_empty_table_has_its_heading() -> None:
    assert layout(("A", "B"), []).lines == ["A  B"]


def test_the_widest_cells_are_shortened_first() -> None:
    table = layout(COLUMNS, [ROW], width=60)
    assert table.left_out == []
    assert (
        table.lines[1] == "cam-berlin-entra\u2026  enrolled  downloading  site=berlin floor\u2026"
    )


def test_then_the_least_important_columns_are_left_out() -> None:
    table = layout(COLUMNS, [ROW], width=45, minor=("PHASE",))
    assert table.left_out == ["PHASE"]
    assert table.lines[0].split() == ["DEVICE", "STATE", "LABELS"]
    table = layout(COLUMNS, [ROW], width=14, minor=("PHASE",))
    assert table.left_out == ["STATE", "PHASE", "LABELS"]


def test_numbers_stand_to_the_right() -> None:
    assert layout(("A", "N"), [("x", "1"), ("y", "100")], right=("N",)).lines == [
        "A    N", "x    1", "y  100",
    ]  # fmt: skip


@given(
    st.lists(st.lists(st.text("ab \u4e2d\u0301", max_size=30), min_size=3, max_size=3), max_size=4),
    st.integers(14, 100),
)
def test_no_line_is_wider_than_the_terminal(rows: list[list[str]], width: int) -> None:
    table = layout(("ONE", "TWO", "THREE"), rows, width=width)
    assert all(cell_width(line) <= width for line in table.lines)
    assert len(table.lines) == len(rows) + 1


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("one two three", ["one two", "three"]),
        ("a-very-long-word here", ["a-very-long-word", "here"]),
        ("", [""]),
    ],
)
def test_words_are_never_broken(text: str, lines: list[str]) -> None:
    assert wrap(text, 8) == lines
    assert wrap(text, None) == [text]


def test_fields_go_on_below_their_value() -> None:
    lines = field_lines([("a", "one two three"), ("long", "x")], width=14)
    assert lines == ["a     one two", "      three", "long  x"]


def test_a_sentence_goes_on_with_an_indent() -> None:
    assert hanging("  one two three", 12) == ["  one", "      two", "      three"]
    assert hanging("  one two three", None) == ["  one two three"]
