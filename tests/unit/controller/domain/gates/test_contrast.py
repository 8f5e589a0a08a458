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


def test_devices_are_never_compared_with_those_of_another_profile(
    chance: np.random.Generator,
) -> None:
    """Profiles of one device are in one group alone, and far from all others."""
    new = [*drawn(chance, 20), *(Observed(50.0, NAN, f"a{n}") for n in range(20))]
    old = [*drawn(chance, 20), *(Observed(0.0, NAN, f"b{n}") for n in range(20))]
    found = contrast(new, old)
    assert found[3:5] == (20, 20)
    assert abs(found.difference) < 1.0


def test_what_was_there_before_moves_no_device_of_which_it_is_not_known() -> None:
    known = [Observed(60.0 + 0.01 * n, 60.0 + 0.01 * n, "a") for n in range(20)]
    unknown = [Observed(60.0 + 0.01 * n, NAN, "a") for n in range(20)]
    low, high = contrast([*known[::2], *unknown[::2]], [*known[1::2], *unknown[1::2]]).interval(
        0.05
    )
    assert low < 0.0 < high
    assert high - low < 0.2


def test_a_few_devices_that_measured_the_same_by_chance_show_nothing(
    chance: np.random.Generator,
) -> None:
    """One device of five fails wholly, whatever the release: five may well be without one."""
    halted = 0
    for _ in range(400):
        new, old = (chance.random(size) < 0.2 for size in (45, 5))
        sides = [[Observed(float(value), NAN, "a") for value in side] for side in (new, old)]
        low, _ = contrast(*sides).interval(0.01)
        halted += low > 0.0
    assert halted == 0


def test_tiny_and_huge_values_are_no_fault() -> None:
    for size in (1e-200, 1e-90, 1e150):
        sides = [[Observed(size * n, NAN, "a") for n in range(6)] for _ in range(2)]
        assert contrast(*sides).difference == 0.0


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


@pytest.mark.parametrize("few", [3, 4, 6])
def test_a_few_devices_that_differ_much_are_not_better_known_for_many_that_do_not(
    chance: np.random.Generator, few: int
) -> None:
    """Servers whose figures spread thirty times as far as those of the cameras beside them."""

    def side(cameras: int, servers: int) -> list[Observed]:
        alike = [Observed(value, NAN, "camera") for value in chance.normal(0.0, 1.0, cameras)]
        return alike + [Observed(value, NAN, "server") for value in chance.normal(0, 30, servers)]

    missed = 0
    for _ in range(120):
        low, high = contrast(side(90, few), side(10, few)).interval(0.02)
        missed += not low <= 0.0 <= high
    assert missed / 120 <= 0.02 + 3 * math.sqrt(0.02 * 0.98 / 120)


STEP = 0.02


@pytest.mark.parametrize("spread", [0.0001, 0.005, 0.01, 0.05, 0.5])
def test_the_interval_holds_the_truth_where_values_are_told_in_steps(
    chance: np.random.Generator, spread: float
) -> None:
    def told(devices: int, by: float) -> list[Observed]:
        values = (chance.normal(place + by, spread, devices) / STEP).round() * STEP
        return [Observed(float(value), NAN, "a") for value in values]

    held = 0
    for _ in range(200):
        place = chance.uniform(0.0, 1.0)
        low, high = contrast(told(20, 0.013), told(20, 0.0), step=STEP).interval(0.05)
        held += low <= 0.013 <= high
    # Of twenty nineteen, less three standard errors.
    assert held / 200 >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / 200)


def test_the_interval_holds_the_truth_where_many_devices_huddle_at_a_border_of_steps(
    chance: np.random.Generator,
) -> None:
    def told(by: float) -> list[Observed]:
        values = (chance.normal(0.01 + by, 0.002, 100) / STEP).round() * STEP
        return [Observed(float(value), NAN, "a") for value in values]

    held = 0
    for _ in range(100):
        low, high = contrast(told(0.011), told(0.0), step=STEP).interval(0.05)
        held += low <= 0.011 <= high
    assert held == 100


def test_devices_that_differ_by_more_than_a_step_need_no_more_for_it(
    chance: np.random.Generator,
) -> None:
    far, near = drawn(chance, 30), [Observed(1.0, 1.0, "a")] * 30
    assert contrast(far, far, step=STEP).coarse == pytest.approx(0.0, abs=1e-6)
    assert contrast(near, near, step=STEP).coarse == pytest.approx(STEP)
    assert against_before(near, step=STEP).coarse == pytest.approx(STEP)
    assert contrast(near, near).interval(0.05) == pytest.approx((0.0, 0.0))


def test_trials_of_a_side_are_those_of_its_strata_by_their_weights() -> None:
    def of(trials: float, value: float, name: str, number: int) -> list[Observed]:
        return [Observed(value, NAN, name, trials)] * number

    new = [*of(100.0, 0.1, "a", 10), *of(50.0, 0.3, "b", 10)]
    old = [*of(100.0, 0.0, "a", 10), *of(100.0, 0.0, "b", 10)]
    found = contrast(new, old)
    assert found.trials is not None
    (share, number), (_, others) = found.trials
    assert share == pytest.approx(0.2)
    assert number == pytest.approx(1.0 / (0.25 / 1_000.0 + 0.25 / 500.0))
    assert others == pytest.approx(2_000.0)
    unknown = contrast([*new, Observed(0.0, NAN, "a")], old).trials
    assert unknown is not None
    assert math.isfinite(unknown[0].number), "the others are still known"
