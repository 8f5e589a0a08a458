"""Label expressions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.selectors import MAX_LABELS, Selector, Term, checked_labels, parse_selector
from controller.errors import InvalidRequestError, SelectorError

DEVICE = {"id": "cam-1", "profile": "rpi4", "arch": "aarch64", "site": "berlin", "canary": "yes"}


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("", True),
        ("   ", True),
        ("site=berlin", True),
        ("site==berlin", True),
        ("site = berlin , profile = rpi4", True),
        ("site=berlin,profile!=rpi4", False),
        ("site!=paris", True),
        ("rack!=7", True),
        ("arch in (x86_64, aarch64)", True),
        ("arch in (x86_64)", False),
        ("arch not in (x86_64,riscv64)", True),
        ("arch notin (aarch64)", False),
        ("canary", True),
        ("rack", False),
        ("!rack", True),
        ("! canary", False),
        ("id=cam-1", True),
        ("id in (cam-2,cam-3)", False),
    ],
)
def test_what_an_expression_means(text: str, meant: bool) -> None:
    assert parse_selector(text).matches(DEVICE) is meant


@pytest.mark.parametrize(
    "text",
    [
        "site=",
        "=berlin",
        "site=berlin,",
        ",site=berlin",
        "site=berlin,,canary",
        "site=berlin profile=rpi4",
        "arch in x86_64",
        "arch in ()",
        "arch in (a,)",
        "arch in (a",
        "site==",
        "a && b",
        "site='berlin'",
        "x" * 2000,
        ",".join(f"a{n}" for n in range(40)),
    ],
)
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(SelectorError) as caught:
        parse_selector(text)
    assert "\n" not in str(caught.value)


def test_terms() -> None:
    assert parse_selector("a in (x,y),!b") == Selector(
        terms=(
            Term(key="a", operator="in", values=("x", "y")),
            Term(key="b", operator="absent"),
        )
    )


@given(st.text(max_size=60))
def test_any_text_is_understood_or_refused(text: str) -> None:
    try:
        selector = parse_selector(text)
    except SelectorError:
        return
    assert isinstance(selector.matches(DEVICE), bool)


@given(st.text(alphabet="abAB01._-:/", min_size=1, max_size=20))
def test_every_label_can_be_selected(value: str) -> None:
    labels = checked_labels({"key": value})
    assert parse_selector(f"key={value}").matches(labels)
    assert not parse_selector(f"key!={value}").matches(labels)


@pytest.mark.parametrize(
    "labels",
    [
        {"id": "x"},
        {"profile": "x"},
        {"Key": "x"},
        {"": "x"},
        {"a b": "x"},
        {"a": ""},
        {"a": "x y"},
        {"a": "x,y"},
        {"a": "x" * 129},
        {f"k{n}": "x" for n in range(MAX_LABELS + 1)},
    ],
)
def test_labels_that_no_selector_can_name_are_refused(labels: dict[str, str]) -> None:
    with pytest.raises(InvalidRequestError):
        checked_labels(labels)
