"""Devices with a new release beside those with the old one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from controller.domain.gates.contrast import Observed, against_before, contrast

NAN = math.nan


def drawn(
    chance: np.random.Generator, devices: int, *, by: float = 0.0, slow: float = 0.5
) -> list[Observed]:
    """Draw devices of two profiles, each with a level of its own."""
    found = []
    for _ in range(devices):
        is_slow = chance.random() < slow
        level = chance.normal(3.0 if is_slow else 1.0, 0.5)
        after, before = level + chance.normal(by, 0.1), level + chance.normal(0.0, 0.1)
        found.append(Observed(after, before, "slow" if is_slow else "fast"))
    return found


@pytest.fixture
def chance() -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(7))


def test_the_interval_holds_the_truth_as_often_as_it_says(chance: np.random.Generator) -> None:
    held = 0
    for _ in range(400):
        low, high = contrast(drawn(chance, 12, by=0.3), drawn(chance, 30)).interval(0.1)
        held += low <= 0.3 <= high
    # Nine of ten, less three standard errors.
    assert held / 400 >= 0.9 - 3 * math.sqrt(0.09 / 400)
    assert held < 400


def test_a_side_with_more_slow_devices_is_not_slower_for_that(chance: np.random.Generator) -> None:
    found = contrast(drawn(chance, 60, slow=0.9), drawn(chance, 60, slow=0.2))
    assert found.difference == pytest.approx(0.0, abs=0.1)


def test_what_was_there_before_makes_the_interval_shorter(chance: np.random.Generator) -> None:
    sides = drawn(chance, 40), drawn(chance, 40)
    unknown = [[one._replace(before=NAN) for one in side] for side in sides]
    assert contrast(*sides).error < 0.5 * contrast(*unknown).error


def test_devices_of_which_nothing_is_known_from_before_count_apart(
    chance: np.random.Generator,
) -> None:
    old, new = drawn(chance, 30), drawn(chance, 30, by=0.3)
    added = drawn(chance, 20, by=0.3), drawn(chance, 20)
    unknown = [[one._replace(before=NAN) for one in side] for side in added]
    both = contrast([*new, *unknown[0]], [*old, *unknown[1]])
    assert (both.treated, both.control) == (50, 50)
    assert both.difference == pytest.approx(0.3, abs=0.15)


def test_profiles_with_one_device_on_a_side_are_compared_together(
    chance: np.random.Generator,
) -> None:
    new, old = drawn(chance, 10), drawn(chance, 10)
    new += [Observed(1.0, 1.0, "a"), Observed(1.0, 1.0, "b")]
    old += [Observed(1.0, 1.0, "a"), Observed(1.0, 1.0, "c")]
    assert contrast(new, old)[3:5] == (12, 12)
    assert contrast([*new[:10], new[10]], old[:10])[3:5] == (10, 10), "nobody to compare it with"


@pytest.mark.parametrize(("new", "old"), [(4, 30), (30, 4), (0, 0)])
def test_few_devices_tell_nothing(chance: np.random.Generator, new: int, old: int) -> None:
    found = contrast(drawn(chance, new), drawn(chance, old))
    assert "5 must" in found.lacks
    assert found.interval(0.05) == (-math.inf, math.inf)


def test_devices_are_compared_with_themselves(chance: np.random.Generator) -> None:
    found = against_before([*drawn(chance, 30, by=0.3), Observed(9.0, NAN, "fast")])
    assert (found.treated, found.control) == (30, 0)
    assert found.difference == pytest.approx(0.3, abs=0.1)
    assert "5 must" in against_before(drawn(chance, 4)).lacks


def test_devices_that_all_measure_the_same_do_not_differ() -> None:
    same = [Observed(1.0, 1.0, "a")] * 6
    found = contrast(same, same)
    assert found.interval(0.01) == (0.0, 0.0)
