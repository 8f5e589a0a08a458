"""Harm to few devices, but those wholly, is within what a gate in the worst case bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from controller.domain.gates.bounded import most_harm, most_mean
from controller.domain.gates.contrast import Observed, contrast

NAN = math.nan


def test_devices_that_are_all_well_leave_what_nobody_has_seen() -> None:
    for devices in (20, 300):
        found = most_mean(np.zeros(devices), 0.05)
        # All money on the whole stake would give the first; half of it gives a little more.
        assert 1 - 0.05 ** (1 / devices) < found < 1 - 0.025 ** (1 / devices) + 1e-9


def test_the_bound_is_too_low_no_more_often_than_it_says() -> None:
    """One device in twenty fails wholly: with Student's interval, six of ten bounds are too low."""
    chance = np.random.Generator(np.random.PCG64(3))
    missed = {"bounded": 0, "student": 0}
    for _ in range(200):
        new, old = chance.random(10) < 0.05, np.zeros(30)
        treated, control = (
            [Observed(float(value), NAN, "a") for value in side] for side in (new, old)
        )
        missed["bounded"] += most_harm(treated, control, 0.05, falls=False) < 0.05
        missed["student"] += contrast(treated, control).interval(0.1)[1] < 0.05
    assert missed["bounded"] <= 200 * 0.05
    assert missed["student"] > 200 * 0.4


def test_a_small_control_group_that_is_all_alike_proves_nothing_of_the_others() -> None:
    """85 % of the devices fail with the old release already; a new one lets all fail."""
    chance = np.random.Generator(np.random.PCG64(5))
    too_low = 0
    for _ in range(200):
        old = chance.random(10) < 0.85
        treated = [Observed(1.0, NAN, "a")] * 90
        control = [Observed(float(value), NAN, "a") for value in old]
        too_low += most_harm(treated, control, 0.05, falls=False) < 0.15
    assert too_low <= 200 * 0.05


@pytest.mark.parametrize("falls", [False, True])
def test_what_may_fall_is_turned_round_and_profiles_are_compared_apart(falls: bool) -> None:
    def one(harm: float, profile: str) -> Observed:
        return Observed(1.0 - harm if falls else harm, NAN, profile)

    new = [*(one(0.5, "a") for _ in range(100)), *(one(0.0, "b") for _ in range(300))]
    old = [*(one(0.5, "a") for _ in range(300)), *(one(0.0, "b") for _ in range(100))]
    assert 0.0 < most_harm(new, old, 0.05, falls=falls) < 0.25
    assert most_harm(new, [one(0.5, "c")] * 9, 0.05, falls=falls) == 1.0


def test_devices_are_compared_with_themselves_before() -> None:
    same = [Observed(0.3, 0.3, "a")] * 400
    assert 0.0 < most_harm(same, [], 0.05, falls=False) < 0.1
    worse = [Observed(0.5, 0.3, "a")] * 400
    assert 0.2 < most_harm(worse, [], 0.05, falls=False) < 0.3
