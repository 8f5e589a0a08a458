"""What each variant would have lost: no single period decides for ever."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.select.work import Work


def cost(_before: str, _after: str) -> float:
    return 2.0


@given(
    st.lists(
        st.dictionaries(st.sampled_from("abc"), st.floats(allow_nan=True, allow_infinity=True)),
        max_size=8,
    )
)
def test_whatever_was_lost_what_is_known_is_finite_and_within_a_switch(
    periods: list[dict[str, float]],
) -> None:
    work = Work()
    for losses in periods:
        work = work.update(losses, cost)
        assert set(work.lost) == set(losses)
        # Sums of losses of up to 1e12 are exact to some ten thousandths.
        assert all(0.0 <= lost <= 2.001 or len(losses) < 2 for lost in work.lost.values())
        assert all(math.isfinite(lost) for lost in work.lost.values())


@pytest.mark.parametrize("loss", [math.inf, math.nan, -math.inf])
def test_a_loss_that_is_no_number_is_made_up_for_soon(loss: float) -> None:
    work = Work().update({"a": loss, "b": 0.5}, cost).update({"a": loss, "b": loss}, cost)
    for _ in range(10):
        work = work.update({"a": 0.0, "b": 1.0}, cost)
    assert work.lead("a", "b") == 2.0
