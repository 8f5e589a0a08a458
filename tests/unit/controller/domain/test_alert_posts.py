"""What is posted to webhooks, how groups are written, and when a post is tried again."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from controller.domain.alert_groups import MAX_GROUP_CHARS, group_text, is_named
from controller.domain.alert_posts import (
    DELIVERY_HEADER,
    FIRST_WAIT_S,
    ID_CHARS,
    LONGEST_WAIT_S,
    MAX_TRIES,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    Notice,
    body,
    group_key,
    signature,
    wait_s,
)

PAGE = Path(__file__).parents[4] / "docs" / "alert-receivers.md"
SECRET = "0123456789abcdef"
HOT = Notice(
    id="1c9e0b7a5d3f2e4c",
    rule="hot", kind="threshold", severity="critical", summary="a board is near its limit",
    group="device=cam-1", labels={"device": "cam-1"}, state="firing", value=91.2, above=85.0,
    below=None, fired_at_s=1_750_000_000.0, at_s=1_750_000_000.0,
)  # fmt: skip
LABELS = st.dictionaries(st.sampled_from(["a", "b"]), st.text(st.characters(codec="utf-8")))


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_page_shows_what_is_posted() -> None:
    shown, _of_rollouts = (json.loads(block) for block in blocks("json"))
    posted = json.loads(body(shown["id"], "pager", [HOT], now_s=1_750_000_000.0))
    assert posted == shown
    for header in (DELIVERY_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER):
        assert f"\n    {header}: " in PAGE.read_text()


def test_a_receiver_that_follows_the_page_believes_us_and_nobody_else() -> None:
    (program,) = blocks("python")
    names: dict[str, Any] = {}
    exec(program, names)  # noqa: S102 - our own page
    content = body("1", "pager", [HOT], now_s=5.0).encode()
    headers = {
        TIMESTAMP_HEADER: "1750000000",
        SIGNATURE_HEADER: signature(SECRET.encode(), "1750000000", content),
    }
    genuine = names["is_genuine"]
    assert genuine(SECRET, headers, content, 1_750_000_010.0)
    assert not genuine("another secret", headers, content, 1_750_000_010.0)
    assert not genuine(SECRET, headers, content + b" ", 1_750_000_010.0)
    assert not genuine(SECRET, headers, content, 1_750_000_400.0)
    moved = headers | {TIMESTAMP_HEADER: "1750000300"}
    assert not genuine(SECRET, moved, content, 1_750_000_310.0)


def test_a_group_of_a_rule_has_a_key_of_its_own() -> None:
    keys = {group_key(*named) for named in (("hot", "a"), ("hot", "b"), ("hota", ""), ("hot", ""))}
    assert len(keys) == 4
    assert {len(key) for key in keys} == {ID_CHARS}


@given(st.integers(1, MAX_TRIES), st.floats(0, 1))
def test_waits_grow_are_bounded_and_differ_by_chance(tries: int, chance: float) -> None:
    middle_s = wait_s(tries, 0.5)
    assert FIRST_WAIT_S <= middle_s <= LONGEST_WAIT_S
    assert middle_s <= wait_s(tries + 1, 0.5)
    assert 0.8 * middle_s - 1e-9 <= wait_s(tries, chance) <= 1.2 * middle_s + 1e-9


def test_a_post_is_tried_for_about_a_day() -> None:
    assert 20 <= sum(wait_s(tries, 0.5) for tries in range(1, MAX_TRIES)) / 3600 <= 30


@given(LABELS, LABELS)
def test_different_groups_have_different_texts(one: dict[str, str], other: dict[str, str]) -> None:
    texts = group_text(one), group_text(other)
    assert (texts[0] == texts[1]) is (list(one.items()) == list(other.items()))
    assert max(map(len, texts)) <= MAX_GROUP_CHARS


def test_groups_are_written_for_people() -> None:
    assert group_text({"device": "cam-1", "site": "berlin"}) == "device=cam-1,site=berlin"
    assert group_text({"a": "x,b=y", "b": "z"}) != group_text({"a": "x", "b": "y,b=z"})
    long = group_text({"a": "x" * 600})
    assert len(long) == MAX_GROUP_CHARS
    assert long != group_text({"a": "x" * 601})


def test_a_group_is_named_by_its_text_or_by_its_only_value() -> None:
    assert is_named("device=cam-1", "device=cam-1", {"device": "cam-1"})
    assert is_named("cam-1", "device=cam-1", {"device": "cam-1"})
    two = {"device": "cam-1", "site": "berlin"}
    assert not is_named("cam-1", group_text(two), two)
