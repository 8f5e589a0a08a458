"""Where reading a selector ends, and what is said there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.selector_parser import MAX_NESTING, MAX_TERMS, parse_tree
from controller.errors import SelectorError


@pytest.mark.parametrize(
    ("text", "caret", "what"),
    [
        ("site=berlin and", "               ^", "a condition is missing after 'and'"),
        ("site=berlin,", "            ^", "a condition is missing after ','"),
        ("a or (b and c", "             ^", "the parenthesis of character 6 is open"),
        ("(a b)", "   ^", "goes on with 'b'"),
        ("a)", " ^", "no parenthesis is open here"),
        ("a b", "  ^", "'b' follows a whole condition"),
        ("a && b", "  ^", "write `and` or a comma"),
        ("a || b", "  ^", "write `or`"),
        ("site='berlin'", "     ^", "without quotes"),
        ("=a", "^", "'=' stands where a condition begins"),
        ("a,,b", "  ^", "',' stands where a condition begins"),
        ("a=", "  ^", "a value is missing"),
        ("a==", "   ^", "a value is missing"),
        ("a=(b)", "  ^", "'(' is no value"),
        ("a in x", "     ^", "'x' is no set"),
        ("a in", "    ^", "a set is missing"),
        ("a in ()", "      ^", "')' is no value"),
        ("a in (b,)", "        ^", "')' is no value"),
        ("a in (b", "       ^", "the set has no end"),
        ("a in (b c)", "        ^", "'c' in a set"),
        ("si*te=1", "  ^", "a key cannot have '*'"),
        ("a=b*c*d*e*f*g*h*i*j*k", "  ^", "at most 8 of *"),
        ("x and group:", "      ^", "'group:' names no group"),
        ("label:", "^", "a label has no name here"),
        ("temperature_c>60", "^", "temperature_c is no number and no version"),
        ("agent_versio<1", "^", "did you mean agent_version?"),
        ("cpu_count=many", "          ^", "'many' is no number"),
        ("memory_bytes>=2GiX", "              ^", "such as 2GiB"),
        ("memory_bytes=2*", "             ^", "which has no wildcards"),
        ("silent_s>1y", "         ^", "seconds, or a time such as 90s"),
        ("agent_version<latest", "              ^", "'latest' is no version"),
        ("a\nand\tb and ü", "            ^", "'ü' has no meaning"),
        ("(" * 12 + "a", "          ^", f"more than {MAX_NESTING}"),
        ("not " * 12 + "a", " " * 40 + "^", f"more than {MAX_NESTING}"),
        (" ".join(["a", *["and b"] * MAX_TERMS]), None, f"at most {MAX_TERMS} conditions"),
    ],
)
def test_a_fault_names_the_character(text: str, caret: str | None, what: str) -> None:
    with pytest.raises(SelectorError) as caught:
        parse_tree(text)
    assert what in str(caught.value)
    assert "\n" not in str(caught.value)
    assert f"at character {caught.value.character}: " in str(caught.value)
    shown, below = caught.value.shown
    if caret is not None:
        assert (shown, below) == ("  " + text.replace("\n", " ").replace("\t", " "), "  " + caret)


def test_what_is_too_long_has_no_place() -> None:
    with pytest.raises(SelectorError) as caught:
        parse_tree("a" * 1025)
    assert caught.value.shown == ()


@given(st.lists(st.sampled_from([*"a=!<>(),*", "and", "or", "not", "in", "group:x", "1.2", " "])))
def test_any_tokens_are_read_or_refused_with_a_place(tokens: list[str]) -> None:
    text = " ".join(tokens)
    places = []
    try:
        parse_tree(text)
    except SelectorError as exc:
        places.append(exc.character)
    assert all(1 <= place <= len(text) + 1 for place in places)
