"""Which output of a variant has the classes that feedback is about."""

from __future__ import annotations

from typing import Any

import pytest

from wire.package.distribution import Distribution
from wire.package.processing import Postprocessing, Quantization, Suppression
from wire.package.scores import MOST_CLASSES, Classes, classes_of
from wire.package.tensors import Datatype, TensorSpec
from wire.package.variant import VariantInfo


def info(*outputs: TensorSpec, **more: Any) -> VariantInfo:
    return VariantInfo(
        runtime="null",
        precision="fp32",
        model_file="model.json",
        inputs=(),
        outputs=outputs,
        size_bytes=1,
        **more,
    )


def output(*shape: int, name: str = "y", datatype: Datatype = "FP32") -> TensorSpec:
    return TensorSpec(name=name, datatype=datatype, shape=shape)


@pytest.mark.parametrize(
    ("spec", "number"),
    [
        (output(-1, 10), 10),
        (output(1, 10), 10),
        (output(10), 10),
        (output(-1, 1, 1, 1000), 1000),
        (output(-1, 1), None),
        (output(-1), None),
        (output(-1, -1), None),
        (output(-1, 4, 10), None),
        (output(-1, MOST_CLASSES + 1), None),
        (output(-1, 10, datatype="INT64"), None),
        (output(-1, 10, datatype="BYTES"), None),
    ],
)
def test_scores_are_one_row_of_a_declared_size(spec: TensorSpec, number: int | None) -> None:
    found = classes_of(info(spec))
    assert found == (None if number is None else Classes(output="y", number=number))


def test_labels_name_the_scores_and_else_the_evaluation_does() -> None:
    plain = (output(-1, 4, name="embedding"), output(-1, 3, name="a"), output(-1, 3, name="b"))
    counted = Distribution(of="output", tensor="a", measure="class", classes=(0,), counts=(1, 1))
    assert classes_of(info(*plain)) == Classes(output="embedding", number=4)
    assert classes_of(info(*plain, distributions=(counted,))) == Classes(output="a", number=3)
    labels = {"b": Postprocessing(labels=("cat", "dog"))}
    assert classes_of(info(*plain, distributions=(counted,), postprocessing=labels)) == Classes(
        output="b", number=3, labels=("cat", "dog")
    )


def test_declared_integers_are_scores_and_scores_of_boxes_are_none() -> None:
    integers = {"y": Postprocessing(quantization=Quantization(scale=(0.5,)))}
    assert classes_of(info(output(1, 10, datatype="UINT8"), postprocessing=integers)) == Classes(
        output="y", number=10
    )
    boxes = {"y": Postprocessing(suppression=Suppression(scores="y"))}
    assert classes_of(info(output(1, 10), postprocessing=boxes)) is None
