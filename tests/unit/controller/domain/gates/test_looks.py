"""However many looks there are, what they may err together is bounded."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.gates.looks import (
    ERROR,
    GROWTH,
    LEAST_S,
    is_end,
    level,
    next_look_s,
    share,
)


def test_the_shares_of_all_looks_add_up_to_1() -> None:
    assert sum(share(look) for look in range(1, 100_000)) == pytest.approx(1.0, abs=1e-4)
    assert sum(share(look) for look in range(1, 100_000)) <= 1.0


@given(st.integers(min_value=1, max_value=20))
def test_gates_share_what_is_allowed(gates: int) -> None:
    assert sum(gates * level(look, gates) for look in range(1, 1000)) <= ERROR


@given(
    st.floats(min_value=0.0, max_value=1e6),
    st.floats(min_value=0.0, max_value=1e6),
)
def test_looks_come_ever_more_seldom_and_one_at_the_end_of_the_soak(
    since_s: float, soak_s: float
) -> None:
    looks: list[float] = []
    while len(looks) < 40:
        looks.append(next_look_s(since_s, looks[-1] if looks else None, soak_s))
    assert looks[0] >= since_s + min(LEAST_S, max(soak_s, LEAST_S))
    assert looks == sorted(set(looks))
    end_s = since_s + max(soak_s, LEAST_S)
    assert any(look == pytest.approx(end_s) for look in looks) or looks[-1] < end_s
    later = [look - since_s for look in looks if look > since_s + soak_s + LEAST_S]
    assert all(b >= a * GROWTH * 0.99 or b - a >= LEAST_S * 0.99 for a, b in pairwise(later))


def test_a_look_of_an_earlier_stage_does_not_count() -> None:
    assert next_look_s(1000.0, 900.0, 400.0) == 1100.0
    assert next_look_s(1000.0, 1100.0, 400.0) == 1160.0


@given(
    st.integers(min_value=1, max_value=20),
    st.lists(st.booleans(), min_size=1, max_size=200),
    st.integers(min_value=1, max_value=30),
)
def test_looks_at_ends_take_their_part_and_all_together_no_more_than_is_allowed(
    gates: int, are_ends: list[bool], stages: int
) -> None:
    left, spent = stages, 0.0
    for look, is_last in enumerate(are_ends, start=1):
        at_end = is_last and left > 0
        left -= at_end
        one = level(look, gates, ends=stages if at_end else 0)
        assert not at_end or one > ERROR / 2 / stages / gates
        spent += gates * one
    assert spent <= ERROR * (1.0 + 1e-9)


@pytest.mark.parametrize(
    ("now_s", "since_s", "last_s", "expected"),
    [
        (400.0, None, None, False),
        (399.0, 0.0, 300.0, False),
        (400.0, 0.0, 300.0, True),
        (950.0, 0.0, 300.0, True),
        (950.0, 0.0, 400.0, False),
        (950.0, 500.0, 400.0, True),
        (950.0, 0.0, None, True),
    ],
)
def test_one_look_of_a_soak_is_the_one_at_its_end(
    now_s: float, since_s: float | None, last_s: float | None, expected: bool
) -> None:
    assert is_end(now_s, since_s, last_s, 400.0) is expected


@given(st.floats(min_value=0.0, max_value=1e6), st.floats(min_value=0.0, max_value=1e6))
def test_each_soak_has_one_end(since_s: float, soak_s: float) -> None:
    ends, last_s = 0, None
    for _ in range(40):
        now_s = next_look_s(since_s, last_s, soak_s)
        ends += is_end(now_s, since_s, last_s, soak_s)
        last_s = now_s
    assert ends == 1 or (ends == 0 and last_s is not None and last_s < since_s + soak_s)
