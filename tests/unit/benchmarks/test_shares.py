"""Qualities of models, and their differences on the same samples."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.quantizers.paired import compare_paired
from benchmarks.quantizers.qualities import (
    dice,
    found_pixels,
    right_characters,
    right_class,
    total,
)
from benchmarks.quantizers.shares import difference


def test_a_class_is_right_or_wrong() -> None:
    scores = np.array([[0.1, 0.7, 0.2]])
    assert right_class(scores, np.array(1)) == (1.0, 1.0)
    assert right_class(scores, np.array(2)) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("path", "right"),
    [
        ([1, 1, 0, 1, 2, 0], 3),  # repeats are one character, a blank between makes two
        ([1, 0, 1], 2),
        ([1, 0, 3, 2], 2),  # one exchanged
        ([0, 0, 0], 0),
        ([3, 4, 3, 4, 3, 4, 3], -4),  # more edits than characters
    ],
)
def test_characters_are_read_along_the_best_path(path: list[int], right: int) -> None:
    label = np.array([1, 1, 2, -1, -1])
    assert right_characters(np.eye(5)[path][None], label) == (right, 3)


def test_pixels_count_where_both_name_them() -> None:
    answer = np.array([[[[0.9, 0.31], [0.29, 0.0]]]])
    label = np.array([[1, 0], [1, 0]])
    assert found_pixels(answer, label) == (2.0, 4.0)
    assert dice({"map": np.concatenate([answer, answer])}, np.stack([label, label])) == 0.5


def test_right_and_wrong_answers_are_compared_by_their_pairs() -> None:
    first = [(1.0, 1.0)] * 8 + [(0.0, 1.0)] * 2
    second = [(1.0, 1.0)] * 5 + [(0.0, 1.0)] * 5
    found = difference(first, second)
    pairs = compare_paired([p[0] > 0 for p in first], [p[0] > 0 for p in second])
    assert found == (pairs.difference, pairs.low, pairs.high, pairs.p_value)


def test_the_interval_of_parts_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(91)
    held = 0
    for _ in range(200):
        lengths = rng.integers(2, 20, 200).astype(float)
        lost = rng.binomial(lengths.astype(int), 0.05)
        more = rng.binomial(lengths.astype(int), 0.02)
        second = [(n - k, n) for n, k in zip(lengths, lost, strict=True)]
        first = [(n - k - m, n) for n, k, m in zip(lengths, lost, more, strict=True)]
        found = difference(first, second)
        assert found.value == pytest.approx(total(first) - total(second))
        held += found.low <= -0.02 <= found.high
    assert 180 <= held <= 198, held
