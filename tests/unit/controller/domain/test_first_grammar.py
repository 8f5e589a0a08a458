"""Selectors that the first version could read mean the same: it is here as it was."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.domain.attributes import DeviceValues
from controller.domain.selectors import parse_selector

_NAME: Final = r"[A-Za-z0-9._:/-]+"
_TERM: Final = re.compile(
    rf"""\s*(?:
      (?P<absent>!)\s*(?P<absent_key>{_NAME})
    | (?P<key>{_NAME})\s*(?:
        (?P<op>==|=|!=)\s*(?P<value>{_NAME})
      | (?P<set>in|not\s+in|notin)\s*\((?P<values>[^()]*)\)
      )?
    )\s*(?:,|$)""",
    re.VERBOSE,
)
WORDS: Final = ("a", "b", "not", "in", "notin", "and", "or", "x-1", "a.b/c", "A", "1", "id", "a:b")


def first_matches(text: str, values: Mapping[str, str]) -> bool:
    position = 0
    while position < len(text):
        term = _TERM.match(text, position)
        assert term is not None, text
        position = term.end()
        if not _holds(term, values):
            return False
    return True


def _holds(term: re.Match[str], values: Mapping[str, str]) -> bool:
    if term["absent"]:
        return term["absent_key"] not in values
    known = values.get(term["key"])
    if term["op"]:
        return (known == term["value"]) is (term["op"] != "!=")
    if term["set"]:
        among = known in {value.strip() for value in term["values"].split(",")}
        return among is (term["set"] == "in")
    return known is not None


word = st.sampled_from(WORDS)
space = st.sampled_from(("", " ", "  "))
equals = st.sampled_from(("=", "==", "!="))
among = st.sampled_from(("in", "not in", "notin", "not \t in"))
terms = st.one_of(
    word,
    st.builds("!{}{}".format, space, word),
    st.builds("{}{}{}{}{}".format, word, space, equals, space, word),
    st.builds("{} {}{}({})".format, word, among, space, word),
    st.builds("{} {}({}{},{}{})".format, word, among, space, word, space, word),
)
texts = st.lists(terms, min_size=1, max_size=3).map(" ,".join)
labels = st.dictionaries(st.sampled_from(sorted({*WORDS} - {"id"})), word)


@settings(max_examples=100)
@given(texts, labels, word)
def test_they_mean_the_same(text: str, labels: dict[str, str], name: str) -> None:
    device = DeviceValues(labels=labels, attributes={"id": name})
    assert parse_selector(text).matches(device) is first_matches(text, {**labels, "id": name})
