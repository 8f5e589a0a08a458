from __future__ import annotations

import pytest

from wire.console.help_page import Entry, HelpPage, render

PAGE = HelpPage(
    usage="tool make [OPTIONS] FILE",
    text="Make a thing.\n\nIt is made of words that are long enough to need more than one line.",
    arguments=[Entry("FILE", "Where it goes.", ("required",))],
    options=[
        Entry("--size N", "How large it is, in units of the thing.", ("default: 3", "at least 1")),
        Entry("--an-option-with-a-long-name VALUE", "Does a lot."),
    ],
    examples=["tool make x", "tool make x --size 4"],
)
SHOWN = """\
Usage: tool make [OPTIONS] FILE

  Make a thing.

  It is made of words that are long enough to need
  more than one line.

Arguments:
  FILE  Where it goes. [required]

Options:
  --size N                    How large it is, in
                              units of the thing.
                              [default: 3]
                              [at least 1]
  --an-option-with-a-long-name VALUE
                              Does a lot.

Examples:
  tool make x
  tool make x --size 4
"""


def test_the_parts_stand_in_one_order() -> None:
    assert render(PAGE, 51) == SHOWN


@pytest.mark.parametrize("columns", [51, 80, 500])
def test_a_page_is_never_wider_than_the_terminal_or_80(columns: int) -> None:
    words = {word for line in render(PAGE, columns).splitlines() for word in line.split()}
    assert words == {word for line in SHOWN.splitlines() for word in line.split()}
    assert max(map(len, render(PAGE, columns).splitlines())) <= min(columns, 80)
