"""Samples of several shapes: what is judged over all of them is what one shape would give."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packager.errors import DataError
from packager.judge.comparison import compare
from packager.judge.detection_form import Found
from packager.judge.evidence import evidence
from packager.judge.shapes import OneShape, compare_shapes, shape_text, weak_notes
from runtime_adapters.protocol import Tensor, Tensors
from tests.unit.packager.judge.test_gates import variant
from wire.package.accuracy import Accuracy, ShapeAccuracy
from wire.package.variant import Variant


def parts(answers: Tensors, reference: Tensors, labels: Tensor | None, at: int) -> list[OneShape]:
    """Return samples of one shape as if they had two."""
    cut = (slice(0, at), slice(at, None))
    return [
        OneShape(
            sizes={"x": (number, 4)},
            answers={name: array[rows] for name, array in answers.items()},
            reference={name: array[rows] for name, array in reference.items()},
            labels=None if labels is None else labels[rows],
        )
        for number, rows in enumerate(cut)
    ]


@given(
    metric=st.sampled_from(["top1", "agreement", "cosine", "mae"]),
    seed=st.integers(0, 2**16),
    at=st.integers(8, 40),
)
@settings(max_examples=40, deadline=None)
def test_shapes_together_give_the_figures_of_one_set(metric: str, seed: int, at: int) -> None:
    rng = np.random.default_rng(seed)
    reference = {"s": rng.normal(size=(48, 4))}
    answers = {"s": reference["s"] + 0.4 * rng.normal(size=(48, 4))}
    classes = rng.integers(0, 4, 48)
    classes[:4] = reference["s"][:4].argmax(axis=1)  # so that the reference is right sometimes
    labels = {"top1": classes, "mae": reference["s"] + rng.normal(size=(48, 4))}.get(metric)
    whole = compare(answers, reference, labels, metric)
    found = compare_shapes(parts(answers, reference, labels, at), metric)
    for name in ("value", "reference", "retention", "agreement", "sqnr_db", "worst_error"):
        theirs = getattr(whole.accuracy, name)
        ours = getattr(found.accuracy, name)
        assert ours == (None if theirs is None else pytest.approx(theirs, rel=1e-9)), name
    assert found.accuracy.samples == 48
    assert found.accuracy.shapes
    assert [one.samples for one in found.accuracy.shapes] == [at, 48 - at]
    known = evidence(answers, reference, labels, metric)
    assert (found.evidence.right, found.evidence.agreed) == (known.right, known.agreed)
    assert found.evidence.standard_error == (
        None if known.standard_error is None else pytest.approx(known.standard_error, rel=1e-6)
    )


def test_each_shape_has_figures_of_its_own_and_the_first_gives_the_tolerances() -> None:
    good, bad = np.eye(4)[[0, 1, 2, 3] * 4], np.eye(4)[[1, 2, 3, 0] * 2]
    shapes = [
        OneShape({"x": (3, 8)}, {"s": good * 0.9}, {"s": good}, None),
        OneShape({"x": (3, 4)}, {"s": bad}, {"s": good[:8]}, None),
    ]
    found = compare_shapes(shapes, "agreement")
    assert found.accuracy.shapes
    assert [one.retention for one in found.accuracy.shapes] == [1.0, 0.0]
    assert found.accuracy.retention == pytest.approx(16 / 24)
    assert found.accuracy.worst_error == 1.0
    assert found.worst_errors == {"s": pytest.approx(0.1)}


def test_outputs_may_follow_the_shape_of_the_input() -> None:
    rng = np.random.default_rng(1)
    shapes = [
        OneShape({"x": (w,)}, {"y": one + 0.1}, {"y": one}, None)
        for w in (3, 7)
        for one in [rng.normal(size=(10, w))]
    ]
    found = compare_shapes(shapes, "cosine")
    assert found.accuracy.samples == 20
    assert 0.9 < found.accuracy.retention < 1.0


def test_boxes_of_pictures_of_all_shapes_are_matched_together() -> None:
    def boxes(answers: Tensors) -> list[Found]:
        return [
            Found(row[:, :4].astype(float), np.zeros(len(row), np.intp), row[:, 4].astype(float))
            for row in answers["b"]
        ]

    rng = np.random.default_rng(2)
    corners = rng.uniform(0, 50, (12, 3, 2))
    rows = np.concatenate([corners, corners + 20, rng.uniform(0.5, 1, (12, 3, 1))], axis=2)
    other = rows + rng.normal(0, 2, rows.shape)
    whole = compare({"b": other}, {"b": rows}, None, "map", detector=boxes)
    pair = parts({"b": other}, {"b": rows}, None, 9)
    found = compare_shapes(pair, "map", detector=boxes)
    assert found.accuracy.value == pytest.approx(whole.accuracy.value)
    assert found.evidence.standard_error


def test_a_metric_that_counts_classes_needs_the_same_number_of_them() -> None:
    shapes = [
        OneShape({"x": (n,)}, {"s": one}, {"s": one}, np.zeros((8, 5), np.int64))
        for n in (3, 4)
        for one in [np.random.default_rng(n).normal(size=(8, 5, n))]
    ]
    with pytest.raises(DataError, match="counts something else for samples of another shape"):
        compare_shapes(shapes, "miou,axis=2")


def test_a_kept_variant_that_is_weak_at_one_shape_is_told() -> None:
    def judged(name: str, *retentions: float) -> Variant:
        shapes = tuple(
            ShapeAccuracy(
                sizes={"x": (3, n)}, samples=9, value=r, reference=1.0, retention=r, worst_error=0.1
            )
            for n, r in enumerate(retentions, 1)
        )
        one = variant(name)
        assert isinstance(one.info.accuracy, Accuracy)
        accuracy = msgspec.structs.replace(one.info.accuracy, shapes=shapes)
        return msgspec.structs.replace(
            one, info=msgspec.structs.replace(one.info, accuracy=accuracy)
        )

    built = (judged("a", 1.0, 0.9, 0.95), judged("b", 0.99, 1.0), judged("c", 0.1), variant("d"))
    (told,) = weak_notes(built, {"a", "b", "d"}, 0.99)
    assert told == (
        "a: retention 0.9000 on the 9 samples of shape x 3x2, below 0.9900; the gate judges the "
        "samples of all shapes together"
    )


def test_shapes_are_told_by_input() -> None:
    assert shape_text({"x": (3, 48, 320), "rate": ()}) == "x 3x48x320, rate 1"
