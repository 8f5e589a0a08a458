"""Who is asked to measure, and whose figures count for a profile."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.measuring import Answered, Measurable, by_profile, choose
from controller.domain.preflight import RUNS, TAKES, UNKNOWN, Answer, Verdict
from tests.unit.wire.test_measuring import GOOD
from wire.measuring import MeasuredVariant

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


def answered(
    name: str, *latencies_ms: float, at_s: float = 1.0, profile: str = "box", release: str = "r"
) -> Answered:
    return Answered(
        device=name,
        profile=profile,
        release=release,
        answered_at_s=at_s,
        variants=tuple(
            MeasuredVariant(
                name=f"v{n}", performance=msgspec.structs.replace(GOOD, latency_p50_ms=latency_ms)
            )
            for n, latency_ms in enumerate(latencies_ms)
        ),
    )


def chosen(*answers: Answered) -> list[tuple[str, int]]:
    return [(found.answered.device, found.devices) for found in by_profile(answers)]


def test_the_middle_device_stands_for_its_profile() -> None:
    assert chosen(answered("slow", 9.0), answered("mid", 5.0), answered("fast", 1.0)) == [
        ("mid", 3)
    ]


def test_of_two_devices_the_faster_one_counts() -> None:
    assert chosen(answered("slow", 9.0), answered("fast", 1.0)) == [("fast", 2)]


def test_of_two_devices_the_one_that_measured_more_variants_counts() -> None:
    assert chosen(answered("some", 1.0), answered("all", 9.0, 9.0)) == [("all", 2)]


def test_a_device_that_lies_does_not_decide_among_three() -> None:
    honest = answered("a", 5.0, 5.0), answered("b", 6.0, 6.0)
    for lie in (
        answered("liar", 0.1, 0.1),
        answered("liar", 900.0, 900.0),
        answered("liar", 0.1, 0.1, 0.1),
        answered("liar", 0.1),
    ):
        ((device, count),) = chosen(*honest, lie)
        assert device in {"a", "b"}
        assert count == 3


def test_of_one_device_the_newest_answer_counts() -> None:
    (found,) = by_profile([answered("a", 2.0, at_s=5.0), answered("a", 1.0, at_s=4.0)])
    assert found.answered.answered_at_s == 5.0


def test_profiles_and_releases_are_kept_apart() -> None:
    found = chosen(
        answered("a", 1.0), answered("b", 1.0, profile="y"), answered("a", 1.0, release="s")
    )
    assert sorted(found) == [("a", 1), ("a", 1), ("b", 1)]


def test_an_answer_without_figures_counts_for_nothing() -> None:
    none = msgspec.convert({"name": "v0", "reason": "too large"}, MeasuredVariant)
    assert not by_profile(
        [Answered(device="a", profile="x", release="r", answered_at_s=1.0, variants=(none,))]
    )
