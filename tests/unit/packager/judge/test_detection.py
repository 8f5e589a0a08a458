"""Mean average precision: known figures, labels that do not fit, and what chance may do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packager.errors import DataError
from packager.judge.choice import reason_of, resolve_metric
from packager.judge.comparison import compare
from packager.judge.detection import Matches, labelled
from packager.judge.detection_form import Found
from packager.judge.evidence import GROUPS, evidence
from runtime_adapters.protocol import Tensor, Tensors

BOX = (0.0, 0.0, 10.0, 100.0)
FAR = (500.0, 500.0, 600.0, 520.0)


def image(*boxes: tuple[tuple[float, ...], int, float]) -> Found:
    """Return boxes with their classes and scores."""
    corners = np.array([box for box, _, _ in boxes], np.float64).reshape(-1, 4)
    return Found(
        corners,
        np.array([kind for _, kind, _ in boxes], np.intp),
        np.array([score for _, _, score in boxes], np.float64),
    )


@pytest.mark.parametrize(
    ("found", "truth", "precision"),
    [
        ([image((BOX, 0, 0.9))], [image((BOX, 0, 1))], 1.0),
        # Intersection over union 0.62: right at 0.50, 0.55 and 0.60, of ten thresholds.
        ([image(((0, 0, 10, 62), 0, 0.9))], [image((BOX, 0, 1))], 0.3),
        # A wrong box that is surer than the right one halves the precision at every recall.
        ([image((FAR, 0, 0.9), (BOX, 0, 0.8))], [image((BOX, 0, 1))], 0.5),
        ([image((FAR, 0, 0.7), (BOX, 0, 0.8))], [image((BOX, 0, 1))], 1.0),
        # One of two is found: the recalls 0.00 to 0.50, which are 51 of 101.
        ([image((BOX, 0, 0.9))], [image((BOX, 0, 1), (FAR, 0, 1))], 51 / 101),
        # Another class finds nothing; a class without labels does not count.
        ([image((BOX, 1, 0.9))], [image((BOX, 0, 1))], 0.0),
        ([image((BOX, 0, 0.9), (FAR, 1, 0.9))], [image((BOX, 0, 1))], 1.0),
        ([image((BOX, 0, 0.9))], [image((BOX, 0, 1), (FAR, 3, 1))], 0.5),
        # The second box at the same place is wrong, and so less sure that it costs nothing.
        ([image((BOX, 0, 0.9), (BOX, 0, 0.8))], [image((BOX, 0, 1))], 1.0),
        # Two images: the boxes of all are sorted together.
        ([image((FAR, 0, 0.9)), image((BOX, 0, 0.8))], [image(), image((BOX, 0, 1))], 0.5),
        # Any two opposite corners.
        ([image(((10, 100, 0, 0), 0, 0.9))], [image((BOX, 0, 1))], 1.0),
        ([image()], [image((BOX, 0, 1))], 0.0),
    ],
)
def test_known_average_precisions(found: list[Found], truth: list[Found], precision: float) -> None:
    assert Matches(found, truth).value() == pytest.approx(precision)


def test_no_more_than_100_boxes_of_a_class_in_an_image_count() -> None:
    many = image(*((FAR, 0, 0.9) for _ in range(99)), (BOX, 0, 0.5))
    assert Matches([many], [image((BOX, 0, 1))]).value() == pytest.approx(0.01)
    more = image(*((FAR, 0, 0.9) for _ in range(100)), (BOX, 0, 0.5))
    assert Matches([more], [image((BOX, 0, 1))]).value() == 0.0


def drawn(rng: np.random.Generator, images: int, noise: float) -> tuple[list[Found], list[Found]]:
    """Return found boxes and true ones."""
    truth, found = [], []
    for _ in range(images):
        corners = rng.uniform(0, 80, (3, 2))
        boxes = np.concatenate([corners, corners + rng.uniform(10, 40, (3, 2))], axis=1)
        kinds = rng.integers(0, 2, 3)
        truth.append(Found(boxes, kinds, np.ones(3)))
        found.append(Found(boxes + noise * rng.normal(size=boxes.shape), kinds, rng.random(3)))
    return found, truth


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_some_samples_have_the_figure_that_they_have_alone(seed: int) -> None:
    rng = np.random.default_rng(seed)
    found, truth = drawn(rng, 8, 3.0)
    rows = np.flatnonzero(rng.random(8) < 0.7)
    rows = rows if len(rows) else np.arange(8)
    whole = Matches(found, truth)
    before = whole.value()
    alone = Matches([found[i] for i in rows], [truth[i] for i in rows]).value()
    if {int(k) for i in rows for k in truth[i].classes} == {0, 1}:
        assert whole.value_of(rows) == pytest.approx(alone)
    assert 0.0 <= before <= 1.0
    assert whole.value() == before, "asking for some changes nothing"


def test_labels_are_corners_with_a_class_and_padding() -> None:
    labels = np.array([[[1, 2, 3, 4, 7], [0, 0, 0, 0, -1]], [[0, 0, 0, 0, -1]] * 2])
    first, second = labelled(labels, {})
    assert (first.boxes.tolist(), first.classes.tolist()) == ([[1, 2, 3, 4]], [7])
    assert len(second.boxes) == 0
    (first, _) = labelled(labels, {"order": "yx"})
    assert first.boxes.tolist() == [[2, 1, 4, 3]]


def detector(answers: Tensors) -> list[Found]:
    """Read answers that are boxes with class and score already."""
    return [
        Found(row[:, :4].astype(float), row[:, 4].astype(np.intp), row[:, 5].astype(float))
        for row in np.asarray(answers["boxes"])
    ]


def outputs(samples: int, seed: int = 0, noise: float = 0.0) -> tuple[Tensors, Tensor]:
    """Return answers, and labels that they fit but for the noise."""
    found, truth = drawn(np.random.default_rng(seed), samples, noise)
    rows = [np.column_stack([one.boxes, one.classes, one.scores]) for one in found]
    labels = [np.column_stack([one.boxes, one.classes]) for one in truth]
    return {"boxes": np.stack(rows)}, np.stack(labels)


def test_auto_compares_boxes_where_they_are_declared() -> None:
    answers, labels = outputs(8)
    metric = resolve_metric("auto", answers, labels, detector)
    assert metric == "map"
    assert reason_of(metric, answers, labels) == (
        "the postprocessing declares boxes, and the labels are float64 of shape [3, 5] for each "
        "sample, which are boxes"
    )
    assert resolve_metric("auto", answers, None, detector) == "map"
    assert "the boxes that the reference finds are the truth" in reason_of("map", answers, None)
    other = resolve_metric("auto", answers, np.zeros(8, int), detector)
    assert other == "map,truth=reference"
    assert "so they are not used" in reason_of(other, answers, np.zeros(8, int))
    found = compare(answers, answers, np.zeros(8, int), other, detector=detector)
    assert found.accuracy.value == pytest.approx(1.0)


def test_a_variant_whose_boxes_moved_loses_what_cosine_does_not_show() -> None:
    reference, labels = outputs(20)
    moved = {"boxes": reference["boxes"] + np.array([6, 0, 6, 0, 0, 0])}
    cosine = compare(moved, reference, None, "cosine").accuracy
    assert cosine.value > 0.99
    for known in (labels, None):
        accuracy = compare(moved, reference, known, "map", detector=detector).accuracy
        assert accuracy.reference == pytest.approx(1.0)
        assert accuracy.retention == accuracy.value < 0.7
        assert (accuracy.metric, accuracy.agreement) == ("map", None)


def test_chance_has_a_standard_error() -> None:
    answers, labels = outputs(40, noise=2.0)
    reference, _ = outputs(40, noise=0.5)
    found = evidence(answers, reference, labels, "map", detector=detector)
    assert found.degrees == GROUPS - 1
    retained, errors = [], []
    for seed in range(30):
        answers, labels = outputs(40, seed, noise=2.0)
        reference, _ = outputs(40, seed, noise=0.5)
        retained.append(
            compare(answers, reference, labels, "map", detector=detector).accuracy.retention
        )
        if seed < 6:
            known = evidence(answers, reference, labels, "map", detector=detector)
            errors.append(known.standard_error or 0.0)
    assert np.mean(errors) == pytest.approx(float(np.std(retained)), rel=0.5)


def far(labels: Tensor) -> Tensor:
    moved: Tensor = labels + np.array([9e3, 9e3, 9e3, 9e3, 0])
    return moved


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda labels: labels[..., :4], "boxes (samples, boxes, 5) are needed"),
        (lambda labels: labels * np.nan, "no box, or one that is not finite"),
        (lambda labels: np.full_like(labels, -1), "the labels hold no box"),
        (lambda labels: labels[..., [2, 1, 0, 3, 4]], "not a width and a height"),
        (lambda labels: labels[..., [1, 0, 3, 2, 4]], "use --metric map,order=yx"),
        (far, "no box that the reference finds fits a label"),
        (lambda labels: labels + np.array([0, 0, 0, 0, 5]), "classes by the model's numbers"),
    ],
)
def test_labels_that_are_not_the_model_s_boxes_are_refused(
    change: Callable[[Tensor], Tensor], text: str
) -> None:
    answers, labels = outputs(8)
    with pytest.raises(DataError) as caught:
        resolve_metric("map", answers, change(labels), detector)
    assert text in f"{caught.value} {caught.value.remedy}"


def test_boxes_must_be_declared_and_found() -> None:
    answers, labels = outputs(8)
    with pytest.raises(DataError, match="no output is declared to hold boxes"):
        resolve_metric("map", answers, labels)
    with pytest.raises(DataError, match="finds no box in any sample"):
        resolve_metric("map", answers, None, lambda a: [image()] * len(a["boxes"]))
    with pytest.raises(DataError, match="there is no option 'order=zx'"):
        resolve_metric("map,order=zx", answers, labels, detector)
