"""Slowdowns: what is common and what is a variant's own, against matrices and by what they find."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.select.slowdowns import (
    COMMON_VARIANCE,
    EXPLAINED,
    FORGOTTEN_S,
    LEAST_NOISE,
    LEAST_PROCESS,
    MOST_VARIANTS,
    OWN_DRIFT,
    OWN_VARIANCE,
    Slowdowns,
)

names = st.sampled_from(["a", "b", "c"])
shown = st.lists(st.tuples(names, st.floats(-3, 5)), min_size=1, max_size=40)


def served(known: Slowdowns, name: str, factor: float, times: int) -> Slowdowns:
    for _ in range(times):
        known = known.update(name, math.log(factor), 1.0)
    return known


def test_the_first_measurement_by_hand() -> None:
    known = Slowdowns().update("a", 0.5, 1.0)
    common, total = COMMON_VARIANCE + 0.01, COMMON_VARIANCE + 0.01 + OWN_VARIANCE + OWN_DRIFT
    gain = common / (total + 0.0025)
    assert known.names == ("a",)
    assert known.means[0] == pytest.approx(0.5 * gain)
    assert known.own("a") == pytest.approx(0.5 * (OWN_VARIANCE + OWN_DRIFT) / (total + 0.0025))
    assert known.process == pytest.approx(0.3 * 0.01 + 0.7 * (0.5 * gain) ** 2)
    left = 0.5 * 0.0025 / (total + 0.0025)
    spread = total * 0.0025 / (total + 0.0025)
    assert known.noise == pytest.approx(0.9 * 0.0025 + 0.1 * (left**2 + spread))


@given(shown)
def test_it_is_the_filter_of_the_books(measurements: list[tuple[str, float]]) -> None:
    known, order = Slowdowns(), list[str]()
    state, cov = np.zeros(1), np.array([[COMMON_VARIANCE]])
    for name, measured in measurements:
        if name not in order:
            order.append(name)
            state = np.append(state, 0.0)
            cov = np.pad(cov, (0, 1))
            first = OWN_VARIANCE
            if len(order) > 1:
                # What changes with a variant that comes for the first time is its own.
                moved = EXPLAINED * (cov[0, 0] + known.process + known.noise)
                first = max(first, (measured - state[0]) ** 2 - moved)
            cov[-1, -1] = first
        place = order.index(name) + 1
        cov[0, 0] += known.process
        cov[place, place] += OWN_DRIFT
        row = np.zeros((1, len(state)))
        row[0, [0, place]] = 1.0
        gain = cov @ row.T / (row @ cov @ row.T + known.noise)
        state = state + (gain * (measured - row @ state))[:, 0]
        cov = cov - gain @ row @ cov
        known = known.update(name, measured, 1.0)
        assert known.names[-1] == name
        assert known.means[0] == pytest.approx(state[0], abs=1e-9)
        for other in order:
            i = order.index(other) + 1
            assert known.own(other) == pytest.approx(state[i], abs=1e-9)
            variance = cov[0, 0] + 2.0 * cov[0, i] + cov[i, i]
            sigma = math.sqrt(max(variance, 0.0) + known.process + known.noise)
            assert known.expected(other).sigma == pytest.approx(sigma, abs=1e-7)


@given(shown)
def test_whatever_was_seen_what_is_expected_are_numbers(
    measurements: list[tuple[str, float]],
) -> None:
    known = Slowdowns()
    for name, measured in measurements:
        known = known.update(name, measured, 1.0)
        assert known.process >= LEAST_PROCESS
        assert known.noise >= LEAST_NOISE
        for other in ("a", "b", "c", "never"):
            expected = known.expected(other)
            assert abs(expected.mean) < 16.0, "twice the widest span that was shown"
            assert 0.0 < expected.sigma < 16.0


@pytest.mark.parametrize("sigma", [0.0, 0.02, 0.1])
def test_what_was_quiet_for_long_still_follows_a_step(sigma: float) -> None:
    chance, known = random.Random(1), Slowdowns()
    for _ in range(5000):
        known = known.update("a", chance.gauss(0.0, sigma), 1.0)
    for _ in range(10):
        known = known.update("a", 0.7 + chance.gauss(0.0, sigma), 1.0)
    assert known.expected("a").mean == pytest.approx(0.7, abs=0.15)
    assert known.expected("b").mean == pytest.approx(0.7, abs=0.25), "it is common to all"


@pytest.mark.parametrize("sigma", [0.05, 0.1, 0.3])
def test_how_noisy_measurements_are_is_learnt(sigma: float) -> None:
    chance, known = random.Random(2), Slowdowns()
    outside = 0
    for number in range(3000):
        measured, expected = chance.gauss(0.5, sigma), known.expected("a")
        outside += number >= 500 and abs(measured - expected.mean) > 2.0 * expected.sigma
        known = known.update("a", measured, 1.0)
    # Of a normal distribution 4.6 % lie beyond two standard deviations.
    assert 0.01 < outside / 2500 < 0.12


def test_what_only_one_variant_suffers_from_is_told_apart_when_another_has_served() -> None:
    known = served(Slowdowns(), "a", 3.0, 60)
    assert known.expected("b").factor > 2.5, "as far as anybody can tell"
    known = served(known, "b", 1.0, 60)
    assert known.expected("b").factor == pytest.approx(1.0, rel=0.05)
    assert known.expected("a").factor > 1.8, "and not as fast as the other"
    # Both go on in turn, on a device that is now hot: what is common rises, their ratio stays.
    for _ in range(20):
        known = served(served(known, "a", 6.0, 30), "b", 2.0, 30)
    known = served(known, "b", 4.0, 30)
    assert known.expected("a").factor == pytest.approx(12.0, rel=0.15)


def test_a_variant_that_never_served_is_less_sure() -> None:
    known = served(served(Slowdowns(), "a", 1.0, 30), "b", 1.0, 30)
    assert known.expected("never").sigma > known.expected("a").sigma
    assert known.own("never") == 0.0


def test_what_served_longest_ago_is_forgotten() -> None:
    known = Slowdowns()
    for number in range(3 * MOST_VARIANTS):
        known = served(known, f"v{number}", 1.5, 2)
    assert len(known.names) == MOST_VARIANTS
    assert known.names[-1] == f"v{3 * MOST_VARIANTS - 1}"
    assert len(known.covariance) == len(known.means) == MOST_VARIANTS + 1
    assert all(len(row) == MOST_VARIANTS + 1 for row in known.covariance)


@pytest.mark.parametrize("stalled", [4.0, 12.0, 100.0])
def test_one_slow_answer_before_a_switch_makes_no_variant_slow_for_ever(stalled: float) -> None:
    known = served(served(Slowdowns(), "a", 1.0, 60), "a", stalled, 1)
    known = served(known, "b", 1.0, 10)
    assert known.expected("a").factor == pytest.approx(1.0, rel=0.25)


def test_what_changed_while_another_variant_took_over_is_asked_again_after_an_hour() -> None:
    # A neighbour slows both; it ends in the moment in which the other one comes.
    known = served(Slowdowns(), "a", 4.0, 60)
    known = served(known, "b", 1.0, 60)
    assert known.expected("a").factor > 3.0, "as far as anybody can tell"
    for _ in range(60):
        known = known.update("b", 0.0, FORGOTTEN_S / 60)
    assert known.names == ("b",)
    assert known.own("b") == 0.0
    assert known.expected("a").factor == pytest.approx(known.expected("b").factor)
    assert known.expected("b").factor == pytest.approx(1.0, rel=0.05)


def test_one_of_several_is_forgotten_and_what_is_known_of_the_others_stays() -> None:
    known = served(served(served(Slowdowns(), "a", 2.0, 30), "b", 1.0, 30), "c", 3.0, 30)
    known = known.update("b", 0.0, 0.9 * FORGOTTEN_S)
    ratio = known.expected("c").factor / known.expected("b").factor
    known = known.update("c", math.log(3.0), 0.9 * FORGOTTEN_S)
    known = known.update("b", 0.0, 1.0)
    assert known.names == ("c", "b")
    assert known.expected("c").factor / known.expected("b").factor == pytest.approx(ratio, rel=0.1)
    assert len(known.covariance) == len(known.means) == 1 + len(known.unseen_s)
