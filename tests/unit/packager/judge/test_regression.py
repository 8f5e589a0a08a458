"""Root mean square error and R2: known figures, and those of scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import mean_squared_error, r2_score

from packager.judge.choice import resolve_metric
from packager.judge.comparison import compare
from packager.judge.evidence import evidence
from runtime_adapters.protocol import Tensors

REFERENCE = {"y": np.array([[1.0], [2.0], [3.0], [4.0]], np.float32)}
TARGETS = np.array([1.0, 2.0, 3.0, 5.0])


def test_known_root_mean_square_errors() -> None:
    worse = {"y": REFERENCE["y"] + np.array([[0], [0], [0], [-2]], np.float32)}
    accuracy = compare(worse, REFERENCE, TARGETS, "rmse").accuracy
    assert (accuracy.value, accuracy.reference) == (1.5, 0.5)
    assert accuracy.retention == pytest.approx(1 / 3)
    accuracy = compare(worse, REFERENCE, None, "rmse").accuracy
    assert (accuracy.value, accuracy.reference) == (1.0, 0.0)
    assert accuracy.retention == pytest.approx(1 - 1 / 7.5**0.5), "the root mean square is 7.5^0.5"
    assert accuracy.agreement is None, "numbers have no top answer"


def test_known_coefficients_of_determination() -> None:
    accuracy = compare(REFERENCE, REFERENCE, TARGETS, "r2").accuracy
    assert accuracy.value == pytest.approx(1 - 1 / 8.75)
    assert accuracy.retention == 1.0
    mean = {"y": np.full((4, 1), 2.75)}
    assert compare(mean, REFERENCE, TARGETS, "r2").accuracy.value == pytest.approx(0.0)
    assert compare(REFERENCE, REFERENCE, None, "r2").accuracy.value == 1.0
    assert compare(mean, REFERENCE, None, "r2").accuracy.retention == pytest.approx(0.0, abs=0.06)


def test_equal_targets_have_a_coefficient_too() -> None:
    flat = {"y": np.full((4, 1), 0.1, np.float32)}
    assert compare(flat, flat, None, "r2").accuracy.value == 1.0
    assert compare(REFERENCE, flat, None, "r2").accuracy.value == 0.0


@given(st.integers(0, 2**32 - 1), st.integers(2, 30), st.sampled_from([1, 3, 64]))
def test_each_number_of_a_sample_is_a_quantity(seed: int, samples: int, columns: int) -> None:
    rng = np.random.default_rng(seed)
    targets = rng.normal(1000.0, 1.0, size=(samples, columns))
    answers = {"y": targets + rng.normal(size=targets.shape)}
    found = compare(answers, answers, targets, "r2").accuracy.value
    assert found == pytest.approx(r2_score(targets, answers["y"]), rel=1e-6, abs=1e-6)
    found = compare(answers, answers, targets, "rmse").accuracy.value
    assert found == pytest.approx(mean_squared_error(targets, answers["y"]) ** 0.5)


@pytest.mark.parametrize("shape", [(30, 65), (30, 4, 5)])
def test_a_vector_or_an_image_is_one_quantity(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    targets = rng.normal(size=shape)
    answers = {"y": targets + 0.3 * rng.normal(size=shape)}
    found = compare(answers, answers, targets, "r2").accuracy.value
    assert found == pytest.approx(r2_score(targets.reshape(-1), answers["y"].reshape(-1)))


def drawn(seed: int) -> tuple[Tensors, Tensors, np.ndarray]:
    rng = np.random.default_rng(seed)
    targets = rng.normal(size=(60, 3))
    reference = targets + 0.5 * rng.normal(size=targets.shape)
    return {"y": reference + 0.3 * rng.normal(size=targets.shape)}, {"y": reference}, targets


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("metric", ["rmse", "r2"])
def test_the_standard_error_is_the_scatter_over_other_samples(metric: str, labelled: bool) -> None:
    retained, errors = [], []
    for seed in range(60):
        answers, reference, targets = drawn(seed)
        labels = targets if labelled else None
        retained.append(compare(answers, reference, labels, metric).accuracy.retention)
        if seed < 10:
            errors.append(evidence(answers, reference, labels, metric).standard_error)
    assert np.mean([e for e in errors if e is not None]) == pytest.approx(
        float(np.std(retained)), rel=0.35
    )


@pytest.mark.parametrize("text", ["rmse,output=b:0", "b:0=rmse"])
def test_another_output_can_be_named(text: str) -> None:
    two = {"a": REFERENCE["y"], "b:0": 2 * REFERENCE["y"]}
    metric = resolve_metric(text, two, None)
    assert metric == "rmse,output=b:0"
    other = {"a": REFERENCE["y"] + 1, "b:0": 2 * REFERENCE["y"]}
    accuracy = compare(other, two, None, metric).accuracy
    assert (accuracy.metric, accuracy.value) == ("rmse", 0.0)
