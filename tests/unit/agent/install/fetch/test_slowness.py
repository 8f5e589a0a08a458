"""Who is too slow, what is chosen then, and how far a liar gets."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.install.fetch.slowness import BELIEVED, FORGET_S, Slowness, Watch

WINDOW_S, LEAST = 10.0, 1000.0
NAMES = ("peer", "http", "mqtt")
WAITS = st.lists(st.floats(0.01, 5), min_size=1, max_size=300)


@given(waits=WAITS, over=st.integers(0, 1000))
def test_who_brings_enough_in_every_wait_is_never_slow(waits: list[float], over: int) -> None:
    watch = Watch(WINDOW_S, LEAST)
    for wait_s in waits:
        assert watch.waited(wait_s) is None
        assert watch.came(int(wait_s * LEAST) + 1 + over) is None


@given(waits=WAITS)
def test_who_brings_less_in_every_wait_is_found_within_two_windows(waits: list[float]) -> None:
    watch, waited_s = Watch(WINDOW_S, LEAST), 0.0
    for wait_s in waits:
        waited_s += wait_s
        found = watch.waited(wait_s)
        if found is None:
            found = watch.came(int(wait_s * LEAST * 0.9))
        if found is not None:
            assert 0 <= found < LEAST
            return
    assert waited_s < 2 * WINDOW_S + 5


@given(waits=WAITS)
def test_silence_is_found_when_nobody_can_say_any_more_why(waits: list[float]) -> None:
    watch, waited_s, patience_s = Watch(WINDOW_S, LEAST), 0.0, 40.0
    for wait_s in waits:
        waited_s += wait_s
        found = watch.waited(wait_s, patience_s)
        assert (found is not None) == (waited_s >= patience_s)
        if found is not None:
            assert found == 0
            return


@given(waits=WAITS, share=st.floats(0, BELIEVED))
def test_waiting_for_a_turn_at_the_controller_is_no_slowness(
    waits: list[float], share: float
) -> None:
    watch = Watch(WINDOW_S, LEAST)
    for wait_s in waits:
        assert watch.waited(wait_s, 900.0) is None
        own_s = wait_s * (1 - share)
        assert watch.came(int(own_s * LEAST * 1.001) + 1, wait_s * share) is None


@pytest.mark.parametrize("said_s", [1e9, math.inf, math.nan, -math.inf])
@given(waits=st.lists(st.floats(0.5, 5), min_size=1, max_size=20))
def test_by_lying_nobody_is_slower_than_a_tenth_for_long(said_s: float, waits: list[float]) -> None:
    watch = Watch(WINDOW_S, LEAST)
    for wait_s in itertools.islice(itertools.cycle(waits), 1000):
        found = watch.waited(wait_s, 900.0)
        if found is None:
            found = watch.came(int(wait_s * LEAST * 0.09), said_s=said_s)
        if found is not None:
            return
    raise AssertionError("it was never found")


@given(waits=WAITS, said_s=st.floats(allow_nan=False))
def test_without_a_bound_nobody_is_slow(waits: list[float], said_s: float) -> None:
    watch = Watch(WINDOW_S, 0.0)
    for wait_s in waits:
        assert watch.waited(wait_s) is None
        assert watch.came(0, said_s) is None


RATES = st.dictionaries(st.sampled_from(NAMES), st.floats(0, LEAST))


@given(rates=RATES)
def test_what_is_not_known_to_be_slow_is_chosen_in_the_order_of_the_settings(
    rates: dict[str, float],
) -> None:
    slowness = Slowness()
    for name, rate in rates.items():
        slowness.found(name, rate, 0.0)
    chosen = slowness.choice(NAMES, 1.0)
    fresh = [name for name in NAMES if name not in rates]
    assert chosen is not None
    if fresh:
        assert chosen == fresh[0]
    else:
        assert rates[chosen] == max(rates.values())
    assert slowness.choice(NAMES, FORGET_S) == NAMES[0], "after some time all are new"
    assert slowness.choice((), 1.0) is None


@given(rates=st.fixed_dictionaries({name: st.floats(0, LEAST) for name in NAMES}))
def test_if_all_are_slow_the_fastest_is_kept_and_nothing_goes_round_in_circles(
    rates: dict[str, float],
) -> None:
    slowness, now_s, chosen = Slowness(), 0.0, ""
    for _ in NAMES:
        now_s += WINDOW_S
        chosen = slowness.choice(NAMES, now_s) or ""
        slowness.found(chosen, rates[chosen], now_s)
    assert rates[slowness.choice(NAMES, now_s) or ""] == max(rates.values())
