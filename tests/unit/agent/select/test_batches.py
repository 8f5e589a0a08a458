"""How many requests come at once: pairs beyond chance, and what bounds them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.select.batches import MOST_SHOWN, WINDOW_S, Batches, Together, together


def test_pairs_by_chance_are_as_many_as_the_time_holds() -> None:
    # Two of four within a second come within a tenth with a probability of a tenth.
    known = Batches().update(Together(requests=4.0, pairs=0.6), 4.0, 1.0)
    assert known.pairs == pytest.approx(0.0)
    known = Batches().update(Together(requests=4.0, pairs=0.6, within_s=0.01), 4.0, 1.0)
    assert known.pairs == pytest.approx((0.6 - 0.06) / 0.99)
    known = Batches().update(Together(requests=10.0, pairs=45.0), 10.0, 0.1)
    assert known.pairs == 0.0, "in so short a time all come together"
    assert together([0.0, 0.09, 0.11, 0.31, 0.32, 0.33]) == Together(requests=6.0, pairs=4.0)
    assert together([]) == Together(requests=0.0, pairs=0.0)
    assert WINDOW_S == 0.1


def test_what_was_not_seen_changes_nothing_but_fades() -> None:
    known = Batches().update(Together(requests=4.0, pairs=6.0), 4.0, 1.0)
    later = known.update(None, 4.0, 3600.0)
    assert later.mean == pytest.approx(known.mean)
    assert later.requests == pytest.approx(known.requests / math.e)


seen = st.builds(
    Together, requests=st.floats(0.0, 1e6), pairs=st.floats(0.0, 1e12),
    within_s=st.floats(0.0, WINDOW_S),
)  # fmt: skip


@given(
    st.lists(st.tuples(st.none() | seen, st.floats(0.0, 1e6), st.floats(1e-6, 1e7)), max_size=30)
)
def test_whatever_is_seen_the_size_is_a_number_and_the_memory_bounded(
    shown: list[tuple[Together | None, float, float]],
) -> None:
    known = Batches()
    for told, usual, period_s in shown:
        known = known.update(told, usual, period_s)
        assert 0.0 < known.requests <= MOST_SHOWN * (1.0 + 1e-9)
        assert 1.0 <= known.mean < math.inf
