"""A place in an expression, shown below it."""

from __future__ import annotations

import pytest

from wire.console.place import SHOWN_CHARS, place_lines

LONG = "".join(f"a{n:03}," for n in range(100))


@pytest.mark.parametrize(
    ("text", "character", "lines"),
    [
        ("a b", 3, ("  a b", "    ^")),
        ("a", 2, ("  a", "   ^")),
        ("a\n\x1b[1mb", 7, ("  a  [1mb", "        ^")),
        ("名=x y", 5, ("  名=x y", "       ^")),
        ("a", 0, ()),
    ],
)
def test_the_caret_is_below(text: str, character: int, lines: tuple[str, ...]) -> None:
    assert place_lines(text, character) == lines


@pytest.mark.parametrize("character", [1, 40, 250, len(LONG), len(LONG) + 1])
def test_of_a_long_one_a_part_is_shown(character: int) -> None:
    shown, caret = place_lines(LONG, character)
    assert len(shown) <= SHOWN_CHARS + 8
    assert f"{shown} "[len(caret) - 1] == f"{LONG} "[character - 1]
