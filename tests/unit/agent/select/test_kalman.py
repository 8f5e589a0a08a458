"""The filter of a line: against matrices, and whatever it is shown."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.select.kalman import Line

places = st.floats(0, 1)
values = st.floats(-3, 3)


class Matrices:
    """The same filter as `Line`, as the books write it."""

    def __init__(self, line: Line) -> None:
        self.state = np.array([line.base, line.slope])
        off = line.covariance
        self.cov = np.array([[line.base_variance, off], [off, line.slope_variance]])

    def update(self, x: float, measured: float, gain: float, noise: float) -> None:
        """Measure `gain` times the line's y at x; a slope is not negative."""
        row = gain * np.array([[1.0, x]])
        kalman = self.cov @ row.T / (row @ self.cov @ row.T + noise)
        self.state = self.state + (kalman * (measured - row @ self.state))[:, 0]
        self.state[1] = max(self.state[1], 0.0)
        self.cov = (np.eye(2) - kalman @ row) @ self.cov


PRIOR = Line(base=0.2, slope=0.8, base_variance=0.09, slope_variance=0.16)


@given(st.lists(st.tuples(places, values, st.floats(0.05, 1)), max_size=30))
def test_a_line_is_the_matrix_filter(shown: list[tuple[float, float, float]]) -> None:
    line, reference = PRIOR, Matrices(PRIOR)
    for x, measured, gain in shown:
        line = line.drifted(1e-5, 1e-7).update(x, measured, gain=gain, noise=4e-4)
        reference.cov += np.diag([1e-5, 1e-7])
        reference.update(x, measured, gain, 4e-4)
    assert [line.base, line.slope] == pytest.approx(list(reference.state), abs=1e-8)
    (base_variance, covariance), (_, slope_variance) = reference.cov
    found = [line.base_variance, line.covariance, line.slope_variance]
    assert found == pytest.approx([base_variance, covariance, slope_variance], abs=1e-9)
    for x in (0.0, 0.5, 1.0):
        row = np.array([1.0, x])
        assert line.at(x) == pytest.approx(row @ reference.state, abs=1e-8)
        assert line.variance_at(x) == pytest.approx(row @ reference.cov @ row, abs=1e-9)


@given(st.lists(st.tuples(places, st.floats(-100, 100)), max_size=100))
def test_a_line_never_falls_and_its_variance_is_never_negative(
    shown: list[tuple[float, float]],
) -> None:
    line = PRIOR
    for x, measured in shown:
        line = line.update(x, measured, gain=1.0, noise=1e-4)
        assert line.slope >= 0.0
        assert all(line.variance_at(x) >= 0.0 for x in (0.0, 0.3, 1.0))
    assert all(math.isfinite(v) for v in msgspec.structs.astuple(line))


def test_a_line_by_two_points() -> None:
    line = Line(base=0.0, slope=0.0, base_variance=100.0, slope_variance=100.0)
    for _ in range(50):
        line = line.update(0.0, 2.0, gain=1.0, noise=0.01).update(1.0, 5.0, gain=1.0, noise=0.01)
    assert (line.base, line.slope) == pytest.approx((2.0, 3.0), abs=1e-2)


def test_a_drift_adds_doubt_and_moves_nothing() -> None:
    drifted = PRIOR.drifted(0.5, 0.25)
    assert drifted.at(0.7) == PRIOR.at(0.7)
    assert drifted.variance_at(1.0) == pytest.approx(PRIOR.variance_at(1.0) + 0.75)
