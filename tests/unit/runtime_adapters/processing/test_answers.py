"""Outputs become the answers that a variant declares."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from runtime_adapters.errors import InferenceError
from runtime_adapters.processing.answers import Answers
from runtime_adapters.processing.errors import DeclarationError
from wire.package.processing import Postprocessing, Quantization, Suppression
from wire.package.tensors import TensorSpec

LOGITS = TensorSpec(name="logits", datatype="INT8", shape=(-1, 4))
MAP = TensorSpec(name="map", datatype="FP32", shape=(1, 3, 2, 2))
BOXES = TensorSpec(name="boxes", datatype="FP32", shape=(-1, -1, 4))
SCORES = TensorSpec(name="scores", datatype="UINT8", shape=(-1, 2, -1))
SPECS = (LOGITS, MAP, BOXES, SCORES)
CODES = Quantization(scale=(0.5,), zero_point=(1,))


def test_scores_become_real_numbers_probabilities_and_the_greatest() -> None:
    how = Postprocessing(quantization=CODES, softmax=True, top_k=2)
    answers = Answers(SPECS, {"logits": how})
    answers.warm()
    assert "logits" in answers
    assert "map" not in answers
    codes = np.array([[1, 5, 5, 3]], np.int8)
    found = answers.answer("logits", {"logits": codes})
    assert list(found) == ["logits", "logits.index"]
    assert found["logits.index"].tolist() == [[1, 2]]
    real = np.exp([0, 2, 2, 1]) / np.exp([0, 2, 2, 1]).sum()
    np.testing.assert_allclose(found["logits"], real[None, 1:3], rtol=1e-6)


def test_the_greatest_of_any_axis_and_of_fewer_than_are_wanted() -> None:
    values = np.arange(12, dtype=np.float32).reshape(1, 3, 2, 2)
    found = Answers(SPECS, {"map": Postprocessing(top_k=9, axis=1)}).answer("map", {"map": values})
    assert found["map"].shape == found["map.index"].shape == (1, 3, 2, 2)
    assert np.array_equal(found["map"], values[:, ::-1])
    assert (found["map.index"][0, :, 0, 0] == [2, 1, 0]).all()


def test_boxes_come_with_their_scores_and_where_they_were() -> None:
    declared = {
        "boxes": Postprocessing(suppression=Suppression(scores="scores", score_threshold=0.3)),
        "scores": Postprocessing(quantization=Quantization(scale=(0.01,))),
    }
    answers = Answers(SPECS, declared)
    answers.warm()
    boxes = np.array([[[0, 0, 2, 2], [0, 0, 2, 2.1], [5, 5, 6, 6]]], np.float32)
    scores = np.array([[[60, 90, 40], [20, 20, 20]]], np.uint8)
    found = answers.answer("boxes", {"boxes": boxes, "scores": scores})
    assert found["boxes.index"].tolist() == [[0, 0, 1], [0, 0, 2]]
    assert np.array_equal(found["boxes"], boxes[0, [1, 2]])
    np.testing.assert_allclose(found["boxes.score"], [0.9, 0.4], rtol=1e-6)
    none = answers.answer("boxes", {"boxes": boxes, "scores": scores // 9})
    assert {name: part.shape for name, part in none.items()} == {
        "boxes": (0, 4),
        "boxes.index": (0, 3),
        "boxes.score": (0,),
    }
    with pytest.raises(InferenceError, match="the scores of 3 boxes, but 'boxes'"):
        answers.answer("boxes", {"boxes": boxes[:, 1:], "scores": scores})


def test_what_is_not_declared_is_left_as_it_is() -> None:
    values = np.zeros((1, 3, 2, 2), np.float32)
    assert Answers(SPECS, {}).answer("map", {"map": values})["map"] is values


SUPPRESSION = Suppression(scores="scores")


@pytest.mark.parametrize(
    ("name", "how", "text"),
    [
        ("none", {}, "no such output"),
        ("logits", {"softmax": True}, "cannot be the scores of a softmax"),
        ("logits", {"top_k": -1}, "top_k is -1"),
        ("logits", {"top_k": 1, "axis": 2}, "no axis 2 among 2"),
        ("logits", {"labels": ("a\nb",)}, "not a line of text"),
        ("logits", {"labels": ("",)}, "not a line of text"),
        ("logits", {"labels": tuple("abcde")}, "5 labels for 4 classes"),
        ("map", {"quantization": CODES}, "FP32 cannot be quantized"),
        ("map", {"suppression": SUPPRESSION}, r"boxes must be \(batch, box, 4\)"),
        ("boxes", {"suppression": Suppression(scores="no")}, "no output 'no' with scores"),
        ("boxes", {"suppression": SUPPRESSION, "top_k": 1}, "cannot have softmax or top_k"),
        ("boxes", {"suppression": Suppression(scores="scores", iou_threshold=2)}, "0 to 1"),
        (
            "boxes",
            {"suppression": Suppression(scores="scores", score_threshold=float("nan"))},
            "finite",
        ),
        (
            "boxes",
            {"suppression": Suppression(scores="scores", max_boxes_per_class=0)},
            "max_boxes_per_class must be 1",
        ),
    ],
)
def test_a_declaration_that_does_not_fit_is_refused(
    name: str, how: dict[str, Any], text: str
) -> None:
    with pytest.raises(DeclarationError, match=text) as caught:
        Answers(SPECS, {name: Postprocessing(**how)})
    assert "\n" not in str(caught.value)


def test_the_parts_of_an_answer_have_names_of_their_own() -> None:
    taken = TensorSpec(name="logits.index", datatype="INT64", shape=(-1, 4))
    with pytest.raises(DeclarationError, match=r"has an output logits\.index already"):
        Answers((*SPECS, taken), {"logits": Postprocessing(top_k=1)})
