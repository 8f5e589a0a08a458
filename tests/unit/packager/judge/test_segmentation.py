"""The mean intersection over union, and the axis of the classes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import jaccard_score

from packager.errors import DataError
from packager.judge.choice import reason_of, resolve_metric
from packager.judge.comparison import compare
from packager.judge.evidence import evidence
from runtime_adapters.protocol import Tensor


def scores(masks: Tensor, classes: int, axis: int) -> Tensor:
    """Return scores whose greatest are at the classes of masks."""
    found: Tensor = np.moveaxis(np.eye(classes, dtype=np.float32)[masks], -1, axis)
    return found


TRUTH = np.array([[[0, 0, 1, 255], [1, 2, 255, 255]]] * 8)
FOUND = np.array([[[0, 1, 1, 0], [1, 2, 2, 2]]] * 8)


@pytest.mark.parametrize("axis", [1, 3])
def test_a_known_mean_intersection_over_union(axis: int) -> None:
    outputs = {"masks": scores(FOUND, 3, axis)}
    metric = resolve_metric("miou", outputs, TRUTH)
    assert metric == f"miou,axis={axis}"
    # Class 0: 1 of 2; class 1: 2 of 3; class 2: 1 of 1, because the void place does not count.
    accuracy = compare(outputs, outputs, TRUTH, metric).accuracy
    assert accuracy.value == pytest.approx((1 / 2 + 2 / 3 + 1) / 3)
    assert (accuracy.metric, accuracy.retention, accuracy.agreement) == ("miou", 1.0, None)


def test_masks_count_as_one_set_of_places() -> None:
    """The union of a class is that of all samples, not the mean of the samples' ratios."""
    truth = np.array([[[0, 0], [0, 1]], [[0, 0], [0, 0]]])
    found = np.array([[[0, 0], [0, 0]], [[0, 0], [0, 0]]])
    outputs = {"masks": scores(found, 3, 1)}
    value = compare(outputs, outputs, truth, "miou,axis=1").accuracy.value
    assert value == pytest.approx((7 / 8 + 0) / 2), "a class that never occurs does not count"


@given(st.integers(0, 2**32 - 1), st.integers(2, 6), st.integers(1, 4))
def test_the_figure_is_that_of_scikit_learn(seed: int, classes: int, samples: int) -> None:
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, classes, (samples, 3, 7))
    found = rng.integers(0, classes, truth.shape)
    outputs = {"masks": scores(found, classes, 3)}
    wanted = jaccard_score(truth.reshape(-1), found.reshape(-1), average="macro")
    value = compare(outputs, outputs, truth, "miou,axis=3").accuracy.value
    assert value == pytest.approx(wanted)


def test_the_reference_is_the_truth_where_there_are_no_masks() -> None:
    reference = {"masks": scores(np.where(TRUTH == 255, FOUND, TRUTH), 3, 1)}
    metric = resolve_metric("miou,axis=1", reference, None)
    accuracy = compare({"masks": scores(FOUND, 3, 1)}, reference, None, metric).accuracy
    assert accuracy.reference == 1.0
    assert accuracy.value == accuracy.retention == pytest.approx((2 / 3 + 2 / 3 + 1) / 3)


def test_an_output_may_hold_the_classes_themselves() -> None:
    outputs = {"masks": FOUND}
    metric = resolve_metric("auto", outputs, TRUTH)
    assert metric == "miou,axis=numbers"
    assert compare(outputs, outputs, TRUTH, metric).accuracy.value == pytest.approx(13 / 18)
    wide = {"masks": FOUND[:, None]}
    assert resolve_metric("miou", wide, TRUTH[:, None]) == "miou,axis=numbers"


def test_auto_takes_integers_of_the_output_s_places_for_masks() -> None:
    outputs = {"features": np.zeros((8, 4), np.int64), "masks": scores(FOUND, 3, 1)}
    metric = resolve_metric("auto", outputs, TRUTH.astype(np.uint8))
    assert metric == "miou,axis=1,output=masks"
    assert "which has its classes on axis 1" in reason_of(metric, outputs, TRUTH)
    assert resolve_metric("auto", {"m": scores(FOUND, 3, 3)}, TRUTH[..., None]) == "miou,axis=3"


@pytest.mark.parametrize(
    ("metric", "shape", "labels", "text"),
    [
        ("miou", (8, 4, 4, 4), np.zeros((8, 4, 4), int), "more than one axis fits.*axis=1"),
        ("auto", (8, 4, 4, 4), np.zeros((8, 4, 4), int), "more than one axis fits.*axis=1"),
        ("miou", (8, 6, 4, 4), None, "no axis fits.*no labels.*axis=-1"),
        ("miou", (8, 3, 4, 4), np.zeros((8, 5, 4), int), "no axis fits"),
        ("miou", (8, 3, 4, 4), np.zeros((8, 4, 4)), "no axis fits.*float64"),
        ("miou", (8, 3), np.zeros(8, int), "no axis fits"),
        ("miou", (8, 1, 4, 4), np.zeros((8, 4, 4), int), "no axis fits"),
        ("miou,axis=2", (8, 3, 4, 4), np.zeros((8, 4, 4), int), "masks of class numbers"),
        ("miou,axis=7", (8, 3, 4, 4), np.zeros((8, 4, 4), int), "no axis fits"),
        ("miou", (8, 3, 4, 4), np.full((8, 4, 4), 3), "go from 0 to 2, and 255 is ignored"),
        ("miou", (8, 3, 4, 4), np.full((8, 4, 4), 255), "every place of the masks is 255"),
        ("miou,axis=x", (8, 3, 4, 4), None, "there is no option 'axis=x'"),
        ("miou,axis=numbers", (8, 3, 4, 4), None, "no axis fits"),
        ("miou,output=z", (8, 3, 4, 4), None, "the model has no output 'z'"),
    ],
)
def test_masks_that_do_not_fit_are_refused(
    metric: str, shape: tuple[int, ...], labels: Tensor | None, text: str
) -> None:
    with pytest.raises(DataError) as caught:
        resolve_metric(metric, {"masks": np.zeros(shape, np.float32)}, labels)
    told = f"{caught.value} {caught.value.remedy}"
    assert "\n" not in told
    assert all(part in told for part in text.split(".*"))


def test_another_number_may_mark_places_without_a_class() -> None:
    outputs = {"masks": scores(FOUND, 3, 1)}
    masks = np.where(TRUTH == 255, -1, TRUTH)
    metric = resolve_metric("miou,ignore=-1", outputs, masks)
    assert compare(outputs, outputs, masks, metric).accuracy.value == pytest.approx(13 / 18)


def test_the_standard_error_is_the_scatter_over_other_samples() -> None:
    retained, errors = [], []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        truth = rng.integers(0, 3, (40, 5, 6))
        right = scores(truth, 3, 1)
        reference = {"m": right + 0.5 * rng.normal(size=right.shape)}
        answers = {"m": reference["m"] + 0.5 * rng.normal(size=right.shape)}
        retained.append(compare(answers, reference, truth, "miou,axis=1").accuracy.retention)
        if seed < 10:
            found = evidence(answers, reference, truth, "miou,axis=1")
            assert found.degrees == 39
            errors.append(found.standard_error or 0.0)
    assert np.mean(errors) == pytest.approx(float(np.std(retained)), rel=0.35)
