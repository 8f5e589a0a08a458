"""Random numbers by counter: those of the published generator, each known without the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.replay.chance import GAMMA, SEEDS, mixed, normal, start, uniform

seeds = st.integers(0, SEEDS - 1)


def test_it_is_the_published_generator() -> None:
    # The first numbers of the reference in C (splitmix64.c) for the seed 1234567.
    assert [mixed(1234567 + n * GAMMA) for n in (1, 2, 3, 4, 5)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@given(seeds, st.integers(0, 9), st.integers(0, 100_000), st.integers(0, 10**9))
def test_a_number_is_between_0_and_1_and_always_the_same(
    seed: int, stream: int, tick: int, number: int
) -> None:
    drawn = uniform(start(seed, stream, tick), number)
    assert 0.0 < drawn < 1.0
    assert drawn == uniform(start(seed, stream, tick), number)


def test_seeds_streams_ticks_and_numbers_give_others() -> None:
    drawn = {
        uniform(start(seed, stream, tick), number)
        for seed in range(6)
        for stream in range(6)
        for tick in range(6)
        for number in range(6)
    }
    assert len(drawn) == 6**4


def test_all_tenths_are_equally_likely() -> None:
    # A chi-squared test over ticks and numbers; nine degrees of freedom exceed 27.9 once in 1000.
    counts = [0] * 10
    for tick in range(200):
        state = start(5, 1, tick)
        for number in range(50):
            counts[int(uniform(state, number) * 10)] += 1
    assert sum((count - 1000) ** 2 / 1000 for count in counts) < 27.9


def test_normal_deviates_have_mean_0_and_variance_1() -> None:
    drawn = [normal(start(3, 2, tick), number) for tick in range(100) for number in range(100)]
    mean = sum(drawn) / len(drawn)
    assert mean == pytest.approx(0.0, abs=0.04)
    assert sum((z - mean) ** 2 for z in drawn) / len(drawn) == pytest.approx(1.0, abs=0.06)
