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
        "busy": False, "verdict": TAKES,
    }  # fmt: skip
    return Measurable(**known | changes)


def test_a_lent_device_that_can_take_the_release_is_asked() -> None:
    found = choose([device("a"), device("b", verdict=RUNS)], 10)
    assert found.devices == ("a", "b")
    assert not found.others


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"lent": False}, "fleet device lend a"),
        ({"online": False}, "offline"),
        ({"busy": True}, "not answered"),
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
    assert reason in found.others["a"]


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
