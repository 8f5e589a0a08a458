"""The thermal model does what the physics says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.replay.plant import ThermalPlant

PLANT = ThermalPlant(resistance_c_per_w=5.0, time_constant_s=60.0, idle_w=1.0, busy_w=6.0)
temperatures = st.floats(min_value=-20, max_value=120)
shares = st.floats(min_value=0, max_value=1)


def test_a_known_point() -> None:
    # Full load at 25 C: steady 25 + 5 * 6 = 55; after one time constant 63.2 % of the way.
    reached = PLANT.step(25.0, ambient_c=25.0, utilization=1.0, step_s=60.0)
    assert reached == pytest.approx(25 + 30 * 0.632_120_558)


@given(temperatures, temperatures, shares)
def test_two_steps_equal_one_of_both(start: float, ambient: float, share: float) -> None:
    once = PLANT.step(start, ambient_c=ambient, utilization=share, step_s=10.0)
    half = PLANT.step(start, ambient_c=ambient, utilization=share, step_s=4.0)
    twice = PLANT.step(half, ambient_c=ambient, utilization=share, step_s=6.0)
    assert once == pytest.approx(twice, abs=1e-9)


@given(temperatures, temperatures, shares)
def test_it_never_overshoots(start: float, ambient: float, share: float) -> None:
    steady = PLANT.steady_c(ambient_c=ambient, utilization=share)
    end = PLANT.step(start, ambient_c=ambient, utilization=share, step_s=30.0)
    assert min(start, steady) - 1e-9 <= end <= max(start, steady) + 1e-9


@given(shares, shares)
def test_more_load_is_never_cooler(first: float, second: float) -> None:
    low, high = sorted((first, second))
    assert PLANT.power_w(low) <= PLANT.power_w(high)


def test_absurd_utilization_is_clamped() -> None:
    assert PLANT.power_w(-1.0) == PLANT.idle_w
    assert PLANT.power_w(7.0) == PLANT.busy_w
