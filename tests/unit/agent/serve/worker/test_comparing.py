"""How a shadow's answer is compared with that of the release that serves."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest

from agent.serve.worker.comparing import NOT_TENSORS, OTHER_OUTPUTS, Comparer
from agent.serve.worker.processing import Wanted
from tests.simulators.packages import variant
from wire.package.golden import Golden, Tolerance
from wire.package.tensors import TensorSpec

SCORES = np.array([[0.1, 0.7, 0.2, 0.0], [0.5, 0.1, 0.1, 0.3]], np.float32)
CLASSIFIER = variant("v").info
GOLDEN = Golden(asset="a", samples=1, tolerances={"map": Tolerance(absolute=0.1, relative=0.0)})
REGRESSION = msgspec.structs.replace(
    CLASSIFIER,
    outputs=(TensorSpec(name="map", datatype="FP32", shape=(-1, 2, 2)),),
    golden=GOLDEN,
)
WANTED = (Wanted(name="y", binary=False),)


def answer(name: str, values: Any, *, datatype: str = "FP32") -> memoryview:
    shape = list(values.shape)
    output = {"name": name, "datatype": datatype, "shape": shape, "data": values.ravel().tolist()}
    return memoryview(json.dumps({"model_name": "m", "outputs": [output]}).encode())


def test_a_classifier_agrees_if_every_sample_has_the_same_class() -> None:
    comparer = Comparer(CLASSIFIER, "")
    live = comparer.read(WANTED, answer("y", SCORES), None)
    assert not isinstance(live, str)
    agrees, difference = comparer.compare({"y": SCORES * 0.5}, live)
    assert agrees
    assert difference == pytest.approx(0.35)
    assert comparer.compare({"y": SCORES[:, ::-1]}, live)[0] is False


def test_raw_answers_of_another_type_are_read() -> None:
    header = {
        "name": "y", "datatype": "FP64", "shape": [2, 4], "parameters": {"binary_data_size": 64},
    }  # fmt: skip
    head = json.dumps({"outputs": [header]}).encode()
    body = memoryview(head + SCORES.astype("<f8").tobytes())
    comparer = Comparer(CLASSIFIER, "")
    live = comparer.read(WANTED, body, len(head))
    assert not isinstance(live, str)
    agrees, difference = comparer.compare({"y": SCORES}, live)
    assert (agrees, difference) == (True, 0.0)


def test_without_classes_numbers_agree_within_the_tolerance_of_the_golden_test() -> None:
    comparer = Comparer(REGRESSION, "")
    values = np.zeros((1, 2, 2), np.float32)
    live = comparer.read((Wanted(name="map", binary=False),), answer("map", values), None)
    assert not isinstance(live, str)
    agrees, difference = comparer.compare({"map": values + 0.05}, live)
    assert agrees
    assert difference == pytest.approx(0.05)
    assert comparer.compare({"map": values + 0.2}, live)[0] is False
    assert comparer.compare({"map": values[:, :1]}, live) == (False, None)


@pytest.mark.parametrize(
    ("wanted", "body", "why"),
    [
        (Wanted(name="y", binary=False, classes=1), answer("y", SCORES), NOT_TENSORS),
        (Wanted(name="y", binary=False, processed=True), answer("y", SCORES), NOT_TENSORS),
        (WANTED[0], answer("z", SCORES), OTHER_OUTPUTS),
        (WANTED[0], answer("y", SCORES[0]), OTHER_OUTPUTS),
        (WANTED[0], answer("y", SCORES, datatype="FP7"), OTHER_OUTPUTS),
        (WANTED[0], memoryview(b'{"outputs": ['), OTHER_OUTPUTS),
    ],
)
def test_what_cannot_be_compared_is_told(wanted: Wanted, body: memoryview, why: str) -> None:
    assert Comparer(CLASSIFIER, "").read((wanted,), body, None) == why
