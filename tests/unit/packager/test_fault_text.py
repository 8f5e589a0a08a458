"""Exceptions of other people's code as one line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packager.fault_text import MAX_LENGTH, one_line, root_of, typed_line


@pytest.mark.parametrize(
    ("error", "plain", "typed"),
    [
        (ValueError("no such axis"), "no such axis", "ValueError: no such axis"),
        (ValueError("  two\n\tlines. "), "two lines", "ValueError: two lines."),
        (ValueError(""), "ValueError", "ValueError"),
        (SystemExit(3), "3", "SystemExit: 3"),
        (KeyError("box"), "'box'", "KeyError: 'box'"),
    ],
)
def test_an_error_as_a_fault_shows_it(error: BaseException, plain: str, typed: str) -> None:
    assert one_line(error) == plain
    assert typed_line(error) == typed


@given(st.text(max_size=2 * MAX_LENGTH))
def test_it_is_always_one_line_of_bounded_length(text: str) -> None:
    for line in (one_line(ValueError(text)), typed_line(ValueError(text))):
        assert line
        assert len(line.splitlines()) == 1
        assert len(line) <= MAX_LENGTH + len("ValueError: ")


def test_the_first_error_of_a_chain_is_found() -> None:
    first, second = ValueError("first"), RuntimeError("second")
    second.__cause__ = first
    assert root_of(second) is first
    assert root_of(first) is first
