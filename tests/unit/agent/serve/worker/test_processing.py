"""Raw inputs, declared answers and classification, as clients ask for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.serve.worker.inference_protocol import InferenceProtocol
from agent.serve.worker.processing import MAX_CLASSES, Processing
from runtime_adapters.errors import InferenceError, InputError
from runtime_adapters.processing.errors import DeclarationError
from runtime_adapters.protocol import Tensors
from tests.simulators.packages import variant
from wire.package.processing import Postprocessing, Preprocessing, Quantization
from wire.package.tensors import TensorSpec

INPUTS = (
    TensorSpec(name="image", datatype="FP32", shape=(-1, 3, 2, 2)),
    TensorSpec(name="state", datatype="FP32", shape=(1,)),
)
OUTPUTS = (
    TensorSpec(name="codes", datatype="INT8", shape=(-1, 3)),
    TensorSpec(name="single", datatype="FP32", shape=(4,)),
    TensorSpec(name="flag", datatype="BOOL", shape=(-1, 2)),
)
IMAGE = Preprocessing(
    source_datatype="UINT8",
    source_layout="NHWC",
    layout="NCHW",
    resize="nearest",
    mean=(1.0, 2.0, 3.0),
)
CODES = Postprocessing(
    quantization=Quantization(scale=(0.5,), zero_point=(-1,)), top_k=2, labels=("cat", "dög")
)
VALUES: dict[str, Any] = {
    "codes": np.array([[1, 3, 3], [-1, -3, -2]], np.int8),
    "single": np.array([0.25, -np.inf, -1, 1e-9], np.float32),
    "flag": np.array([[True, False]]),
}


def protocol() -> InferenceProtocol:
    return InferenceProtocol(
        inputs=INPUTS,
        outputs=OUTPUTS,
        model_name="m",
        model_version="1",
        parameters={},
        processing=Processing(INPUTS, OUTPUTS, {"image": IMAGE}, {"codes": CODES}),
    )


def asked(image: dict[str, Any], *outputs: dict[str, Any], **fields: Any) -> bytes:
    state = {"name": "state", "datatype": "FP32", "shape": [1], "data": [0]}
    inputs = [{"name": "image", **image}, state]
    return json.dumps({"inputs": inputs, "outputs": outputs, **fields}).encode()


RAW: dict[str, Any] = {
    "datatype": "UINT8",
    "shape": [1, 1, 2, 3],
    "parameters": {"raw": True},
    "data": [5, 6, 7, 8, 9, 10],
}


def test_a_raw_image_of_another_size_becomes_what_the_model_takes() -> None:
    found = protocol().decode(memoryview(asked(RAW)), None).inputs["image"]
    assert found.dtype == np.float32
    assert found.tolist() == [[[[4, 7]] * 2, [[4, 7]] * 2, [[4, 7]] * 2]]
    content = asked({k: v for k, v in RAW.items() if k != "data"} | {
        "parameters": {"raw": True, "binary_data_size": 6}
    })  # fmt: skip
    binary = protocol().decode(memoryview(content + bytes(RAW["data"])), len(content))
    assert np.array_equal(binary.inputs["image"], found)


def test_a_prepared_image_is_taken_as_it_is() -> None:
    values = np.arange(12).tolist()
    content = asked({"datatype": "FP32", "shape": [1, 3, 2, 2], "data": values})
    assert protocol().decode(memoryview(content), None).inputs["image"].ravel().tolist() == values


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"parameters": {}}, "is UINT8, but the model declares FP32"),
        ({"parameters": {"raw": "yes"}}, "neither true nor false"),
        ({"datatype": "FP32"}, "is FP32, but the model declares UINT8"),
        ({"shape": [1, 2, 3]}, "has shape"),
        ({"shape": [1, 1, 6, 1]}, "has shape"),
        ({"shape": [1, 0, 2, 3]}, "has shape"),
        ({"shape": [1, -1, 2, 3]}, "has shape"),
        ({"shape": [1, 2**31 - 1, 2**31 - 1, 3]}, "does not hold"),
        ({"data": [256, 0, 0, 0, 0, 0]}, "does not hold"),
    ],
)
def test_a_raw_image_that_is_none_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text) as caught:
        protocol().decode(memoryview(asked(RAW | changes)), None)
    assert "\n" not in str(caught.value)


def test_an_input_without_a_declaration_is_not_taken_raw() -> None:
    document = json.loads(asked(RAW))
    document["inputs"][1]["parameters"] = {"raw": True}
    with pytest.raises(InputError, match="'state' has no declared preprocessing"):
        protocol().decode(memoryview(json.dumps(document).encode()), None)


def answered(
    *outputs: dict[str, Any], values: Tensors = VALUES, **fields: Any
) -> tuple[list[Any], bytes]:
    made = protocol()
    request = made.decode(memoryview(asked(RAW, *outputs, **fields)), None)
    headers, content = made.encode(request, values)
    length = int(headers.get("Inference-Header-Content-Length", len(content)))
    return json.loads(content[:length])["outputs"], content[length:]


def test_the_best_classes_of_each_row_come_as_text() -> None:
    (one,), _ = answered({"name": "codes", "parameters": {"classification": 2}})
    assert (one["datatype"], one["shape"]) == ("BYTES", [2, 2])
    assert one["data"] == ["3:1:dög", "3:2", "-1:0:cat", "-2:2"]
    (one,), _ = answered({"name": "single", "parameters": {"classification": 3}})
    assert one["shape"] == [3]
    assert one["data"] == ["0.250000:0", "0.000000:3", "-1.000000:2"], "-inf: a class is shut out"
    (one,), _ = answered({"name": "codes", "parameters": {"classification": 9}})
    assert one["shape"] == [2, 3]


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(
    ("scores", "count"),
    [
        ([0.25, np.nan, -1, 0], 1),
        ([0.25, np.nan, -1, 0], 4),
        ([0.25, np.inf, -1, 0], 1),
        ([0.25, -np.inf, -1, 0], 4),
    ],
)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_what_is_no_score_is_an_error_and_no_text(
    scores: list[float], count: int, dtype: type, *, binary: bool
) -> None:
    how = {"classification": count, "binary_data": binary}
    with pytest.raises(InferenceError, match="output 'single' holds NaN or infinity"):
        answered(
            {"name": "single", "parameters": how},
            values=VALUES | {"single": np.array(scores, dtype)},
        )


def test_classes_of_declared_scores() -> None:
    (one,), _ = answered({"name": "codes", "parameters": {"classification": 1, "processed": True}})
    assert one["data"] == ["2.000000:1:dög", "0.000000:0:cat"]


def test_text_that_is_sent_raw_has_its_lengths() -> None:
    (one,), raw = answered(
        {"name": "codes", "parameters": {"classification": 1, "binary_data": True}}
    )
    texts = ["3:1:dög".encode(), b"-1:0:cat"]
    assert raw == b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    assert one["parameters"] == {"binary_data_size": len(raw)}


def test_a_declared_answer_has_parts() -> None:
    plain = {"name": "single", "parameters": {"binary_data": True}}
    outputs, _ = answered({"name": "codes", "parameters": {"processed": True}}, plain)
    values, index, single = outputs
    assert (values["name"], values["datatype"], values["shape"]) == ("codes", "FP32", [2, 2])
    assert values["data"] == [2, 2, 0, -0.5]
    assert (index["name"], index["datatype"]) == ("codes.index", "INT64")
    assert index["data"] == [1, 2, 0, 2]
    assert single["name"] == "single"


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ({"name": "flag", "parameters": {"classification": 1}}, "no scores to classify"),
        ({"name": "single", "parameters": {"processed": True}}, "no declared postprocessing"),
        ({"name": "codes", "parameters": {"classification": 0}}, "not a number of classes"),
        ({"name": "codes", "parameters": {"classification": True}}, "not a number of classes"),
    ],
)
def test_an_answer_that_there_is_not_is_refused(output: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        protocol().decode(memoryview(asked(RAW, output)), None)


def test_an_answer_holds_only_so_many_texts() -> None:
    wide = TensorSpec(name="map", datatype="FP32", shape=(1, -1))
    made = InferenceProtocol(
        inputs=[], outputs=[wide], model_name="m", model_version="1", parameters={}
    )
    wanted = {"name": "map", "parameters": {"classification": 2**31 - 1}}
    request = made.decode(
        memoryview(json.dumps({"inputs": [], "outputs": [wanted]}).encode()), None
    )
    with pytest.raises(InputError, match="over the limit"):
        made.encode(request, {"map": np.zeros((1, MAX_CLASSES + 1), np.float32)})


def test_a_declaration_that_does_not_fit_is_a_fault_of_the_package() -> None:
    with pytest.raises(DeclarationError, match="scale must not be 0"):
        Processing(INPUTS, (), {"image": Preprocessing(source_datatype="FP32", scale=0.0)}, {})


def test_a_variant_that_declares_nothing_needs_no_kernels(tmp_path: Path) -> None:
    assert "image" not in Processing.ready(variant("a").info, tmp_path).describe()
