"""The decisions of a repair: what ranks first, what is tried next, when it ends."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packager.runtimes.onnxruntime.repair_search import Group, next_count, rank, relative_noise

A, B, C = Group(("conv", "relu")), Group(("add",)), Group(("gemm",))


def test_the_noisiest_group_ranks_first_and_what_was_not_measured_last() -> None:
    ranking = rank([A, B, C], {B: 0.5, C: 1e-3})
    assert [blame.nodes for blame in ranking] == [("add",), ("gemm",), ("conv", "relu")]
    assert ranking[1].sqnr_db == pytest.approx(30.0)
    assert ranking[2].sqnr_db == math.inf


def test_a_group_that_makes_nan_ranks_above_all() -> None:
    assert rank([A, B], {A: 3.0, B: math.inf})[0].nodes == ("add",)


@given(least=st.integers(1, 200), most=st.integers(1, 200))
def test_the_search_finds_the_least_number_in_few_trials(least: int, most: int) -> None:
    tried = {0: False}
    while (count := next_count(tried, most)) is not None:
        assert 1 <= count <= most
        assert count not in tried
        tried[count] = count >= least
    found = [count for count, enough in tried.items() if enough]
    assert (min(found) == least) if least <= most else (not found and most in tried)
    assert len(tried) <= 2 * math.log2(most) + 4


def test_nothing_is_tried_where_nothing_may_stay_in_float() -> None:
    assert next_count({0: False}, 0) is None


def test_noise_is_relative_to_the_signal_of_each_output() -> None:
    reference = {"a": np.full((2, 2), 10.0, np.float32), "b": np.full((2, 1), 0.1, np.float32)}
    assert relative_noise(reference, reference) == 0.0
    worse = {"a": reference["a"] * np.float32(1.1), "b": reference["b"]}
    assert relative_noise(worse, reference) == pytest.approx(0.01, rel=1e-3)
    worse["b"] = reference["b"] * np.float32(1.1)
    assert relative_noise(worse, reference) == pytest.approx(0.02, rel=1e-3)


def test_an_answer_that_is_not_a_number_is_infinite_noise() -> None:
    reference = {"a": np.ones((2, 2), np.float32)}
    assert relative_noise({"a": np.full((2, 2), np.nan, np.float32)}, reference) == math.inf
    assert relative_noise({"a": np.ones((2, 2))}, {"a": np.zeros((2, 2))}) == math.inf


def test_what_is_infinite_in_the_reference_is_not_compared() -> None:
    reference = {"a": np.array([[1.0, -np.inf]], np.float32)}
    assert relative_noise({"a": np.array([[1.0, 0.0]], np.float32)}, reference) == 0.0
