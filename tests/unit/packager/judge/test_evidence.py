"""What samples tell of chance: counts of right answers, and errors that hold for new samples."""

from __future__ import annotations

import numpy as np
import pytest

from packager.judge.comparison import compare
from packager.judge.evidence import GROUPS, evidence
from runtime_adapters.protocol import Tensor, Tensors


def drawn(seed: int, samples: int = 60) -> tuple[Tensors, Tensors, Tensor]:
    """Return answers of a variant, those of the reference, and targets."""
    rng = np.random.default_rng(seed)
    targets = rng.normal(size=(samples, 3))
    reference = targets + 0.5 * rng.normal(size=targets.shape)
    return {"y": reference + 0.2 * rng.normal(size=targets.shape)}, {"y": reference}, targets


def test_right_answers_are_counted_in_pairs() -> None:
    labels = np.array([0, 0, 0, 1, 1, 1])
    reference = {"s": np.eye(2)[[0, 0, 0, 1, 1, 0]]}
    answers = {"s": np.eye(2)[[0, 0, 1, 1, 0, 1]]}
    found = evidence(answers, reference, labels, "top1")
    assert found.right == (3, 1, 2, 0)
    assert found.agreed == 3
    found = evidence(answers, reference, None, "agreement")
    assert found.right == (3, 0, 3, 0)
    some = {"s": answers["s"][[2, 5]]}
    found = evidence(some, reference, labels, "top1", indices=[2, 5, 1])
    assert (found.right, found.agreed) == ((0, 1, 1, 0), 0)


def test_places_of_a_dense_output_have_a_standard_error() -> None:
    rng = np.random.default_rng(0)
    scores = {"s": rng.normal(size=(40, 9, 4))}
    other = {"s": scores["s"] + 0.3 * rng.normal(size=(40, 9, 4))}
    found = evidence(other, scores, rng.integers(0, 4, (40, 9)), "top1")
    assert found.right is None
    assert found.agreed is None, "a sample has nine answers"
    assert found.standard_error is not None
    assert found.degrees == 39


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("metric", ["mae", "cosine"])
def test_the_standard_error_is_the_scatter_over_other_samples(metric: str, labelled: bool) -> None:
    errors: list[float] = []
    retained: list[float] = []
    for seed in range(60):
        answers, reference, targets = drawn(seed)
        labels = targets if labelled else None
        retained.append(compare(answers, reference, labels, metric).accuracy.retention)
        if seed < 10:
            error = evidence(answers, reference, labels, metric).standard_error
            assert error is not None
            errors.append(error)
    assert np.mean(errors) == pytest.approx(float(np.std(retained)), rel=0.35)


def mean_error(outputs: Tensors, labels: Tensor | None) -> float:
    assert labels is not None
    return -float(np.abs(outputs["y"] - labels).mean())


def test_a_users_function_has_a_standard_error_too() -> None:
    answers, reference, targets = drawn(1, samples=200)
    found = evidence(answers, reference, targets, "my:own", function=mean_error)
    assert found.degrees == GROUPS - 1
    errors: list[float] = []
    for seed in range(10):
        answers, reference, targets = drawn(seed, samples=200)
        found = evidence(answers, reference, targets, "my:own", function=mean_error)
        assert found.standard_error is not None
        errors.append(found.standard_error)
    retained = [
        compare(*drawn(seed, samples=200), "my:own", function=mean_error).accuracy.retention
        for seed in range(60)
    ]
    assert np.mean(errors) == pytest.approx(float(np.std(retained)), rel=0.4)


def only_all(outputs: Tensors, _labels: Tensor | None) -> float:
    return 1.0 / float(len(outputs["y"]) == 60)


def test_no_error_is_made_up_where_samples_tell_none() -> None:
    answers, reference, targets = drawn(2)
    found = evidence(answers, reference, targets, "my:own", function=only_all)
    assert found.standard_error is None
    one = {"y": answers["y"][:1]}
    assert evidence(one, {"y": reference["y"][:1]}, None, "mae").standard_error is None


def test_equal_answers_give_equal_evidence() -> None:
    answers, reference, targets = drawn(3)
    first = evidence(answers, reference, targets, "mae")
    assert first == evidence(answers, reference, targets, "mae")
    assert first.standard_error != evidence(answers, reference, None, "mae").standard_error
