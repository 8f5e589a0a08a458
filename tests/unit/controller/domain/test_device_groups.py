"""What groups mean, and what they cannot mean."""

from __future__ import annotations

import pytest

from controller.domain.device_groups import (
    MAX_GROUP_TERMS,
    MAX_GROUPS,
    check_group,
    check_steady,
    meaning,
    users,
)
from controller.domain.selector_tree import text_of
from controller.domain.selectors import parse_selector
from controller.errors import ConflictError, InvalidRequestError, SelectorError

GROUPS = {
    "cameras": "profile=rpi* or profile=jetson",
    "berlin": "site=berlin",
    "both": "group:cameras and group:berlin",
    "away": "group:both and online=false",
}


def test_a_group_stands_for_what_it_means_now() -> None:
    found = meaning(parse_selector("not group:both, a"), GROUPS).tree
    assert found is not None
    assert text_of(found) == "not ((profile=rpi* or profile=jetson) and site=berlin) and a"


def test_users_are_found_through_others() -> None:
    assert users("cameras", GROUPS) == {"both", "away"}
    assert users("away", GROUPS) == frozenset()


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("cameras", "group:cameras", "a group cannot mean itself: cameras > cameras"),
        ("cameras", "a or group:away", "cannot mean itself: cameras > away > both > cameras"),
        ("new", "a and group:berlim", "at character 7: there is no group 'berlim'; did you mean"),
        ("new", " ", "a group needs an expression"),
        ("new", "a=", "a value is missing"),
        ("new", " or ".join(["group:both"] * 30), f"at most {MAX_GROUP_TERMS} are possible"),
        ("cameras", " or ".join(f"a{n}" for n in range(32)), ""),
    ],
)
def test_what_a_group_cannot_be(name: str, text: str, fault: str) -> None:
    if not fault:
        check_group(name, text, GROUPS)
        return
    with pytest.raises(InvalidRequestError, match=fault.replace("(", "\\(")):
        check_group(name, text, GROUPS)


def test_a_change_may_not_make_another_group_too_large() -> None:
    many = " or ".join(f"a{n}" for n in range(32))
    twice = {**GROUPS, "all": "group:berlin or group:cameras or group:both"}
    check_group("berlin", "x or y", twice)
    with pytest.raises(InvalidRequestError, match="group all would have"):
        check_group("berlin", many, twice)


def test_there_are_not_too_many() -> None:
    full = {f"g{n}": "a" for n in range(MAX_GROUPS)}
    check_group("g0", "b", full)
    with pytest.raises(ConflictError):
        check_group("more", "b", full)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("site=berlin and cpu_count>2 and group:both", ""),
        ("label:online=true", ""),
        ("a or !online", "at character 7: online changes while a device works"),
        ("silent_s>1h", "character 1: silent_s"),
        ("x,model.digits=1", "character 3: model.digits"),
        ("x,group:away", "character 3: group away asks for online: online changes"),
    ],
)
def test_a_policy_asks_for_what_is_steady(text: str, fault: str) -> None:
    if not fault:
        check_steady(parse_selector(text), GROUPS, "a policy")
        return
    with pytest.raises(SelectorError, match=fault):
        check_steady(parse_selector(text), GROUPS, "a policy")
