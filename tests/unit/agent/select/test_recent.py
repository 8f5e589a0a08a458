"""What was seen lately fades, and its extremes are kept for as long as they count."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.select.recent import BINS, FADES_S, Peak, Scatter, Spread, normal_share

factors = st.floats(0.05, 100)
periods = st.floats(0, 1e6)


def test_a_peak_rises_at_once_and_falls_slowly() -> None:
    peak = Peak().update(None, 1.0)
    assert peak.value is None
    peak = peak.update(2.0, 1.0).update(10.0, 1.0)
    assert peak.value == 10.0
    assert peak.update(None, 1e9) == peak
    fallen = peak.update(2.0, FADES_S).value
    assert fallen == pytest.approx(2.0 + 8.0 / math.e)
    assert peak.update(2.0, 1e9).value == pytest.approx(2.0)


@given(st.lists(st.tuples(st.floats(-1e12, 1e12), periods), min_size=1))
def test_a_peak_is_never_below_the_present(shown: list[tuple[float, float]]) -> None:
    peak = Peak()
    for value, period_s in shown:
        peak = peak.update(value, period_s)
        assert peak.value is not None
        assert peak.value >= value - 1e-3
    assert peak.value is not None
    assert peak.value <= max(value for value, _ in shown) + 1e-3


def test_points_are_values_of_equal_recent_time() -> None:
    assert Spread().points() == ()
    spread = Spread().update(1.0, 60.0).update(3.0, 60.0)
    assert spread.seen_s == 120.0
    # The first minute has faded to 0.61: two points of five.
    assert spread.points() == pytest.approx((1.0, 1.0, 3.0, 3.0, 3.0), rel=0.03)
    assert spread.update(3.0, 1e6).points() == pytest.approx((3.0,) * 5, rel=0.03)


def test_a_great_slowdown_is_told_from_a_greater_one() -> None:
    # A variant that was measured on a fast machine is many times slower on a small board.
    points = Spread().update(20.0, 1.0).update(25.0, 1.0).points()
    assert (points[0], points[-1]) == pytest.approx((20.0, 25.0), rel=0.03)


@pytest.mark.parametrize(("factor", "held_as"), [(1e6, 128.0), (1e-6, 1.0 / 32.0)])
def test_what_is_beyond_all_bins_is_in_the_outermost(factor: float, held_as: float) -> None:
    assert Spread().update(factor, 1.0).points()[0] == pytest.approx(held_as, rel=0.03)


@given(st.lists(st.tuples(factors, st.floats(0.01, 1e4)), min_size=1, max_size=30))
def test_points_lie_within_what_was_measured(shown: list[tuple[float, float]]) -> None:
    spread = Spread()
    for value, period_s in shown:
        spread = spread.update(value, period_s)
    assert len(spread.weights) == BINS
    points = spread.points()
    assert len(points) == 5
    assert list(points) == sorted(points)
    assert points[0] >= 0.95 * min(value for value, _ in shown)
    assert points[-1] <= 1.05 * max(value for value, _ in shown)


def test_time_seen_is_not_forgotten() -> None:
    spread = Spread()
    for _ in range(3600):
        spread = spread.update(1.0, 1.0)
    assert spread.seen_s == 3600.0


def test_rises_are_counted_at_every_value_that_was_passed() -> None:
    spread = Spread().update(4.0, 10.0)
    assert spread.rises_per_s(2.0) == 0.0, "how it began is no rise"
    assert Spread().rises_per_s(2.0) == 0.0
    for factor, seconds in ((1.0, 20.0), (4.0, 5.0), (4.0, 5.0), (1.0, 20.0)):
        spread = spread.update(factor, seconds)
    faded, total = math.exp(-25.0 / FADES_S), math.fsum(spread.weights)
    for passed in (1.2, 2.0, 4.0):
        assert spread.rises_per_s(passed) == pytest.approx(faded / total)
    assert spread.rises_per_s(0.5) == spread.rises_per_s(8.0) == 0.0
    assert spread.update(2.0, 0.0).rises_per_s(4.0) == spread.rises_per_s(4.0)
    assert spread.update(2.0, 0.0).rises_per_s(2.0) == pytest.approx((faded + 1.0) / total)


@given(st.lists(st.tuples(factors, periods), max_size=30), factors)
def test_no_value_is_passed_more_often_than_it_was_measured(
    shown: list[tuple[float, float]], limit: float
) -> None:
    spread = Spread()
    for factor, period_s in shown:
        spread = spread.update(factor, period_s)
    rises = spread.rises_per_s(limit)
    assert rises >= 0.0
    assert rises * math.fsum(spread.weights) <= len(shown) / 2 + 1e-6


def test_scatter_is_pooled_over_periods_and_fades() -> None:
    scatter = Scatter().update(None, 5.0, 1.0).update(0.3, 1.0, 1.0)
    assert scatter.variance == 0.0, "nothing that tells anything"
    scatter = scatter.update(0.1, 11.0, 1.0).update(0.4, 21.0, 0.0)
    assert scatter.variance == pytest.approx((10 * 0.1 + 20 * 0.4) / 30)
    assert scatter.update(None, 0.0, 60.0).variance == pytest.approx(scatter.variance)
    later = scatter.update(0.0, 31.0, FADES_S)
    assert later.variance == pytest.approx(9.0 / math.e / (30.0 / math.e + 30.0))


def test_shares_of_a_normal_distribution() -> None:
    assert normal_share(0.0) == 0.5
    assert normal_share(1.0) == pytest.approx(0.8413, abs=1e-4)
    assert normal_share(-1.0) == pytest.approx(0.1587, abs=1e-4)
    assert (normal_share(-math.inf), normal_share(math.inf)) == (0.0, 1.0)
