"""What was seen lately fades, and its extremes are kept for as long as they count."""

from __future__ import annotations

import itertools
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


def test_a_spread_by_hand() -> None:
    spread = Spread()
    assert spread.share_below(0.001) == 1.0, "nothing speaks against it"
    spread = spread.update(1.0, 60.0).update(3.0, 60.0)
    assert spread.seen_s == 120.0
    faded = 60.0 * math.exp(-60.0 / FADES_S)
    assert spread.share_below(2.0) == pytest.approx(faded / (faded + 60.0))
    assert spread.share_below(0.5) == 0.0
    assert spread.share_below(4.0) == 1.0
    assert spread.share_below(0.0) == 0.0
    assert spread.share_below(-1.0) == 0.0


def test_what_is_in_the_same_bin_is_not_surely_below() -> None:
    spread = Spread().update(1.01, 1.0)
    assert spread.share_below(1.02) == 0.0
    assert spread.share_below(1.06) == 1.0


def test_a_slowdown_beyond_all_is_below_nothing() -> None:
    spread = Spread().update(1e6, 1.0)
    assert spread.share_below(130.0) == 0.0
    assert spread.share_below(math.inf) == 0.0


def test_a_great_slowdown_is_told_from_a_greater_one() -> None:
    # A variant that was measured on a fast machine is many times slower on a small board.
    spread = Spread().update(20.0, 1.0)
    assert (spread.share_below(18.0), spread.share_below(25.0)) == (0.0, 1.0)


@given(st.lists(st.tuples(factors, st.floats(0.01, 1e4)), min_size=1, max_size=30), factors)
def test_shares_are_shares_and_grow_with_the_factor(
    shown: list[tuple[float, float]], factor: float
) -> None:
    spread = Spread()
    for value, period_s in shown:
        spread = spread.update(value, period_s)
    assert len(spread.weights) == BINS
    shares = [spread.share_below(factor * scale) for scale in (0.5, 0.9, 1.0, 1.1, 2.0)]
    assert all(0.0 <= share <= 1.0 + 1e-9 for share in shares)
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(shares))


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


@given(st.lists(st.tuples(factors, periods), max_size=20), factors, st.floats(1e-6, 2.0))
def test_single_ones_are_as_often_below_as_a_normal_distribution_says(
    shown: list[tuple[float, float]], limit: float, log_variance: float
) -> None:
    spread = Spread()
    for factor, period_s in shown:
        spread = spread.update(factor, period_s)
    share = spread.share_below(limit, log_variance)
    assert 0.0 <= share <= 1.0 + 1e-12
    assert share <= spread.share_below(limit * 1.1, log_variance) + 1e-12
    if not any(spread.weights):
        assert share == 1.0


def test_half_of_the_single_ones_lie_below_the_median() -> None:
    spread = Spread().update(2.0, 60.0)
    # The median of a lognormal distribution of mean 2 lies below 2 by half the variance.
    assert spread.share_below(2.0 * math.exp(-0.5 * 0.25), 0.25) == pytest.approx(0.5, abs=0.05)
    assert spread.share_below(4.0, 0.25) == pytest.approx(normal_share(1.6), abs=0.03)
