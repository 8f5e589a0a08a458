"""Requests to enrol without a token: so many at once, so many a second, and one line in the log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controller.services.enrol_rate import BURST, LOG_EVERY_S, PER_S, EnrolRate


@given(gaps_s=st.lists(st.floats(0, 30), max_size=50), asks=st.integers(1, 700))
def test_no_more_than_the_burst_and_the_rate_come_through(gaps_s: list[float], asks: int) -> None:
    rate, now_s, granted = EnrolRate(0.0), 0.0, 0
    for gap_s in [0.0, *gaps_s]:
        now_s += gap_s
        granted += sum(rate.take(now_s) for _ in range(asks))
        assert granted <= BURST + now_s * PER_S + 1e-6


def test_who_asks_no_faster_than_the_rate_always_has_a_turn() -> None:
    rate = EnrolRate(0.0)
    assert all(rate.take(number / PER_S) for number in range(2000))


def test_what_is_dropped_is_told_once_in_a_while() -> None:
    rate = EnrolRate(0.0)
    told = [second for second in range(3 * int(LOG_EVERY_S)) if rate.is_to_be_told(float(second))]
    assert told == [0, LOG_EVERY_S, 2 * LOG_EVERY_S]
