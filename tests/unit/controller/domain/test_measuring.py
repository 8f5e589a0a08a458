"""Who is asked to measure."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.measuring import Measurable, choose
from controller.domain.preflight import RUNS, TAKES, UNKNOWN, Answer, Verdict

REFUSES = Verdict(answer=Answer.REFUSES, reason="no variant fits")


def device(name: str, profile: str = "box", **changes: Any) -> Measurable:
    known: dict[str, Any] = {
        "device": name, "profile": profile, "state": "enrolled", "lent": True, "online": True,
        "busy": "", "verdict": TAKES,
    }  # fmt: skip
    return Measurable(**known | changes)


def test_a_lent_device_that_can_take_the_release_is_asked() -> None:
    found = choose([device("a"), device("b", verdict=RUNS)], 10)
    assert found.devices == ("a", "b")
    assert not found.others


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"lent": False}, "not lent"),
        ({"online": False}, "offline"),
        ({"busy": "m1"}, "measurement m1 on it is not answered"),
        ({"state": "quarantined"}, "quarantined"),
        ({"verdict": REFUSES}, "no variant fits"),
        ({"verdict": UNKNOWN}, "enrolled"),
    ],
)
def test_any_other_device_is_not_asked_and_the_reason_says_why(
    changes: dict[str, Any], reason: str
) -> None:
    found = choose([device("a", **changes)], 10)
    assert found.devices == ()
    assert reason in found.reasons["a"]
    assert found.why_none.reason == f"a: {found.reasons['a']}"


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"lent": False}, "lend it: fleet device lend a"),
        ({"online": False}, "try again when it is online"),
        ({"busy": "m1"}, "fleet measure cancel m1"),
        ({"state": "quarantined"}, "choose devices that are enrolled"),
        ({"verdict": REFUSES}, "choose devices that can take the release"),
    ],
)
def test_where_nobody_is_asked_the_remedy_is_that_of_what_is_wrong(
    changes: dict[str, Any], remedy: str
) -> None:
    assert remedy in choose([device("a", **changes)], 10).why_none.remedy


def test_a_selector_that_names_nobody_is_told_as_that() -> None:
    why = choose([], 10).why_none
    assert why.reason == "the selector names none"
    assert "fleet device list" in why.remedy


def test_many_devices_that_are_not_asked_are_told_in_a_few_reasons() -> None:
    many = [device(f"a{n}", lent=False) for n in range(50)] + [device("b", online=False)]
    why = choose(many, 10).why_none
    assert why.reason == "a0: it is not lent; b: it is offline"
    assert why.remedy == "lend it: fleet device lend a0; try again when it is online"


def test_profiles_take_turns_if_not_all_can_be_asked() -> None:
    many = [device(f"a{n}", "one") for n in range(5)] + [device("b0", "two")]
    found = choose(many, 2)
    assert found.devices == ("a0", "b0")
    assert set(found.others) == {"a1", "a2", "a3", "a4"}


@given(
    st.lists(st.tuples(st.sampled_from("xyz"), st.booleans(), st.booleans()), max_size=20),
    st.integers(1, 10),
)
def test_everybody_is_asked_or_told_why_not(kinds: list[tuple[str, bool, bool]], most: int) -> None:
    devices = [
        device(f"d{n}", profile, lent=lent, online=online)
        for n, (profile, lent, online) in enumerate(kinds)
    ]
    found = choose(devices, most)
    able = sum(d.lent and d.online for d in devices)
    assert len(found.devices) == min(able, most)
    assert sorted((*found.devices, *found.others)) == sorted(d.device for d in devices)
    assert all(d.lent for d in devices if d.device in found.devices)
