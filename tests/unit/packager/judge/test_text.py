"""Error rates of decoded text and perplexity: known figures and bad labels."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packager.errors import DataError
from packager.judge.choice import resolve_metric
from packager.judge.comparison import compare
from packager.judge.evidence import evidence
from packager.judge.metrics import retention
from packager.judge.text import decoded
from runtime_adapters.protocol import Tensor


def steps(tokens: list[list[int]], count: int = 5) -> Tensor:
    """Return scores whose best token of each step is given."""
    found: Tensor = np.eye(count, dtype=np.float32)[np.array(tokens)]
    return found


def test_repeats_are_merged_and_blanks_dropped() -> None:
    scores = steps([[0, 1, 1, 0, 1, 2, 2, 0], [0, 0, 0, 0, 0, 0, 0, 0], [4, 4, 4, 3, 3, 0, 3, 1]])
    assert decoded(scores, {}) == [[1, 1, 2], [], [4, 3, 3, 1]]
    assert decoded(scores, {"blank": "1"})[0] == [0, 0, 2, 0]
    tokens = np.array([[3, 3, 0, 2, -1], [1, 2, 2, -100, -100]])
    assert decoded(tokens, {}) == [[3, 3, 0, 2], [1, 2, 2]]
    assert decoded(tokens, {"end": "2"}) == [[3, 3, 0], [1]]


def test_known_error_rates() -> None:
    answers = {"text": steps([[1, 1, 0, 1, 3, 0, 4], [2, 0, 0, 0, 0, 0, 0]])}
    labels = np.array([[1, 1, 3, 2], [2, 3, -1, -1]])  # one wrong of four, one missing of two
    metric = resolve_metric("cer", answers, labels)
    accuracy = compare(answers, answers, labels, metric).accuracy
    assert accuracy.value == pytest.approx(2 / 6), "of all tokens, not the mean of the samples"
    assert (accuracy.metric, accuracy.retention, accuracy.agreement) == ("cer", 1.0, None)
    # With 3 between the words: 1 1 | 4 for 1 1 | 2, and 2 for 2.
    accuracy = compare(answers, answers, labels, "wer,space=3").accuracy
    assert accuracy.value == pytest.approx(1 / 3)
    assert compare(answers, answers, labels, "wer").accuracy.value == pytest.approx(2 / 6)


def test_retention_of_errors_is_that_of_what_is_right() -> None:
    assert retention("wer", 0.10, 0.05) == pytest.approx(0.90 / 0.95)
    assert retention("wer", 0.01, 0.0) == pytest.approx(0.99)
    assert retention("cer", 1.5, 0.0) == 0.0
    assert retention("cer", 0.2, 0.2) == 1.0


def test_the_reference_s_text_is_the_truth_without_labels() -> None:
    reference = {"text": np.array([[1, 2, 3, 4], [4, 3, 2, 1]])}
    answers = {"text": np.array([[1, 2, 3, 3], [4, 3, 2, 1]])}
    accuracy = compare(answers, reference, None, resolve_metric("cer", reference, None)).accuracy
    assert (accuracy.value, accuracy.reference, accuracy.retention) == (0.125, 0.0, 0.875)


@given(st.lists(st.lists(st.integers(0, 3), max_size=6), min_size=1, max_size=5))
def test_a_rate_is_that_of_all_tokens_wrong_at_most(rows: list[list[int]]) -> None:
    padded = np.array([row + [-1] * (6 - len(row)) for row in rows])
    same = {"text": padded}
    assert compare(same, same, None, "cer").accuracy.value == 0.0
    nothing = {"text": np.full(padded.shape, -1)}
    lost = compare(nothing, same, None, "cer").accuracy.value
    assert lost == (1.0 if any(rows) else 0.0)


def test_known_perplexities() -> None:
    logits = np.log(np.array([[[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]] * 8)) + 3.0
    labels = np.array([[0, 1]] * 4 + [[1, -100]] * 4)
    metric = resolve_metric("perplexity", {"logits": logits}, labels)
    assert metric == "perplexity,scores=logits"
    wanted = math.exp(-(4 * math.log(0.5) + 4 * math.log(0.8) + 4 * math.log(0.25)) / 12)
    accuracy = compare({"logits": logits}, {"logits": logits}, labels, metric).accuracy
    assert accuracy.value == pytest.approx(wanted)
    chances = {"p": np.exp(logits - 3.0)}
    metric = resolve_metric("perplexity", chances, labels)
    assert metric == "perplexity,scores=probabilities"
    assert compare(chances, chances, labels, metric).accuracy.value == pytest.approx(wanted)
    flat = {"logits": np.zeros_like(logits)}
    accuracy = compare(flat, {"logits": logits}, labels, "perplexity").accuracy
    assert accuracy.value == pytest.approx(3.0)
    assert accuracy.retention == pytest.approx(wanted / 3.0)


def test_a_token_that_a_variant_rules_out_leaves_its_perplexity_finite() -> None:
    logits = np.zeros((8, 1, 3), np.float32)
    logits[0, 0, 1] = -np.inf
    labels = np.ones((8, 1), int)
    found = compare({"l": logits}, {"l": logits}, labels, "perplexity").accuracy
    assert math.isfinite(found.value)


@pytest.mark.parametrize(
    ("metric", "values", "labels", "text"),
    [
        ("wer", np.zeros((8, 4), np.float32), None, "tokens are needed"),
        ("cer", np.zeros((8, 4, 3), np.float32), np.zeros((8, 4)), "padded with -1"),
        ("cer", np.zeros((8, 4, 3), np.float32), np.full((8, 4), 3), "labels go up to 3"),
        ("cer", np.zeros((8, 4), int), np.full((8, 4), -1), "the labels hold no token"),
        ("perplexity", np.zeros((8, 4, 3), np.float32), None, "there are no labels"),
        ("perplexity", np.zeros((8, 4, 3), np.float32), np.zeros((8, 5), int), "[8, 4]"),
        ("perplexity", np.zeros((8, 4, 3), np.float32), np.full((8, 4), 3), "tokens from 0 to 2"),
        ("perplexity", np.zeros((8, 1)), np.zeros(8, int), "no output holds class scores"),
    ],
)
def test_what_is_no_text_is_refused(
    metric: str, values: Tensor, labels: Tensor | None, text: str
) -> None:
    with pytest.raises(DataError) as caught:
        resolve_metric(metric, {"text": values}, labels)
    assert text in str(caught.value)


@pytest.mark.parametrize("metric", ["cer", "perplexity,scores=logits"])
def test_the_standard_error_is_the_scatter_over_other_samples(metric: str) -> None:
    retained, errors = [], []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        labels = rng.integers(1, 5, (60, 6))
        right = 3 * np.eye(5)[labels]
        reference = {"t": right + rng.normal(size=right.shape)}
        answers = {"t": reference["t"] + rng.normal(size=right.shape)}
        retained.append(compare(answers, reference, labels, metric).accuracy.retention)
        if seed < 10:
            errors.append(evidence(answers, reference, labels, metric).standard_error or 0.0)
    assert np.mean(errors) == pytest.approx(float(np.std(retained)), rel=0.35)
