"""Two variants on the same samples: published figures, and what must hold for all counts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.quantizers.paired import compare_paired, paired


def test_published_paired_figures() -> None:
    # The help page of ci.prop.ps in the R package statpsych, by one of the method's authors.
    found = paired(26, 4, 48)
    assert (found.low, found.high) == pytest.approx((0.2548067, 0.6251933), abs=1e-7)
    # The airway data of the review of 2014: exact test 0.0703.
    assert paired(1, 7, 21).p_value == pytest.approx(0.0703, abs=5e-5)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=200))
def test_paired_figures_are_consistent(pairs: list[tuple[bool, bool]]) -> None:
    first, second = [one for one, _ in pairs], [other for _, other in pairs]
    found, swapped = compare_paired(first, second), compare_paired(second, first)
    assert found.difference == pytest.approx(np.mean(first) - np.mean(second))
    assert -1 <= found.low <= found.high <= 1
    assert found.low == pytest.approx(-swapped.high)
    assert found.p_value == swapped.p_value
    assert 0 < found.p_value <= 1
    unlike = found.first_only + found.second_only
    fewer = min(found.first_only, found.second_only)
    tail = sum(math.comb(unlike, k) for k in range(fewer + 1)) / 2**unlike
    assert found.p_value == pytest.approx(min(1.0, 2 * tail))


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    shares = [0.85, 0.05, 0.03, 0.07]  # both right, the first alone, the second alone, none
    draws = np.random.default_rng(5).multinomial(300, shares, 4000)
    found = [paired(int(first), int(second), 300) for _, first, second, _ in draws]
    held = np.mean([each.low <= 0.02 <= each.high for each in found])
    assert 0.94 <= held <= 0.97


def test_many_samples_do_not_take_long() -> None:
    found = compare_paired(np.arange(100_000) % 3 == 0, np.arange(100_000) % 5 == 0)
    assert found.p_value < 1e-100


@pytest.mark.parametrize("counts", [(0, 0, 0), (2, 2, 3)])
def test_impossible_counts_are_the_callers_mistake(counts: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="unlike answers"):
        paired(*counts)
