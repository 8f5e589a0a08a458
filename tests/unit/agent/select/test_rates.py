"""How many requests come: a constant rate, a jump, batches, and whatever is counted."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.select.batches import Together, together
from agent.select.rates import (
    CHANGES_S,
    LEAST_REQUESTS,
    MOST_RUNS,
    Rate,
)
from wire.codec import to_json


def poisson(chance: random.Random, mean: float) -> float:
    """Return a count of random arrivals, by the times between them."""
    left, count = mean, 0
    while (left := left - chance.expovariate(1.0)) > 0.0:
        count += 1
    return float(count)


def counted(
    per_s: float, seconds: int, *, rate: Rate | None = None, batch: int = 1, seed: int = 2
) -> Iterator[Rate]:
    """Yield the estimate after each second of random arrivals, of batches that are equal."""
    chance, known = random.Random(seed), rate or Rate()
    for _ in range(seconds):
        batches = poisson(chance, per_s / batch)
        times_s = [chance.random() for _ in range(int(batches))] * batch
        known = known.update(len(times_s), 1.0, together(times_s))
        yield known


def last(
    per_s: float, seconds: int, *, rate: Rate | None = None, batch: int = 1, seed: int = 2
) -> Rate:
    *_, known = counted(per_s, seconds, rate=rate, batch=batch, seed=seed)
    return known


def test_nothing_is_known_at_the_start() -> None:
    assert (Rate().mean_per_s, Rate().variance) == (0.0, 0.0)
    assert Rate().points() == (0.0,) * 5


@pytest.mark.parametrize("per_s", [0.1, 1.0, 7.0, 60.0])
def test_a_constant_rate_is_soon_known_and_the_uncertainty_is_honest(per_s: float) -> None:
    # Each seed is another device; 80 % of the probability lies between the outer points.
    known = [last(per_s, 180, seed=seed) for seed in range(30)]
    mean = math.fsum(k.mean_per_s for k in known) / len(known)
    assert mean == pytest.approx(per_s, rel=0.1)
    covered = sum(k.points()[0] <= per_s <= k.points()[-1] for k in known) / len(known)
    assert covered >= 0.8
    # It may jump at any time, so it is never as sure as from the counts of two minutes.
    surest = math.sqrt(per_s / 120.0)
    sigma = math.fsum(math.sqrt(k.variance) for k in known) / len(known)
    assert surest < sigma < 4.0 * surest


def test_a_rate_that_jumps_each_minute_is_covered_as_often_as_is_said() -> None:
    chance, known, level, covered = random.Random(3), Rate(), 5.0, 0
    for _ in range(3000):
        if chance.random() < 1.0 / 60.0:
            level = math.exp(chance.uniform(math.log(0.5), math.log(30.0)))
        known = known.update(poisson(chance, level), 1.0)
        covered += known.points()[0] <= level <= known.points()[-1]
    assert covered / 3000 == pytest.approx(0.87, abs=0.07)


def test_the_more_was_counted_the_surer_it_is() -> None:
    sigmas = [math.sqrt(k.variance) / k.mean_per_s for k in counted(7.0, 300)]
    assert sigmas[2] > sigmas[20] > sigmas[200]
    assert sigmas[200] < 0.08


@pytest.mark.parametrize(("before", "then", "within_s"), [(2.0, 20.0, 2), (20.0, 2.0, 4)])
def test_a_jump_is_followed_within_seconds(before: float, then: float, within_s: int) -> None:
    for seed in range(20):
        known = last(before, 300, seed=seed)
        known = last(then, within_s, rate=known, seed=seed + 100)
        assert then / 2.5 < known.mean_per_s < 2.5 * then
        known = last(then, 20, rate=known, seed=seed + 200)
        assert known.mean_per_s == pytest.approx(then, rel=0.5)


def test_one_second_of_many_requests_is_hardly_a_jump() -> None:
    known = last(7.0, 300)
    assert known.update(12.0, 1.0).mean_per_s < 8.5


def test_where_none_come_the_rate_falls_and_stays_uncertain() -> None:
    known = last(5.0, 300)
    for _ in range(60):
        known = known.update(0.0, 1.0)
    assert 0.0 < known.mean_per_s < 0.1
    assert known.variance > known.mean_per_s**2, "they may come again at any time"


@pytest.mark.few(3)
@pytest.mark.parametrize("batch", [1, 2, 4])
@pytest.mark.parametrize("per_s", [0.5, 8.0, 50.0])
def test_the_size_of_batches_is_found(batch: int, per_s: float) -> None:
    # Batches of one size: of `batch` requests, each has half of the others before it.
    known = [last(per_s, 600, batch=batch, seed=seed) for seed in range(10)]
    mean = math.fsum(k.batches.mean for k in known) / len(known)
    assert mean == pytest.approx(1.0 + 0.5 * (batch - 1), abs=0.15)
    assert math.fsum(k.dispersion for k in known) / len(known) == pytest.approx(batch, abs=0.35)


def test_a_rate_that_changes_makes_no_batches() -> None:
    chance, known = random.Random(4), Rate()
    for second in range(1200):
        count = poisson(chance, 20.0 if second % 7 < 3 else 2.0)
        times_s = [chance.random() for _ in range(int(count))]
        known = known.update(len(times_s), 1.0, together(times_s))
    assert known.batches.mean < 1.1


def test_one_great_burst_makes_no_batches_of_what_comes_after_it() -> None:
    chance, moments, known = random.Random(6), random.Random(7), last(0.6, 600)
    known = known.update(60.0, 1.0, Together(requests=60.0, pairs=1770.0))
    assert known.batches.mean < 2.5
    for _ in range(600):
        times_s = [moments.random() for _ in range(int(poisson(chance, 0.6)))]
        known = known.update(len(times_s), 1.0, together(times_s))
    assert known.batches.mean < 1.5


def test_how_requests_came_at_a_great_rate_counts_for_minutes_not_hours() -> None:
    # A client that waits for each answer: fewer pairs than by chance. Then batches of four.
    known = Rate()
    for _ in range(1800):
        known = known.update(100.0, 1.0, Together(requests=100.0, pairs=0.0, within_s=0.02))
    assert known.batches.mean == 1.0
    chance, moments = random.Random(8), random.Random(9)
    for _ in range(600):
        times_s = [moments.random() for _ in range(int(poisson(chance, 2.0)))] * 4
        known = known.update(len(times_s), 1.0, together(times_s))
    assert known.batches.mean == pytest.approx(2.5, abs=0.3)


@pytest.mark.parametrize("per_s", [5.0, 60.0])
def test_after_hours_without_a_request_many_are_believed_within_seconds(per_s: float) -> None:
    known = last(5.0, 300)
    for _ in range(600):
        known = known.update(0.0, 60.0)
    known = last(per_s, 8, rate=known)
    assert known.mean_per_s > per_s / 2.5


def test_where_few_come_a_rate_is_followed_as_many_requests_as_where_many_do() -> None:
    # The same requests, ten times as far apart, are as sure and as far off.
    assert CHANGES_S < LEAST_REQUESTS / 0.25
    chance, quick, slow = random.Random(5), Rate(), Rate()
    for _ in range(600):
        count = poisson(chance, 0.5)
        quick, slow = quick.update(count, 2.0), slow.update(count, 20.0)
    assert slow.mean_per_s == pytest.approx(quick.mean_per_s / 10.0, rel=0.1)
    assert slow.variance == pytest.approx(quick.variance / 100.0, rel=0.3)


def test_regular_requests_do_not_scatter() -> None:
    known = Rate()
    for _ in range(300):
        known = known.update(8.0, 1.0)
    assert known.dispersion < 0.1
    assert known.mean_per_s == pytest.approx(8.0, rel=0.02)


def test_batches_leave_the_rate_less_sure() -> None:
    single, batches = last(8.0, 300), last(8.0, 300, batch=4)
    assert math.sqrt(batches.variance) > 1.4 * math.sqrt(single.variance)
    assert batches.mean_per_s == pytest.approx(8.0, rel=0.3)


def test_long_periods_tell_as_much_as_many_short_ones() -> None:
    short, long = Rate(), Rate()
    for second in range(300):
        short = short.update(5.0, 1.0)
        if second % 30 == 29:
            long = long.update(150.0, 30.0)
    assert long.mean_per_s == pytest.approx(short.mean_per_s, rel=0.05)


def test_points_are_the_middles_of_five_equal_parts() -> None:
    known = last(7.0, 60)
    points = known.points()
    assert list(points) == sorted(points)
    assert math.fsum(points) / 5 == pytest.approx(known.mean_per_s, rel=0.01)
    sigma = math.sqrt(known.variance)
    assert points[-1] - points[0] == pytest.approx(2 * 1.28 * sigma, rel=0.05)


counts = st.sampled_from([0.0, 1e-300, 1e-6, 1.0, 7.0, 1e6]) | st.floats(0.0, 1e6)
periods = st.sampled_from([1e-6, 0.01, 1.0, 1.0, 60.0, 1e7]) | st.floats(1e-6, 1e7)


@given(st.lists(st.tuples(counts, periods), min_size=1, max_size=40))
def test_whatever_is_counted_the_estimate_is_a_number(shown: list[tuple[float, float]]) -> None:
    known = Rate()
    for count, period_s in shown:
        known = known.update(count, period_s)
        assert 0.0 < known.mean_per_s < math.inf
        assert 0.0 <= known.variance < math.inf
        assert 0.0 <= known.dispersion < math.inf
        points = known.points()
        assert all(0.0 <= point < math.inf for point in points)
        assert list(points) == sorted(points)
        assert math.fsum(run.weight for run in known.runs) == pytest.approx(1.0)
        assert len(known.runs) <= MOST_RUNS


@given(st.lists(st.floats(0.0, 100.0), min_size=1, max_size=40), st.floats(0.1, 100.0))
def test_more_requests_mean_a_greater_rate(shown: list[float], more: float) -> None:
    known = Rate()
    for count in shown:
        known = known.update(count, 1.0)
    fewer, greater = known.update(0.0, 1.0), known.update(1000.0 + more, 1.0)
    assert fewer.mean_per_s <= known.mean_per_s + 1e-9 <= greater.mean_per_s + 2e-9


def test_it_does_not_grow() -> None:
    chance, known = random.Random(1), Rate()
    for number in range(2000):
        known = known.update(poisson(chance, 3.0 if number // 97 % 2 else 30.0), 1.0)
        assert len(known.runs) <= MOST_RUNS
    assert len(to_json(known)) < 4000
