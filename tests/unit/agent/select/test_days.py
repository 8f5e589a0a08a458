"""What is usual at a time of day is learnt, and what was never seen stays unknown."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.select.days import BINS, DayPattern
from wire.durations import DAY_S, HOUR_S


def sunny(days: int, *, peak: float = 10.0) -> DayPattern:
    """See a panel that gives the same every day, minute by minute."""
    pattern = DayPattern()
    for minute in range(days * 24 * 60):
        at_s = (minute + 1) * 60.0 % DAY_S
        pattern = pattern.update(at_s, sun(at_s, peak), 60.0)
    return pattern


def sun(at_s: float, peak: float) -> float:
    return peak * max(math.sin(math.pi * (at_s / HOUR_S - 6.0) / 12.0), 0.0)


def test_each_half_hour_has_its_own_mean() -> None:
    pattern = sunny(2)
    for hour, value in ((0.25, 0.0), (6.25, 0.65), (12.25, 9.98), (17.75, 0.65), (23.9, 0.0)):
        found = pattern.expected(hour * HOUR_S)
        assert found is not None
        assert found[0] == pytest.approx(value, abs=0.1)


def test_what_was_never_seen_is_unknown() -> None:
    pattern = DayPattern().update(10.5 * HOUR_S, 4.0, 1800.0)
    assert DayPattern().expected(0.0) is None
    found = pattern.expected(10.25 * HOUR_S)
    assert found is not None
    assert found == pytest.approx((4.0, 1.2))
    assert pattern.expected(10.75 * HOUR_S) is None
    assert pattern.expected(9.75 * HOUR_S) is None


def test_more_days_make_it_surer() -> None:
    sigmas = [found[1] for days in (1, 3, 9) if (found := sunny(days).expected(12.1 * HOUR_S))]
    assert len(sigmas) == 3
    assert sigmas[0] > sigmas[1] > sigmas[2]


def test_old_days_fade() -> None:
    pattern = sunny(10)
    for day in range(10):
        pattern = pattern.update(12.5 * HOUR_S, 0.0, 1800.0)
        found = pattern.expected(12.25 * HOUR_S)
        assert found is not None
        assert found[0] < 10.0 * math.exp(-(day + 1) / 8.0)


def test_a_period_over_midnight_falls_into_both_days() -> None:
    pattern = DayPattern().update(900.0, 2.0, 1800.0)
    for at_s in (10.0, DAY_S - 10.0):
        found = pattern.expected(at_s)
        assert found is not None
        assert found[0] == 2.0
    assert sum(slot.seen_s > 0.0 for slot in pattern.slots) == 2


moments = st.tuples(st.floats(0, DAY_S), st.floats(-1e6, 1e6), st.floats(0, 1e7))


@given(st.lists(moments, max_size=30), st.floats(0, DAY_S))
def test_whatever_is_seen_the_size_is_bounded_and_the_mean_within(
    seen: list[tuple[float, float, float]], asked_s: float
) -> None:
    pattern = DayPattern()
    for at_s, value, period_s in seen:
        pattern = pattern.update(at_s, value, period_s)
    assert len(pattern.slots) in {0, BINS}
    found = pattern.expected(asked_s)
    if found is not None:
        values = [value for _, value, _ in seen]
        assert min(values) - 1e-3 <= found[0] <= max(values) + 1e-3
        assert 0.0 <= found[1] < math.inf
