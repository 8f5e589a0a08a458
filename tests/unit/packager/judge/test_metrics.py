"""Metrics, what they keep of the reference, and whether two variants really differ."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packager.errors import DataError
from packager.judge.choice import doubtful_labels, reason_of, resolve_metric
from packager.judge.comparison import agreeing, check_answers, compare, measured
from packager.judge.metrics import MAX_RETENTION, METRICS, quality, retention
from packager.judge.sums import Sums
from packager.plan.figures import ABSOLUTE_FLOOR, HEADROOM
from runtime_adapters.protocol import Tensor, Tensors
from wire.package.accuracy import Accuracy


def per_sample(metric: str, answers: Tensors, reference: Tensors, labels: Tensor) -> Tensor:
    """Return the share of each sample."""
    found = measured(metric, answers, reference, labels)
    assert isinstance(found, Sums)
    return found.table[:, 0]


SCORES = {"s": np.array([[3.0, 1.0], [0.0, 2.0], [1.0, 0.5], [5.0, 4.0]], np.float32)}
LABELS = np.array([0, 1, 0, 1])
finite = st.floats(min_value=-1e6, max_value=1e6)


def test_the_reference_compared_with_itself_is_exact() -> None:
    accuracy = compare(SCORES, SCORES, LABELS, "top1").accuracy
    assert (accuracy.value, accuracy.reference, accuracy.retention) == (0.75, 0.75, 1.0)
    assert (accuracy.agreement, accuracy.worst_error, accuracy.sqnr_db) == (1.0, 0.0, None)
    assert accuracy.samples == 4


@pytest.mark.parametrize(
    "metric", ["top1", "top5", "agreement", "mae", "rmse", "r2", "cosine", "perplexity"]
)
@pytest.mark.parametrize("labelled", [True, False])
def test_every_metric_finds_the_reference_as_good_as_itself(metric: str, labelled: bool) -> None:
    rng = np.random.default_rng(0)
    reference = {"s": rng.normal(size=(50, 7)).astype(np.float32)}
    labels: Tensor | None = None
    if METRICS[metric].labels == "needed":
        labels = rng.integers(0, 7, 50)
    elif labelled:
        labels = rng.normal(size=(50, 7))
    if METRICS[metric].labels != "unused":
        metric = resolve_metric(metric, reference, labels)
    accuracy = compare(reference, reference, labels, metric).accuracy
    assert accuracy.value == accuracy.reference
    assert accuracy.retention == 1.0


def test_retention_can_fall_while_errors_are_named() -> None:
    worse = {"s": SCORES["s"].copy()}
    worse["s"][0] = [1.0, 1.5]
    comparison = compare(worse, SCORES, LABELS, "top1")
    assert comparison.accuracy.retention == pytest.approx(2 / 3)
    assert comparison.accuracy.agreement == 0.75
    assert comparison.worst_errors == {"s": 2.0}
    assert comparison.tolerances()["s"].absolute == HEADROOM * 2.0 + ABSOLUTE_FLOOR


def test_sqnr_is_in_decibels() -> None:
    noisy = {"s": SCORES["s"] * np.float32(1.1)}
    assert compare(noisy, SCORES, None, "agreement").accuracy.sqnr_db == pytest.approx(20, abs=0.1)


def test_each_output_has_a_scale_of_its_own_and_numbers_of_classes_have_none() -> None:
    reference: Tensors = {
        "label": np.arange(4, dtype=np.int64),
        "boxes": np.full((4, 2), 1000.0, np.float32),
        "s": SCORES["s"],
    }
    answers = {**reference, "label": np.array([0, 1, 2, 9]), "s": SCORES["s"] * np.float32(1.1)}
    found = compare(answers, reference, None, "agreement,output=s").accuracy
    assert found.sqnr_db == pytest.approx(20, abs=0.1)
    assert found.worst_error == pytest.approx(0.1 * float(np.abs(SCORES["s"]).max()), rel=1e-3)
    numbers = {"label": reference["label"]}
    assert compare({"label": answers["label"]}, numbers, None, "mae").accuracy.worst_error == 6


def test_nan_is_worthless_and_shapes_must_agree() -> None:
    broken = {"s": SCORES["s"].copy()}
    broken["s"][2, 1] = np.nan
    with pytest.raises(DataError, match="NaN"):
        compare(broken, SCORES, LABELS, "top1")
    masked = {"s": SCORES["s"].copy()}
    masked["s"][2, 1] = -np.inf
    with pytest.raises(DataError, match="NaN"):
        compare(broken, masked, LABELS, "top1")
    with pytest.raises(DataError, match="NaN or infinity"):
        compare(masked, SCORES, LABELS, "top1")
    with pytest.raises(DataError, match="shape"):
        compare({"s": SCORES["s"][:2]}, SCORES, LABELS, "top1")
    with pytest.raises(DataError, match="shape"):
        compare({"t": SCORES["s"]}, SCORES, LABELS, "top1")


def test_a_reference_that_cannot_be_compared_with_is_refused() -> None:
    with pytest.raises(DataError, match="NaN for 1 of 4 evaluation samples"):
        check_answers("s", np.array([[1.0], [np.nan], [2.0], [-np.inf]], np.float32))
    with pytest.raises(DataError, match="cannot be compared"):
        check_answers("s", np.array(["cat", "dog"]))
    check_answers("s", np.array([1, 2]))


@pytest.mark.parametrize("metric", ["top1", "agreement", "cosine", "mae"])
def test_infinity_of_the_reference_is_not_an_error(metric: str) -> None:
    masked = {"s": SCORES["s"].copy()}
    masked["s"][0, 1] = -np.inf
    labels = LABELS if metric == "top1" else None
    accuracy = compare(masked, masked, labels, metric).accuracy
    assert accuracy.worst_error == 0.0
    assert accuracy.retention == 1.0


def test_cosine_of_regressions() -> None:
    values = {"y": np.array([[1.0], [2.0], [-3.0]], np.float32)}
    flipped = {"y": values["y"] * np.array([[1], [1], [-1]], np.float32)}
    assert compare(values, values, None, "cosine").accuracy.value == 1.0
    assert compare(flipped, values, None, "cosine").accuracy.value == pytest.approx(1 / 3)
    zeros = {"y": np.zeros((3, 1), np.float32)}
    assert compare(zeros, zeros, None, "cosine").accuracy.value == 1.0
    assert compare(values, zeros, None, "cosine").accuracy.value == 0.0


def test_mean_absolute_error_with_and_without_targets() -> None:
    reference = {"y": np.array([[1.0], [2.0], [3.0], [4.0]], np.float32)}
    worse = {"y": reference["y"] + np.float32(0.5)}
    targets = np.array([1.25, 2.25, 3.25, 4.25])  # the reference is off by 0.25, so is the variant
    accuracy = compare(worse, reference, targets, "mae").accuracy
    assert (accuracy.value, accuracy.reference, accuracy.retention) == (0.25, 0.25, 1.0)
    accuracy = compare(worse, reference, targets - 0.5, "mae").accuracy
    assert (accuracy.value, accuracy.reference) == (0.75, 0.25)
    assert accuracy.retention == pytest.approx(1 / 3)
    accuracy = compare(worse, reference, None, "mae").accuracy
    assert (accuracy.value, accuracy.reference, accuracy.retention) == (0.5, 0.0, 0.8)


def test_top5_counts_the_label_among_the_five_greatest() -> None:
    scores = {"s": np.tile(np.arange(8, dtype=np.float32)[::-1], (8, 1))}
    labels = np.arange(8)
    assert per_sample("top5", scores, scores, labels).tolist() == [1, 1, 1, 1, 1, 0, 0, 0]
    equal = {"s": np.zeros((8, 8), np.float32)}
    assert compare(equal, equal, labels, "top5").accuracy.value == 5 / 8


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(2, 9))
def test_top1_is_the_share_of_greatest_scores_at_the_label(
    seed: int, samples: int, classes: int
) -> None:
    rng = np.random.default_rng(seed)
    scores = {"s": rng.integers(0, 3, (samples, classes)).astype(np.float32)}  # many ties
    labels = rng.integers(0, classes, samples)
    right = scores["s"].argmax(axis=1) == labels
    assert np.array_equal(per_sample("top1", scores, scores, labels), right)


def test_places_of_a_dense_output_have_labels_each() -> None:
    scores = {"s": np.zeros((2, 4, 3), np.float32)}
    labels = np.array([[0, 0, 0, 1], [0, 0, 2, 2]])
    assert resolve_metric("auto", scores, labels) == "top1"
    assert per_sample("top1", scores, scores, labels).tolist() == [0.75, 0.5]


@pytest.mark.parametrize("metric", ["top1", "agreement", "mae", "rmse", "r2", "cosine"])
def test_a_variant_that_answered_some_samples_is_compared_on_those(metric: str) -> None:
    rng = np.random.default_rng(3)
    reference = {"s": rng.normal(size=(60, 4)).astype(np.float32)}
    answers = {"s": (reference["s"] + rng.normal(size=(60, 4)) * 0.5).astype(np.float32)}
    labels = rng.integers(0, 4, 60) if metric == "top1" else None
    asked = [int(i) for i in rng.permutation(60)[:20]]
    done = asked[:13]
    partial = compare({"s": answers["s"][done]}, reference, labels, metric, indices=asked)
    alone = compare(
        {"s": answers["s"][done]},
        {"s": reference["s"][done]},
        None if labels is None else labels[done],
        metric,
    )
    assert partial == alone
    assert partial.accuracy.samples == 13


@pytest.mark.parametrize("rows", [0, 3])
def test_answers_beyond_what_was_asked_are_refused(rows: int) -> None:
    with pytest.raises(DataError, match=f"{rows} of 2 samples were answered"):
        compare({"s": SCORES["s"][:rows]}, SCORES, LABELS, "top1", indices=[3, 1])


@pytest.mark.parametrize(
    ("wanted", "labels", "shape", "metric"),
    [
        ("auto", LABELS, (4, 3), "top1"),
        ("auto", None, (4, 3), "agreement"),
        ("auto", LABELS, (4, 1), "r2"),
        ("auto", LABELS, (4, 0), "cosine"),
        ("auto", LABELS, (4, 8, 3), "agreement"),
        ("auto", np.zeros(4), (4, 1), "mae"),
        ("auto", np.zeros((4, 3)), (4, 3), "mae"),
        ("auto", np.zeros((4, 5, 2)), (4, 3), "agreement"),
        ("cosine", LABELS, (4, 3), "cosine"),
        ("module:metric", None, (4,), "module:metric"),
    ],
)
def test_the_metric_follows_from_the_data(
    wanted: str, labels: Tensor | None, shape: tuple[int, ...], metric: str
) -> None:
    assert resolve_metric(wanted, {"s": np.zeros(shape, np.float32)}, labels) == metric


@pytest.mark.parametrize(
    ("labels", "shape", "reason"),
    [
        (
            LABELS,
            (4, 3),
            "the labels are int64 of shape [] for each sample, and the output 's' scores 3 classes",
        ),
        (None, (4, 3), "there are no labels; the output 's' scores 3 classes"),
        (
            LABELS,
            (4, 1),
            (
                "the output 's' of shape [1] scores no classes; the labels are int64 of shape [] "
                "for each sample, so they are not used"
            ),
        ),
        (
            np.zeros(4),
            (4, 1),
            (
                "the labels are float64 of shape [] for each sample, which are targets for the "
                "output 's'"
            ),
        ),
        (
            LABELS,
            (4, 8, 3),
            (
                "the labels are int64 of shape [] for each sample, which name no classes, so they "
                "are not used; the output 's' scores 3 classes"
            ),
        ),
    ],
)
def test_auto_says_why_it_chose_a_metric(
    labels: Tensor | None, shape: tuple[int, ...], reason: str
) -> None:
    reference: Tensors = {"s": np.zeros(shape, np.float32)}
    assert reason_of(resolve_metric("auto", reference, labels), reference, labels) == reason


@pytest.mark.parametrize(
    ("wanted", "labels", "shape", "text"),
    [
        ("top1", None, (4, 3), "have no labels"),
        ("agreement", None, (4, 1), "holds class scores"),
        ("top1", LABELS.astype(float), (4, 3), "labels are float64 of shape"),
        ("top1", np.eye(4, 3, dtype=int), (4, 3), "integers of shape"),
        (
            "auto",
            LABELS + 2,
            (4, 3),
            "labels go from 2 to 3, but the model's classes go from 0 to 2",
        ),
        ("top1", LABELS - 1, (4, 3), "labels go from -1 to 0"),
        ("top5", LABELS, (4, 5), "the model has only 5 classes"),
        ("mae", LABELS, (4, 3), "remove the labels"),
        ("mae", np.array([1.0, 2.0, np.nan, 4.0]), (4, 1), "not finite"),
        ("f1", LABELS, (4, 3), "there is no metric 'f1'; use auto, top1"),
    ],
)
def test_a_metric_that_cannot_be_computed_is_refused(
    wanted: str, labels: Tensor | None, shape: tuple[int, ...], text: str
) -> None:
    with pytest.raises(DataError, match=text) as caught:
        resolve_metric(wanted, {"s": np.zeros(shape, np.float32)}, labels)
    assert "\n" not in str(caught.value)


def test_classes_are_looked_for_behind_an_output_of_labels() -> None:
    outputs: Tensors = {"label": np.arange(4), "probabilities": SCORES["s"]}
    assert resolve_metric("auto", outputs, LABELS) == "top1"
    assert compare(outputs, outputs, LABELS, "top1").accuracy.value == 0.75


def test_agreement_is_that_of_the_output_of_the_metric() -> None:
    two = {"a": SCORES["s"], "b": SCORES["s"]}
    other = {"a": SCORES["s"], "b": SCORES["s"][:, ::-1]}
    assert agreeing(other, two, "a").all()
    assert not agreeing(other, two, "b").any()
    assert compare(other, two, LABELS, "top1").accuracy.agreement == 1.0
    assert compare(other, two, LABELS, "top1,output=b").accuracy.agreement == 0.0


def test_one_number_is_judged_by_its_value_and_not_by_its_sign() -> None:
    outputs: Tensors = {"y": np.linspace(1, 2, 20, dtype=np.float32)[:, None]}
    assert resolve_metric("auto", outputs, None) == "r2"
    wrong = {"y": outputs["y"] * np.float32(3)}
    assert compare(wrong, outputs, None, "r2").accuracy.retention == 0.0
    with pytest.raises(DataError, match="one number"):
        resolve_metric("cosine", outputs, None)


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_one_hot_labels_are_refused_with_what_to_give(dtype: type) -> None:
    one_hot = np.eye(SCORES["s"].shape[1], dtype=dtype)[LABELS]
    with pytest.raises(DataError, match="one-hot") as caught:
        resolve_metric("auto", SCORES, one_hot)
    assert "class number" in caught.value.remedy
    targets = one_hot + np.float32(0.5)
    assert resolve_metric("auto", SCORES, targets.astype(np.float32)) == "mae"


def test_labels_that_name_other_classes_are_told() -> None:
    wrong = (SCORES["s"].argmax(axis=1) + 1) % 2
    assert "labels" in doubtful_labels("top1", SCORES, wrong)
    assert not doubtful_labels("top1", SCORES, LABELS)
    assert not doubtful_labels("mae", SCORES, None)


def own(outputs: Tensors, labels: Tensor | None) -> float:
    return float((outputs["s"].argmax(axis=1) == labels).mean()) - 1.0


def test_a_users_metric_is_called_on_both_answers() -> None:
    worse = {"s": SCORES["s"].copy()}
    worse["s"][0] = [1.0, 1.5]
    accuracy = compare(worse, SCORES, LABELS, "my:own", function=own).accuracy
    assert (accuracy.metric, accuracy.value, accuracy.reference) == ("my:own", -0.5, -0.25)
    assert accuracy.retention == 0.0
    assert quality(accuracy) == -0.5
    partial = compare({"s": worse["s"][[1]]}, SCORES, LABELS, "my:own", indices=[1], function=own)
    assert (partial.accuracy.value, partial.accuracy.retention) == (0.0, 1.0)


def spoil(outputs: Tensors, _labels: Tensor | None) -> float:
    outputs["s"][:] = 0
    return 1.0


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda _outputs, _labels: math.nan, "gives nan, which is not a finite number"),
        (lambda _outputs, _labels: None, "failed: TypeError"),
        (lambda outputs, _labels: outputs["t"], "failed: KeyError: 't'"),
        (lambda _outputs, _labels: 1 / 0, "failed: ZeroDivisionError"),
        (spoil, "failed: ValueError: assignment destination is read-only"),
    ],
)
def test_a_users_metric_that_fails_is_told(function: Callable[..., float], text: str) -> None:
    with pytest.raises(DataError, match=text):
        compare(SCORES, SCORES, LABELS, "my:own", function=function)


def test_known_retentions() -> None:
    assert retention("top1", 0.45, 0.9) == 0.5
    assert retention("top1", 0.0, 0.0) == 1.0
    assert retention("my:metric", -3.0, -2.0) == 0.5
    assert retention("my:metric", -1.0, 0.0) == 0.0
    assert retention("mae", 0.5, 0.4) == 0.8
    assert retention("mae", 0.0, 0.4) == MAX_RETENTION
    assert retention("mae", 0.1, 0.0) == 0.0
    assert retention("mae", 0.1, 0.0, magnitude=0.5) == 0.8
    assert retention("mae", 0.1, 0.0, magnitude=0.0) == 0.0
    assert retention("mae", 0.0, 0.0, magnitude=0.0) == 1.0
    assert retention("top1", 0.9, 0.1) == MAX_RETENTION


@given(st.sampled_from(["top1", "mae", "my:metric"]), finite, finite, st.none() | finite)
def test_retention_is_bounded_and_one_for_the_reference(
    name: str, value: float, reference: float, magnitude: float | None
) -> None:
    size = None if magnitude is None else abs(magnitude)
    if name == "mae":
        value, reference = abs(value), 0.0 if size is not None else abs(reference)
    assert 0.0 <= retention(name, value, reference, magnitude=size) <= MAX_RETENTION
    assert retention(name, reference, reference, magnitude=size) == 1.0


@given(st.sampled_from(["top1", "mae", "my:metric"]), finite, finite, finite)
def test_a_better_value_never_keeps_less(
    name: str, one: float, other: float, reference: float
) -> None:
    if name == "mae":
        one, other, reference = abs(one), abs(other), abs(reference)
    better, worse = max(one, other), min(one, other)
    if name == "mae":
        better, worse = worse, better
    assert retention(name, better, reference) >= retention(name, worse, reference)


def test_quality_is_larger_for_the_better_variant() -> None:
    def measured(metric: str, value: float, error: float) -> Accuracy:
        return Accuracy(
            metric=metric,
            value=value,
            reference=1.0,
            retention=1.0,
            agreement=1.0,
            sqnr_db=None,
            worst_error=error,
            samples=10,
        )

    assert quality(measured("top1", 0.9, 5.0)) > quality(measured("top1", 0.8, 1.0))
    assert quality(measured("mae", 0.1, 5.0)) > quality(measured("mae", 0.2, 1.0))
    assert quality(measured("cosine", 0.99, 1.0)) > quality(measured("cosine", 0.999, 5.0))
    assert quality(measured("my:map", 0.9, 5.0)) > quality(measured("my:map", 0.8, 1.0))


def test_whole_numbers_may_be_rounded_the_other_way_on_a_device() -> None:
    whole = {"q": np.arange(24, dtype=np.int8).reshape(8, 3)}
    found = compare(whole, whole, None, "cosine").tolerances()["q"]
    assert found.absolute == 1.0
    floats = {"f": whole["q"].astype(np.float32)}
    assert compare(floats, floats, None, "cosine").tolerances()["f"].absolute < 0.001


def test_an_image_is_not_taken_for_scores_of_classes() -> None:
    image = {"mask": np.zeros((8, 4, 16, 16), np.float32)}
    assert resolve_metric("auto", image, None) == "cosine"
    assert resolve_metric("agreement", image, None) == "agreement"
    sequence = {"tags": np.zeros((8, 12, 5), np.float32)}
    assert resolve_metric("auto", sequence, None) == "agreement"
