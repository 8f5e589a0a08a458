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


def test_cells_of_several_words_go_on_in_the_next_line() -> None:
    table = layout(COLUMNS, [ROW, ("gate", "new", "idle", "site=rome")], width=72)
    assert table.left_out == []
    assert table.lines[1:] == [
        "cam-berlin-entrance  enrolled  downloading  site=berlin floor=3",
        "                                            owner=kim",
        "gate                 new       idle         site=rome",
    ]


def test_names_stay_whole_and_the_least_important_columns_are_left_out() -> None:
    table = layout(COLUMNS, [ROW], width=60, minor=("PHASE",))
    assert table.left_out == ["PHASE"]
    assert table.lines[1] == "cam-berlin-entrance  enrolled  site=berlin floor=3 owner=kim"
    table = layout(COLUMNS, [ROW], width=30, minor=("PHASE",))
    assert table.left_out == ["PHASE", "LABELS"]
    assert table.lines[1] == "cam-berlin-entrance  enrolled"
    table = layout(COLUMNS, [ROW], width=14, minor=("PHASE",))
    assert table.left_out == ["STATE", "PHASE", "LABELS"]
    assert table.lines[1] == "cam-berlin-en\u2026"


@given(st.sets(st.text("ab", min_size=20, max_size=30), min_size=2, max_size=5))
def test_rows_with_different_names_look_different(names: set[str]) -> None:
    rows = [(name, "a word and another", "100", "200") for name in names]
    table = layout(("NAME", "WHY", "N", "M"), rows, width=60)
    assert names <= {line.split()[0] for line in table.lines[1:]}


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
    assert len(table.lines) > len(rows)


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


def test_characters_that_change_the_one_before_take_no_column() -> None:
    assert cell_width("e\u0301\u2764\ufe0f1\u20e3") == 3
