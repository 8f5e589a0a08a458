"""Requests: each process has the rate that it says, and nothing depends on who serves."""

from __future__ import annotations

import itertools
import math
import statistics

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.replay.chance import SEEDS
from agent.replay.requests import MAX_BURST, Request, Requests, arrivals

KINDS = ("regular", "poisson", "bursts")


def made(requests: Requests, rates: list[float], period_s: float = 1.0) -> list[list[Request]]:
    return [list(tick or ()) for tick in arrivals(requests, rates, period_s)]


def kind(name: str, **values: float) -> Requests:
    return msgspec.convert({"arrivals": name} | values, Requests)


rates = st.lists(st.floats(0.0, 50.0), min_size=1, max_size=20)


def test_a_flow_has_no_single_requests() -> None:
    assert list(arrivals(Requests(), [5.0, 0.0], 1.0)) == [None, None]


@pytest.mark.parametrize("name", KINDS)
@given(rates=rates, seed=st.integers(0, SEEDS - 1))
def test_requests_arrive_in_order_within_their_tick(
    name: str, rates: list[float], seed: int
) -> None:
    ticks = made(kind(name, seed=seed), rates, 0.5)
    assert len(ticks) == len(rates)
    for requests, rate in zip(ticks, rates, strict=True):
        times = [r.at_s for r in requests]
        assert times == sorted(times)
        assert all(0.0 <= at_s <= 0.5 for at_s in times)
        assert all(r.factor > 0.0 for r in requests)
        assert requests == [] or rate > 0.0


@given(rates=rates)
def test_regular_requests_are_as_many_as_the_demand(rates: list[float]) -> None:
    counts = [len(tick) for tick in made(kind("regular"), rates)]
    for done in range(1, len(rates) + 1):
        assert abs(sum(counts[:done]) - math.fsum(rates[:done])) <= 0.5 + 1e-9


def test_regular_gaps_go_on_over_the_ticks() -> None:
    ticks = made(kind("regular", service_sigma=0.0), [0.4] * 20)
    times = [number + r.at_s for number, tick in enumerate(ticks) for r in tick]
    assert [b - a for a, b in itertools.pairwise(times)] == pytest.approx([2.5] * 7)


@pytest.mark.parametrize("name", ["poisson", "bursts"])
def test_the_mean_rate_is_the_demand(name: str) -> None:
    counts = [len(tick) for tick in made(kind(name, burst_size=3.0), [8.0] * 4000)]
    error = statistics.stdev(counts) / math.sqrt(len(counts))
    assert abs(statistics.mean(counts) - 8.0) < 4.0 * error


def test_counts_are_as_dispersed_as_their_process() -> None:
    # The variance over the mean is 1 for Poisson; for bursts of geometric size with mean m,
    # E[size^2] / E[size] = 2 m - 1.
    def dispersion(requests: Requests) -> float:
        counts = [len(tick) for tick in made(requests, [8.0] * 4000)]
        return statistics.variance(counts) / statistics.mean(counts)

    assert dispersion(kind("poisson")) == pytest.approx(1.0, rel=0.1)
    assert dispersion(kind("bursts", burst_size=3.0)) == pytest.approx(5.0, rel=0.15)
    assert dispersion(kind("bursts", burst_size=1.0)) == pytest.approx(1.0, rel=0.1)


def test_poisson_gaps_are_exponential_over_the_ends_of_ticks_too() -> None:
    ticks = made(kind("poisson"), [2.0] * 4000)
    times = [number + r.at_s for number, tick in enumerate(ticks) for r in tick]
    gaps = [b - a for a, b in itertools.pairwise(times)]
    for limit_s in (0.1, 0.5, 1.5):
        longer = sum(gap > limit_s for gap in gaps) / len(gaps)
        assert longer == pytest.approx(math.exp(-2.0 * limit_s), abs=0.02)


def test_the_median_service_is_the_variants_and_outliers_are_as_many_as_said() -> None:
    factors = [
        r.factor
        for tick in made(
            kind("poisson", service_sigma=0.2, outlier_share=0.02, outlier_factor=50.0),
            [10.0] * 1000,
        )
        for r in tick
    ]
    usual = [f for f in factors if f < 10.0]
    assert statistics.median(usual) == pytest.approx(1.0, abs=0.01)
    assert statistics.stdev(map(math.log, usual)) == pytest.approx(0.2, rel=0.05)
    assert 1.0 - len(usual) / len(factors) == pytest.approx(0.02, abs=0.006)
    outliers = [f for f in factors if f >= 10.0]
    assert statistics.median(outliers) == pytest.approx(50.0, rel=0.1)


def test_without_spread_every_service_takes_the_median() -> None:
    ticks = made(kind("bursts", service_sigma=0.0), [10.0] * 50)
    assert {r.factor for tick in ticks for r in tick} == {1.0}


def test_a_seed_decides_and_another_rate_leaves_the_services_as_they_are() -> None:
    one, again, other = (made(kind("poisson", seed=seed), [9.0] * 5) for seed in (1, 1, 2))
    assert one == again != other
    more = made(kind("poisson", seed=1), [18.0] * 5)
    for few, many in zip(one, more, strict=True):
        assert [r.factor for r in few] == [r.factor for r in many[: len(few)]]
        assert [r.at_s for r in few] == pytest.approx([2 * r.at_s for r in many[: len(few)]])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"seed": -1}, "seed is not within 0 to"),
        ({"seed": SEEDS}, "seed is not within 0 to"),
        ({"service_sigma": -0.1}, "service_sigma is not within 0 to 3"),
        ({"service_sigma": 3.1}, "service_sigma is not within 0 to 3"),
        ({"outlier_share": -0.1}, "outlier_share is not within 0 to 1"),
        ({"outlier_share": 1.1}, "outlier_share is not within 0 to 1"),
        ({"outlier_factor": 0.5}, "outlier_factor is not within 1 to 10000"),
        ({"burst_size": 0.5}, "burst_size is not within 1 to 1000"),
        ({"burst_size": MAX_BURST + 1}, "burst_size is not within 1 to 1000"),
    ],
)
def test_impossible_requests_are_named(values: dict[str, float], words: str) -> None:
    (fault,) = kind("poisson", **values).faults()
    assert words in fault


def test_what_is_no_number_is_a_fault() -> None:
    nan = math.nan
    broken = Requests(service_sigma=nan, outlier_share=nan, outlier_factor=nan, burst_size=nan)
    assert len(broken.faults()) == 4
    assert Requests().faults() == ()
