"""The quantiles of Student's t are those of a library that is not on a controller."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.server.student import student_t

stats = pytest.importorskip("scipy.stats", reason="SciPy is not installed")


@given(
    st.floats(min_value=0.5, max_value=1 - 1e-9), st.floats(min_value=0.5, max_value=1_000_000.0)
)
def test_a_quantile_is_that_of_scipy(level: float, degrees: float) -> None:
    assert student_t(level, degrees) == pytest.approx(
        stats.t.ppf(level, degrees), rel=1e-6, abs=1e-6
    )


def test_the_middle_is_zero() -> None:
    assert student_t(0.5, 7.0) == pytest.approx(0.0, abs=1e-12)
