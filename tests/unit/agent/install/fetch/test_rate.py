"""Who sends too slowly."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.install.fetch.rate import STEPS, Rate

LEAST = 1000.0


def test_who_is_slow_for_less_than_the_window_goes_on() -> None:
    rate = Rate(60, LEAST)
    assert all(rate.add(1.0, 1) for _ in range(59))


def test_who_was_fast_before_is_found_slow_after_a_window() -> None:
    rate = Rate(60, LEAST)
    assert rate.add(1.0, 10**9)
    slow_s = 0
    while rate.add(1.0, 28):  # a chunk of it now and then is no progress
        slow_s += 1
    assert 60 - 2 <= slow_s <= 60 * (1 + 2 / STEPS) + 2


def test_what_comes_without_waiting_is_never_slow() -> None:
    rate = Rate(60, LEAST)
    assert all(rate.add(0.0, 1) for _ in range(1000))


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 100)), max_size=300))
def test_who_sends_fast_enough_in_every_wait_is_never_given_up(
    waits: list[tuple[float, int]],
) -> None:
    rate = Rate(10, LEAST)
    assert all(rate.add(wait_s, int(wait_s * LEAST) + 1 + over) for wait_s, over in waits)


@given(st.lists(st.floats(0.01, 5), min_size=1, max_size=300))
def test_who_sends_less_in_every_wait_is_given_up_within_two_windows(waits: list[float]) -> None:
    rate, waited_s = Rate(10, LEAST), 0.0
    for wait_s in waits:
        if not rate.add(wait_s, int(wait_s * LEAST * 0.9)):
            return
        waited_s += wait_s
    assert waited_s < 20
