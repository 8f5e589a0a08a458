"""Boxes that a model suppressed itself: found in outputs, matched, and chosen as golden ones."""

from __future__ import annotations

import numpy as np
import pytest

from packager.errors import DataError
from packager.judge.comparison import compare
from packager.judge.detection_form import Found
from packager.judge.matched import alike, compare_matched, found_in, golden_group, settled
from packager.judge.metrics import is_matched, wanted
from packager.judge.shapes import OneShape
from runtime_adapters.protocol import Tensor, Tensors

APART = "map,classes=labels,output=boxes,scores=scores"
TABLE = "map,classes=5,output=found,scores=4"


def objects(*arrays: Tensor) -> Tensor:
    found = np.empty(len(arrays), np.object_)
    for index, array in enumerate(arrays):
        found[index] = array
    return found


def drawn(seed: int, *counts: int) -> list[Found]:
    """Return boxes that do not touch, with scores in descending order."""
    rng = np.random.default_rng(seed)
    found = []
    for count in counts:
        low = np.arange(count)[:, None] * 40.0 + rng.uniform(0, 5, (count, 2))
        boxes = np.concatenate([low, low + rng.uniform(20, 30, (count, 2))], axis=1)
        scores = np.sort(rng.uniform(0.5, 1.0, count))[::-1]
        found.append(Found(boxes, rng.integers(0, 3, count), scores))
    return found


def apart(found: list[Found]) -> Tensors:
    """Return boxes as an export of torchvision has them."""
    return {
        "boxes": objects(*(one.boxes.astype(np.float32) for one in found)),
        "labels": objects(*(one.classes.astype(np.int64) for one in found)),
        "scores": objects(*(one.scores.astype(np.float32) for one in found)),
    }


def table(found: list[Found], pad: int) -> Tensors:
    """Return boxes as a YOLO has them that suppresses itself: rows of six, padded with zeros."""
    rows = []
    for one in found:
        row = np.concatenate([one.boxes, one.scores[:, None], one.classes[:, None]], axis=1)
        rows.append(np.concatenate([row, np.zeros((pad - len(row), 6))])[None].astype(np.float32))
    return {"found": objects(*rows)}


def moved(found: list[Found], by: float) -> list[Found]:
    return [one._replace(boxes=one.boxes + by) for one in found]


def one_shape(answers: Tensors, reference: Tensors, labels: Tensor | None = None) -> OneShape:
    return OneShape({"x": (3, 8, 8)}, answers, reference, labels)


def test_boxes_are_found_in_outputs_of_their_own_and_in_columns() -> None:
    boxes = drawn(0, 3, 0, 2)
    for found in (
        found_in(apart(boxes), wanted(APART)),
        found_in(table(boxes, 5), wanted(TABLE)),
    ):
        for ours, theirs in zip(found, boxes, strict=True):
            assert np.allclose(ours.boxes, theirs.boxes)
            assert np.array_equal(ours.classes, theirs.classes)
            assert np.allclose(ours.scores, theirs.scores)


def test_columns_may_begin_later_and_boxes_may_be_centres() -> None:
    (box,) = drawn(1, 2)
    centres = np.concatenate(
        [(box.boxes[:, :2] + box.boxes[:, 2:]) / 2, box.boxes[:, 2:] - box.boxes[:, :2]], axis=1
    )
    rows = np.concatenate(
        [np.zeros((2, 1)), centres, box.classes[:, None], box.scores[:, None]], axis=1
    )
    metric = wanted("map,boxes=centre,classes=5,first=1,output=found,scores=6")
    (found,) = found_in({"found": objects(rows)}, metric)
    assert np.allclose(found.boxes, box.boxes)
    assert np.array_equal(found.classes, box.classes)


def test_matching_gives_what_boxes_of_one_size_give() -> None:
    truth = drawn(2, *[3] * 20)
    rng = np.random.default_rng(2)
    other = [one._replace(boxes=one.boxes + rng.normal(0, 2.0, one.boxes.shape)) for one in truth]

    def detector(answers: Tensors) -> list[Found]:
        return found_in({"found": answers["found"]}, wanted(TABLE))

    dense = [{"found": np.concatenate(list(table(f, 3)["found"]))} for f in (other, truth)]
    whole = compare(dense[0], dense[1], None, "map", detector=detector)
    found = compare_matched([one_shape(table(other, 3), table(truth, 3))], TABLE)
    assert found.accuracy.value == pytest.approx(whole.accuracy.value)
    assert found.accuracy.retention == pytest.approx(whole.accuracy.retention)
    assert 0.3 < found.accuracy.value < 1.0
    assert found.accuracy.reference == 1.0
    assert found.evidence.standard_error


def test_lost_boxes_cost_and_the_tolerances_come_from_samples_that_are_alike() -> None:
    truth = drawn(3, 3, 2, 4, 1)
    ours = moved(truth, 0.25)
    ours[2] = Found(ours[2].boxes[1:], ours[2].classes[1:], ours[2].scores[1:])
    found = compare_matched([one_shape(apart(ours), apart(truth))], APART)
    assert found.accuracy.value < 1.0
    assert found.worst_errors["boxes"] == pytest.approx(0.25, rel=1e-3)
    assert found.worst_errors["labels"] == 0.0
    assert found.integers == ("labels",)
    assert found.greatest["scores"] <= 1.0
    rows = alike(apart(ours), apart(truth), wanted(APART))
    assert rows.tolist() == [True, True, False, True]


def test_labels_judge_where_they_are_given() -> None:
    truth = drawn(4, 2, 2, 1)
    labels = np.full((3, 3, 5), -1.0)
    for row, one in zip(labels, truth, strict=True):
        row[: len(one.scores)] = np.concatenate([one.boxes, one.classes[:, None]], axis=1)
    half = [Found(one.boxes[:1], one.classes[:1], one.scores[:1]) for one in truth]
    asked = settled("map,scores=scores,classes=labels,output=boxes", apart(half), labels)
    assert asked == APART
    found = compare_matched([one_shape(apart(half), apart(half), labels)], asked)
    assert found.accuracy.reference < 1.0
    assert found.accuracy.retention == 1.0
    free = compare_matched(
        [one_shape(apart(half), apart(half), labels)], f"{asked},truth=reference"
    )
    assert free.accuracy.reference == 1.0


def test_samples_of_several_shapes_are_matched_together() -> None:
    one, other = drawn(5, 3, 2), drawn(6, 4, 0, 1)
    worse = [*other[:1], *moved(other[1:], 9.0)]
    sets = [
        one_shape(apart(one), apart(one)),
        OneShape({"x": (3, 16, 16)}, apart(worse), apart(other), None),
    ]
    found = compare_matched(sets, APART)
    assert found.accuracy.samples == 5
    assert found.accuracy.shapes
    assert [part.samples for part in found.accuracy.shapes] == [2, 3]
    assert found.accuracy.shapes[0].retention == 1.0
    assert found.accuracy.shapes[1].retention < 1.0


def test_golden_samples_have_one_size_and_clear_scores() -> None:
    close = Found(drawn(7, 2)[0].boxes, np.array([0, 0]), np.array([0.8, 0.79999]))
    reference = [*drawn(8, 2, 3, 0, 2, 0, 0), close]
    ours = moved(reference, 0.1)
    ours[3] = drawn(9, 3)[0]
    group = golden_group(apart(reference), [apart(reference), apart(ours)], wanted(APART))
    assert group == [0, 6], "the most frequent size with boxes; sample 3 is not alike"
    many = [close] * 20 + drawn(10, *[2] * 16)
    assert golden_group(apart(many), [apart(many)], wanted(APART)) == list(range(20, 36))
    with pytest.raises(DataError, match="no sample on which all variants answer the same boxes"):
        golden_group(apart(reference[:1]), [apart(drawn(11, 3))], wanted(APART))


def test_a_variant_without_a_sample_alike_is_refused() -> None:
    truth = drawn(12, 2, 3)
    far = moved(truth, 500.0)
    with pytest.raises(DataError, match="on no sample does the variant answer the reference's"):
        compare_matched([one_shape(apart(far), apart(truth))], APART)


@pytest.mark.parametrize(
    ("metric", "answers", "fault"),
    [
        ("map,scores=s", {}, "has no output 's'"),
        ("map,scores=scores,classes=kinds", {}, "has no output 'kinds'"),
        ("map,output=labels,scores=scores", {}, "'labels' of one sample has shape"),
        ("map,scores=9", {}, "has 4 numbers, so there is no column 9"),
        ("map,scores=scores,first=1", {}, "boxes have four numbers each"),
        ("map,scores=scores", {"scores": objects(np.ones(3), np.ones(3))}, r"\[3\] for 2 boxes"),
        ("map,scores=scores", {"boxes": objects(*[np.full((2, 4), np.nan)] * 2)}, "NaN or inf"),
        ("map,scores=scores", {"boxes": objects(*[np.ones((2, 2, 4))] * 2)}, "with at most axes"),
        ("map,scores=scores", {"scores": objects(*[np.zeros(2)] * 2)}, "finds no box in any"),
    ],
)
def test_outputs_that_hold_no_boxes_are_refused_in_one_line(
    metric: str, answers: Tensors, fault: str
) -> None:
    with pytest.raises(DataError, match=fault) as caught:
        settled(metric, apart(drawn(13, 2, 2)) | answers, None)
    assert "\n" not in str(caught.value)


def test_matching_is_asked_for_by_naming_the_scores() -> None:
    assert is_matched("map,scores=s")
    assert is_matched("boxes=map,scores=4,classes=5")
    assert not is_matched("map")
    assert not is_matched("map,order=yx")
    assert not is_matched("perplexity,scores=logits")
    for text in ("map,classes=c", "map,boxes=centre", "map,first=1"):
        with pytest.raises(DataError, match="says nothing without scores="):
            wanted(text)
