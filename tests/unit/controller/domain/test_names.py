"""A name that is not known: the line says which there are, those near to it first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controller.domain.names import MAX_NAMED, which_there_are

words = st.text(st.characters(codec="ascii", categories=("Ll", "Nd")), min_size=1, max_size=12)


def said(name: str, *known: str) -> str:
    return which_there_are(name, known, what="models", none="publish one")


def test_a_near_name_comes_first() -> None:
    assert said("digts", "faces", "digits") == (
        "did you mean digits? there are the models digits and faces"
    )


def test_without_a_near_name_all_are_named() -> None:
    assert said("x", "digits") == "there are the models digits"
    assert said("x") == "publish one"


@given(words, st.lists(words, unique=True, min_size=1, max_size=30))
def test_a_line_names_few_and_counts_the_others(name: str, known: list[str]) -> None:
    line = said(name, *known).rpartition("there are the models ")[2]
    more = len(known) - MAX_NAMED
    assert line.endswith(f"and {more} more") == (more > 0)
    shown = line.removesuffix(f" and {more} more").replace(" and ", ", ").split(", ")
    assert len(shown) == min(len(known), MAX_NAMED)
    assert set(shown) <= set(known)
