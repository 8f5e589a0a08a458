from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.paging import Sorts, by_number, by_text, part_of, read_page
from controller.errors import InvalidRequestError

Thing = tuple[str, float | None]
SORTS: Sorts[Thing] = Sorts(
    lambda t: t[0], {"name": by_text(lambda t: t[0]), "seen": by_number(lambda t: t[1])}
)
THINGS = st.dictionaries(
    st.text("abc", min_size=1, max_size=3), st.none() | st.integers(0, 3).map(float), max_size=12
).map(lambda things: list(things.items()))


@given(THINGS, THINGS, st.sampled_from(["name", "seen"]), st.booleans(), st.integers(1, 4))
def test_what_was_there_comes_once_and_in_order_whatever_is_added(
    things: list[Thing], added: list[Thing], sort: str, reverse: bool, limit: int
) -> None:
    before = {name for name, _ in things}
    new = [thing for thing in added if thing[0] not in before]
    page = read_page(SORTS, sort=sort, reverse=reverse, limit=limit, cursor="")
    first = part_of(things, page, SORTS)
    found, cursor = list(first.items), first.cursor
    while cursor:
        assert len(found) % limit == 0
        page = read_page(SORTS, sort=sort, reverse=reverse, limit=limit, cursor=cursor)
        part = part_of([*things, *new], page, SORTS)
        found += part.items
        cursor = part.cursor
    whole = replace(page, limit=100, after=None)
    assert [t for t in found if t[0] in before] == part_of(things, whole, SORTS).items
    assert len({name for name, _ in found}) == len(found)


def test_a_cursor_counts_for_its_own_order_alone() -> None:
    page = read_page(SORTS, sort="", reverse=False, limit=1, cursor="")
    cursor = part_of([("a", 1.0), ("b", 2.0)], page, SORTS).cursor
    assert read_page(SORTS, sort="name", reverse=False, limit=1, cursor=cursor).after
    for sort, reverse, text in (
        ("seen", False, cursor), ("name", True, cursor), ("name", False, cursor[:-2]),
        ("name", False, "x"), ("name", False, "\u00e9"), ("age", False, ""),
        ("name", False, "WzEsMl0"),
    ):  # fmt: skip
        with pytest.raises(InvalidRequestError) as caught:
            read_page(SORTS, sort=sort, reverse=reverse, limit=1, cursor=text)
        assert "\n" not in str(caught.value)
        assert caught.value.remedy


def test_a_cursor_with_a_number_that_no_database_has_is_refused() -> None:
    for number in (1e308, -1e19, float(2**63)):
        forged = urlsafe_b64encode(json.dumps(["seen", True, number, "a"]).encode()).decode()
        with pytest.raises(InvalidRequestError):
            read_page(SORTS, sort="seen", reverse=True, limit=1, cursor=forged)
