"""Boxes and scores are found in the outputs of the usual detectors, or the fault is named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_adapters.processing.anchors import MAX_ANCHORS_BYTES, read_anchors
from runtime_adapters.processing.answers import Answers
from runtime_adapters.processing.detections import check_shapes
from runtime_adapters.processing.errors import DeclarationError
from runtime_adapters.protocol import Tensors
from wire.package.processing import Postprocessing, Suppression
from wire.package.tensors import TensorSpec


def answers(
    shapes: Mapping[str, tuple[int, ...]], output: str, how: Suppression, anchors: Any = None
) -> Answers:
    specs = [TensorSpec(name=n, datatype="FP32", shape=s) for n, s in shapes.items()]
    given = {} if anchors is None else {output: anchors}
    return Answers(specs, {output: Postprocessing(suppression=how)}, given)


def tensors(**values: Any) -> Tensors:
    return {name: np.array(value, np.float32) for name, value in values.items()}


BOXES = [[[0, 0, 2, 2], [0, 0, 2, 2.1], [5, 5, 6, 6]]]
SCORES = [[[0.6, 0.1], [0.2, 0.9], [0.4, 0.3]]]
APART = {"boxes": (1, -1, 4), "scores": (1, -1, -1)}
TOGETHER = {"y": (1, -1, -1)}


def test_scores_by_box_then_class_are_those_by_class_then_box() -> None:
    found = []
    for layout, scores in (
        ("classes_last", SCORES),
        ("classes_first", np.swapaxes(SCORES, 1, 2)),
    ):
        how = Suppression(scores="scores", layout=layout, score_threshold=0.35)  # type: ignore[arg-type]
        made = answers(APART, "boxes", how)
        found.append(made.answer("boxes", tensors(boxes=BOXES, scores=scores)))
    assert found[0]["boxes.index"].tolist() == [[0, 0, 0], [0, 0, 2], [0, 1, 1]]
    for name, part in found[0].items():
        assert np.array_equal(part, found[1][name]), name


def test_suppressed_over_all_classes_a_box_counts_with_its_best_one() -> None:
    how = Suppression(
        scores="scores", layout="classes_last", score_threshold=0.35, class_agnostic=True
    )
    found = answers(APART, "boxes", how).answer("boxes", tensors(boxes=BOXES, scores=SCORES))
    assert found["boxes.index"].tolist() == [[0, 1, 1], [0, 0, 2]]
    np.testing.assert_allclose(found["boxes.score"], [0.9, 0.4])


def test_a_query_with_a_class_for_no_object_needs_no_suppression() -> None:
    logits = [[[4.0, 0.0, 0.0], [3.0, 0.0, 0.0], [0.0, 0.0, 9.0]]]
    how = Suppression(
        scores="logits",
        layout="classes_last",
        boxes="centre",
        activation="softmax",
        background="last",
        class_agnostic=True,
        iou_threshold=1.0,
        score_threshold=0.7,
    )
    same = [[[0.5, 0.5, 0.2, 0.2]] * 3]
    made = answers({"boxes": (1, -1, 4), "logits": (1, -1, -1)}, "boxes", how)
    outputs = tensors(boxes=same, logits=logits)
    found = made.answer("boxes", outputs)
    assert found["boxes.index"].tolist() == [[0, 0, 0], [0, 0, 1]], "equal boxes both stay"
    np.testing.assert_allclose(found["boxes.score"], [np.e**4 / (np.e**4 + 2), 0.909], rtol=1e-3)
    assert made.check(outputs) == {"boxes": 2}


def test_an_objectness_is_a_factor_of_the_scores() -> None:
    rows = [[[10, 10, 4, 4, 0.5, 0.8, 0.2], [30, 30, 4, 4, 1.0, 0.1, 0.9]]]
    how = Suppression(
        scores="y", layout="classes_last", boxes="centre", objectness=True, score_threshold=0.3
    )
    found = answers(TOGETHER, "y", how).answer("y", tensors(y=rows))
    assert found["y.index"].tolist() == [[0, 0, 0], [0, 1, 1]]
    np.testing.assert_allclose(found["y.score"], [0.4, 0.9], rtol=1e-6)
    assert found["y"].tolist() == [[10, 10, 4, 4], [30, 30, 4, 4]]


@given(st.integers(1, 5), st.booleans(), st.integers(0, 99))
def test_the_first_class_as_background_is_never_kept(
    classes: int, agnostic: bool, seed: int
) -> None:
    random = np.random.default_rng(seed)
    scores = random.random((1, 6, classes + 1))
    how = Suppression(
        scores="scores", layout="classes_last", background="first", class_agnostic=agnostic
    )
    outputs = tensors(boxes=random.random((1, 6, 4)), scores=scores)
    found = answers(APART, "boxes", how).answer("boxes", outputs)
    batch, kind, box = found["boxes.index"].T
    assert (kind > 0).all()
    assert np.array_equal(found["boxes.score"], outputs["scores"][batch, box, kind])


def how(**fields: Any) -> Suppression:
    return Suppression(**{"scores": "scores", **fields})


LAST = "classes_last"


@pytest.mark.parametrize(
    ("given", "boxes", "scores", "labels", "text"),
    [
        (how(), (1, 9, 4), (1, 9, 2), 0, 'has 9 boxes; use layout = "classes_last"'),
        (how(layout=LAST), (1, 9, 4), (1, 2, 9), 0, 'use layout = "classes_first"'),
        (how(), (1, 9, 4), (1, 2, 7), 0, "name the output with the scores of these boxes"),
        (how(), (1, 9, 4), (2, 2, 9), 0, "have different batches"),
        (how(), (1, 9), (1, 2, 9), 0, r"boxes must be \(batch, box, 4\)"),
        (how(background="first"), (1, 9, 4), (1, 1, 9), 0, "cannot be the background"),
        (
            how(scores="y", layout=LAST),
            (1, 84, 8400),
            (1, 84, 8400),
            0,
            '84 boxes with 8396 classes each; use layout = "classes_first"; or give the labels',
        ),
        (
            how(scores="y"),
            (1, 8400, 3),
            (1, 8400, 3),
            0,
            "3 boxes with 8396 classes each",
        ),
        (
            how(scores="y", layout=LAST),
            (1, 9, 3),
            (1, 9, 3),
            0,
            "a box then has 3 numbers, but it needs 4 and its scores",
        ),
        (
            how(scores="y", layout=LAST),
            (1, 25200, 85),
            (1, 25200, 85),
            80,
            '81 scores, but there are 80 labels; use layout = "classes_last" and objectness = true',
        ),
        (
            how(scores="y", layout=LAST),
            (1, 84, 8400),
            (1, 84, 8400),
            80,
            'use layout = "classes_first" and objectness = false',
        ),
        (
            how(scores="y"),
            (1, 84, 8400),
            (1, 84, 8400),
            79,
            'use layout = "classes_first" and objectness = true',
        ),
        (how(scores="y"), (1, 84, 8400), (1, 84, 8400), 3, "give a label for each class"),
        (how(scores="y"), (84, 8400), (84, 8400), 0, "needs three axes"),
    ],
)
def test_shapes_that_do_not_fit_are_named_with_what_would(
    given: Suppression, boxes: Any, scores: Any, labels: int, text: str
) -> None:
    name = "y" if given.scores == "y" else "boxes"
    with pytest.raises(DeclarationError, match=text) as caught:
        check_shapes(name, given, boxes, scores, labels=labels, declared=True)
    said = str(caught.value)
    assert said.startswith(f"postprocessing of {name!r}: ")
    assert str(list(scores)) in said
    assert "\n" not in said
    assert len(said) < 300


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        (how(), ((1, -1, 4), (1, 3, -1))),
        (how(), ((-1, 9, -1), (1, -1, 9))),
        (how(scores="boxes"), ((1, -1, -1), (1, -1, -1))),
        (how(scores="boxes"), ((1, 5, -1), (1, 5, -1))),
        (how(scores="boxes", layout=LAST), ((1, 9, 6), (1, 9, 6))),
    ],
)
def test_sizes_that_are_not_known_yet_may_fit(given: Suppression, shape: Any) -> None:
    check_shapes("boxes", given, *shape, declared=True)


def test_an_answer_may_have_fewer_boxes_than_classes() -> None:
    few = (1, 2, 84)
    check_shapes("y", how(scores="y", layout=LAST), few, few)
    none = np.zeros((1, 0, 84), np.float32)
    made = answers(TOGETHER, "y", how(scores="y", layout=LAST, class_agnostic=True))
    assert made.check({"y": none}) == {"y": 0}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"scores": "scores", "objectness": True}, 'use scores = "boxes", or leave out objectness'),
        ({"scores": "none"}, 'if .boxes. holds them too, use scores = "boxes"'),
        ({"scores": "scores", "variances": (0.1, 0.2)}, "variances belong to anchors"),
        (
            {"scores": "scores", "anchors": "a.npy", "variances": (0.1, 0.0)},
            "variances must be finite and greater than 0",
        ),
        ({"scores": "scores", "anchors": "a.npy"}, "there are no anchors"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(DeclarationError, match=text):
        answers(APART, "boxes", Suppression(**fields))


def test_a_softmax_over_boxes_instead_of_classes_is_found_on_real_outputs() -> None:
    specs = [TensorSpec(name=n, datatype="FP32", shape=s) for n, s in APART.items()]
    outputs = tensors(boxes=BOXES, scores=SCORES)

    def made(axis: int, **fields: Any) -> Answers:
        declared = {
            "boxes": Postprocessing(suppression=how(layout=LAST, **fields)),
            "scores": Postprocessing(softmax=True, axis=axis),
        }
        return Answers(specs, declared)

    assert made(-1).check(outputs)["boxes"] > 0
    with pytest.raises(DeclarationError, match=r"along axis 1, .*; use axis = 2"):
        made(1).check(outputs)
    with pytest.raises(DeclarationError, match="a softmax of their own and an activation"):
        made(-1, activation="softmax")


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([[[1, 1, 2, 2, 7.5]]], "the scores in this output are 7.5 to 7.5, but probabilities"),
        ([[[1, 1, 2, 2, np.nan]]], "a score in the output 'y' is NaN"),
        ([[[1, 1, np.inf, 2, 0.9]]], "'y' holds NaN or infinity"),
    ],
)
def test_values_that_no_detector_gives_are_refused(rows: Any, text: str) -> None:
    made = answers(TOGETHER, "y", Suppression(scores="y", layout="classes_last"))
    outputs = tensors(y=np.tile(np.array(rows, np.float32), (1, 9, 1)))
    with pytest.raises(DeclarationError, match=text):
        made.check(outputs)


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.ones((3, 5)), r"float64 of \[3, 5\], but floats of \(box, 4\) are needed"),
        (np.ones((3, 4), np.int32), "int32 of"),
        (np.zeros((0, 4)), "are needed; write the centre and the size"),
        (np.zeros((3, 4)), "a size is not above 0"),
        (np.full((3, 4), np.nan), "not finite"),
        (np.full((3, 4), 1e300), "not finite"),
        (np.array([None]), "is not a .npy file|does not hold what its header says"),
        (np.asfortranarray(np.ones((3, 4))), "does not hold what its header says"),
    ],
)
def test_a_file_that_holds_no_anchors_is_refused(tmp_path: Path, array: Any, text: str) -> None:
    path = tmp_path / "a.npy"
    np.save(path, array)
    with pytest.raises(DeclarationError, match=text):
        read_anchors(path)


def test_a_file_of_anchors_is_bounded_and_may_hold_doubles(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.ones((3, 4)))
    assert read_anchors(path).dtype == np.float32
    path.write_bytes(b"\0" * (MAX_ANCHORS_BYTES + 1))
    with pytest.raises(DeclarationError, match=f"over {MAX_ANCHORS_BYTES} bytes"):
        read_anchors(path)
    with pytest.raises(DeclarationError, match="No such file"):
        read_anchors(tmp_path / "none.npy")
