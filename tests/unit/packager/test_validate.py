"""Metrics, and the choice of golden samples."""

from __future__ import annotations

import numpy as np
import pytest

from packager.errors import DataError
from packager.figures import ABSOLUTE_FLOOR, HEADROOM
from packager.golden import SAMPLES, margins, pick
from packager.validate import agreeing, check_answers, compare, resolve_metric

SCORES = {"s": np.array([[3.0, 1.0], [0.0, 2.0], [1.0, 0.5], [5.0, 4.0]], np.float32)}
LABELS = np.array([0, 1, 0, 1])


def test_the_reference_compared_with_itself_is_exact() -> None:
    accuracy = compare(SCORES, SCORES, LABELS, "top1").accuracy
    assert (accuracy.value, accuracy.reference, accuracy.retention) == (0.75, 0.75, 1.0)
    assert (accuracy.agreement, accuracy.worst_error, accuracy.sqnr_db) == (1.0, 0.0, None)
    assert accuracy.samples == 4


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


def test_nan_is_worthless_and_shapes_must_agree() -> None:
    broken = {"s": SCORES["s"].copy()}
    broken["s"][2, 1] = np.nan
    with pytest.raises(DataError, match="NaN"):
        compare(broken, SCORES, LABELS, "top1")
    with pytest.raises(DataError, match="shape"):
        compare({"s": SCORES["s"][:2]}, SCORES, LABELS, "top1")


def test_a_reference_that_answers_nan_is_refused() -> None:
    with pytest.raises(DataError, match="NaN for 1 of 4 evaluation samples"):
        check_answers("s", np.array([[1.0], [np.nan], [2.0], [-np.inf]], np.float32))


def test_infinity_of_the_reference_is_not_an_error() -> None:
    masked = {"s": SCORES["s"].copy()}
    masked["s"][0, 1] = -np.inf
    assert compare(masked, masked, LABELS, "top1").accuracy.worst_error == 0.0


def test_cosine_of_regressions() -> None:
    values = {"y": np.array([[1.0], [2.0], [-3.0]], np.float32)}
    flipped = {"y": values["y"] * np.array([[1], [1], [-1]], np.float32)}
    assert compare(values, values, None, "cosine").accuracy.value == 1.0
    assert compare(flipped, values, None, "cosine").accuracy.value == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("wanted", "labelled", "shape", "metric"),
    [
        ("auto", True, (4, 3), "top1"),
        ("auto", False, (4, 3), "agreement"),
        ("auto", True, (4, 1), "cosine"),
        ("auto", True, (4, 8, 3), "agreement"),
        ("cosine", True, (4, 3), "cosine"),
    ],
)
def test_the_metric_follows_from_the_data(
    wanted: str, labelled: bool, shape: tuple[int, ...], metric: str
) -> None:
    labels = LABELS if labelled else None
    assert resolve_metric(wanted, {"s": np.zeros(shape, np.float32)}, labels) == metric


@pytest.mark.parametrize(("wanted", "shape"), [("top1", (4, 3)), ("agreement", (4, 1))])
def test_a_metric_that_cannot_be_computed_is_refused(wanted: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError) as caught:
        resolve_metric(wanted, {"s": np.zeros(shape, np.float32)}, None)
    assert caught.value.remedy


def test_agreement_is_judged_in_every_output() -> None:
    two = {"a": SCORES["s"], "b": SCORES["s"]}
    other = {"a": SCORES["s"], "b": SCORES["s"][:, ::-1]}
    assert not agreeing(other, two).any()


def test_golden_samples_lie_near_the_decision_boundary() -> None:
    rng = np.random.default_rng(1)
    reference = {"s": rng.normal(size=(200, 10)).astype(np.float32)}
    chosen = pick(reference, [reference], classes=True)
    gaps = margins(reference["s"])
    assert len(chosen) == SAMPLES
    assert max(gaps[chosen]) < np.median(gaps)


def test_golden_samples_are_those_on_which_all_variants_agree() -> None:
    rng = np.random.default_rng(2)
    reference = {"s": rng.normal(size=(300, 10)).astype(np.float32)}
    variants = [
        {"s": (reference["s"] + rng.normal(scale=0.2, size=(300, 10))).astype(np.float32)}
        for _ in range(3)
    ]
    chosen = pick(reference, variants, classes=True)
    assert len(chosen) == SAMPLES
    for variant in variants:
        assert agreeing(variant, reference)[chosen].all()
        error = np.abs(variant["s"] - reference["s"]).max()
        assert (margins(variant["s"])[chosen] > 0.1 * error).all()


def test_few_safe_samples_are_filled_up_and_none_is_an_error() -> None:
    reference = {"s": np.tile(np.array([[0.0, 1e-6]], np.float32), (20, 1))}
    assert len(pick(reference, [reference], classes=True)) == SAMPLES
    with pytest.raises(DataError, match="no evaluation sample"):
        pick(reference, [{"s": reference["s"][:, ::-1]}], classes=True)


def test_without_classes_samples_are_spread() -> None:
    values = {"y": np.zeros((80, 1), np.float32)}
    assert pick(values, [values], classes=False) == [0, 10, 20, 30, 40, 50, 60, 70]
