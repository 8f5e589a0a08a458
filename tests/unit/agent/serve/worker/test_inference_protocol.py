"""What the worker makes of the bodies that clients send."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.serve.worker.inference_protocol import MAX_JSON_BYTES, InferenceProtocol
from runtime_adapters.errors import InferenceError, InputError
from runtime_adapters.protocol import Tensors
from wire.package.tensors import Datatype, TensorSpec


def protocol(datatype: Datatype = "FP32", shape: tuple[int, ...] = (-1, 3)) -> InferenceProtocol:
    return InferenceProtocol(
        inputs=[TensorSpec(name="x", datatype=datatype, shape=shape)],
        outputs=[
            TensorSpec(name="y", datatype="FP32", shape=(-1, 2)),
            TensorSpec(name="z", datatype="INT64", shape=(-1,)),
        ],
        model_name="digits",
        model_version="1.2",
        parameters={"variant": "int8"},
    )


def body(**changes: Any) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2.5, -3]} | changes
    return json.dumps({"inputs": [{k: v for k, v in tensor.items() if v is not None}]}).encode()


def decoded(content: bytes, header_length: int | None = None, **kind: Any) -> Any:
    return protocol(**kind).decode(memoryview(content), header_length)


@pytest.mark.parametrize(
    ("shape", "data"),
    [([1, 3], [1, 2, 3]), ([1, 3], [[1, 2, 3]]), ([2, 3], [[1, 2, 3], [4, 5, 6.5]])],
)
def test_values_come_flat_or_nested(shape: list[int], data: list[Any]) -> None:
    array = decoded(body(shape=shape, data=data)).inputs["x"]
    assert array.dtype == np.float32
    assert array.tolist() == np.array(data, np.float32).reshape(shape).tolist()


def test_raw_bytes_are_not_copied() -> None:
    values = np.arange(6, dtype="<f4").reshape(2, 3)
    header = body(shape=[2, 3], data=None, parameters={"binary_data_size": 24})
    header += b" " * (-len(header) % 8)
    whole = header + values.tobytes()
    array = decoded(whole, len(header)).inputs["x"]
    assert array.tolist() == values.tolist()
    assert not array.flags.owndata


@pytest.mark.parametrize(
    ("datatype", "values"),
    [
        ("UINT64", [2**64 - 1, 1, 2**63]),
        ("INT64", [-(2**63), 2**63 - 1, 0]),
        ("UINT8", [0, 255, 1]),
        ("INT8", [-128, 127, 0]),
        ("BOOL", [True, False, True]),
        ("FP64", [1e300, -0.1, 3]),
        ("FP16", [0.5, -2, 65504]),
    ],
)
def test_every_type_holds_its_extremes(datatype: Datatype, values: list[Any]) -> None:
    array = decoded(body(datatype=datatype, data=values), datatype=datatype).inputs["x"]
    assert array.ravel().tolist() == values


@pytest.mark.parametrize(
    ("datatype", "values"),
    [
        ("UINT64", [2**64, 1, 1]),
        ("INT64", [2**63, 1, 1]),
        ("UINT8", [256, 1, 1]),
        ("UINT8", [-1, 1, 1]),
        ("INT8", [1.5, 1, 1]),
        ("BOOL", [1, 0, 1]),
        ("FP16", [70000, 1, 1]),
        ("FP32", [1e300, 1, 1]),
        ("FP32", ["1", "2", "3"]),
        ("FP32", [True, False, True]),
        ("FP32", [None, 1, 1]),
        ("FP32", [{}, 1, 1]),
        ("FP32", [[1, 2], [3]]),
        ("FP32", [[[1, 2, 3]]]),
        ("FP32", [1, 2]),
        ("FP32", []),
        ("FP32", 1),
        ("FP32", "abc"),
    ],
)
def test_what_the_type_cannot_hold_is_refused(datatype: Datatype, values: Any) -> None:
    with pytest.raises(InputError):
        decoded(body(datatype=datatype, data=values), datatype=datatype)


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": [-1, 3]},
        {"shape": [0, 3]},
        {"shape": [2, 3]},
        {"shape": [3]},
        {"shape": []},
        {"shape": [1, 4]},
        {"shape": [2**40, 3]},
        {"shape": [10**30, 3]},
        {"shape": [1.5, 3]},
        {"shape": [2**31 - 1, 3], "data": None, "parameters": {"binary_data_size": 12}},
        {"name": "other"},
        {"datatype": "FP64"},
        {"datatype": "BYTES"},
        {"data": None},
        {"parameters": {"binary_data_size": 12}},
        {"data": None, "parameters": {"binary_data_size": -12}},
        {"data": None, "parameters": {"binary_data_size": "12"}},
        {"data": None, "parameters": {"binary_data_size": True}},
    ],
)
def test_what_is_not_declared_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        decoded(body(**changes))


@pytest.mark.parametrize(
    "raw",
    [b"", bytes(11), bytes(13), bytes(1000)],
)
def test_raw_bytes_must_add_up(raw: bytes) -> None:
    header = body(data=None, parameters={"binary_data_size": 12})
    with pytest.raises(InputError):
        decoded(header + raw, len(header))


def test_a_raw_tensor_has_no_values_beside_it() -> None:
    header = body(parameters={"binary_data_size": 12})
    with pytest.raises(InputError, match="both"):
        decoded(header + bytes(12), len(header))


def test_a_raw_bool_is_zero_or_one() -> None:
    header = body(datatype="BOOL", data=None, parameters={"binary_data_size": 3})
    assert decoded(header + b"\1\0\1", len(header), datatype="BOOL").inputs["x"].any()
    with pytest.raises(InputError, match="BOOL"):
        decoded(header + b"\1\0\2", len(header), datatype="BOOL")


@pytest.mark.parametrize("data", [["a", "ö", ""], [["a", "ö", ""]]])
def test_texts_are_read_flat_or_nested(data: list[Any]) -> None:
    found = decoded(body(datatype="BYTES", data=data), datatype="BYTES").inputs["x"]
    assert found.tolist() == [["a", "ö", ""]]
    assert found.dtype == np.object_


@pytest.mark.parametrize(
    "data",
    [["a", "b"], [["a", "b"], ["c"]], [["a"], ["b"], ["c"]], [], [[]], "abc", [1, 2, 3], [None]],
)
def test_texts_of_another_number_shape_or_type_are_refused(data: object) -> None:
    with pytest.raises(InputError, match="does not hold 3 values of BYTES"):
        decoded(body(datatype="BYTES", data=data), datatype="BYTES")


def test_raw_texts_are_read_and_may_not_be_in_the_json_too() -> None:
    raw = b"\1\0\0\0a\2\0\0\0\xc3\xb6\0\0\0\0"
    header = body(datatype="BYTES", data=None, parameters={"binary_data_size": len(raw)})
    assert decoded(header + raw, len(header), datatype="BYTES").inputs["x"].tolist() == [
        ["a", "ö", ""]
    ]
    for size in (len(raw) + 1, -1, "3", True):
        header = body(datatype="BYTES", data=None, parameters={"binary_data_size": size})
        with pytest.raises(InputError, match=r"needs its raw bytes, .* are announced"):
            decoded(header + raw, len(header), datatype="BYTES")
    both = body(datatype="BYTES", data=["a"], parameters={"binary_data_size": len(raw)})
    with pytest.raises(InputError, match="both raw and in the JSON"):
        decoded(both + raw, len(both), datatype="BYTES")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b'{"inputs": 1}',
        b'{"inputs": []}',
        b'{"inputs": [{}]}',
        b'{"id": 7, "inputs": []}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"inputs":' * 5_000,
        b'{"id": "\\ud800", "inputs": []}',
    ],
)
def test_what_is_no_request_is_refused(content: bytes) -> None:
    with pytest.raises(InputError):
        decoded(content)


@pytest.mark.parametrize("raw", [b"", b"\0\0\0\0"])
def test_a_request_without_json_hears_what_to_send(raw: bytes) -> None:
    with pytest.raises(InputError, match="no body, or no JSON in it") as info:
        decoded(raw, 0 if raw else None)
    assert '"inputs"' in info.value.remedy
    assert "GET /v2/models/NAME" in info.value.remedy


def test_the_json_part_has_a_bound() -> None:
    with pytest.raises(InputError, match="JSON"):
        decoded(body() + b" " * MAX_JSON_BYTES)


def test_an_input_must_not_come_twice() -> None:
    tensor = json.loads(body())["inputs"][0]
    with pytest.raises(InputError, match="twice"):
        decoded(json.dumps({"inputs": [tensor, tensor]}).encode())


def test_an_input_that_is_not_there_is_told_which_there_are() -> None:
    with pytest.raises(InputError, match="there is no input 'image': the model has x"):
        decoded(body(name="image"))


@pytest.mark.parametrize("length", [-1, 10**6])
def test_the_json_part_lies_within_the_body(length: int) -> None:
    with pytest.raises(InputError):
        decoded(body(), length)


def request(**fields: Any) -> bytes:
    return json.dumps(json.loads(body()) | fields).encode()


WRONG_COUNTS = (0, -1, True, "2", 1.5, None, 2**31)


@pytest.mark.parametrize(
    "fields",
    [
        {"outputs": [{"name": "nope"}]},
        {"outputs": [{"name": "y"}, {"name": "y"}]},
        *({"outputs": [{"name": "y", "parameters": {"classification": k}}]} for k in WRONG_COUNTS),
        {"outputs": [{"name": "y", "parameters": {"processed": True}}]},
        {"outputs": [{"name": "y", "parameters": {"processed": 1}}]},
        {"outputs": [{"name": "y", "parameters": {"binary_data": 1}}]},
        {"parameters": {"binary_data_output": "yes"}},
        {"id": "x" * 2000},
    ],
)
def test_what_is_not_offered_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        decoded(request(**fields))


OUTPUTS: Tensors = {"y": np.array([[1.5, -2.0]], np.float32), "z": np.array([7], np.int64)}


def test_a_json_answer() -> None:
    wanted = protocol().decode(memoryview(request(id="r1")), None)
    headers, content = protocol().encode(wanted, OUTPUTS)
    assert headers == {"Content-Type": "application/json"}
    assert json.loads(content) == {
        "model_name": "digits",
        "model_version": "1.2",
        "id": "r1",
        "parameters": {"variant": "int8"},
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1.5, -2.0]},
            {"name": "z", "datatype": "INT64", "shape": [1], "data": [7]},
        ],
    }


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_what_json_cannot_state_is_an_error_and_no_null(value: str, dtype: type) -> None:
    outputs = OUTPUTS | {"y": np.array([[1.5, float(value)]], dtype)}
    both = protocol().decode(memoryview(request()), None)
    with pytest.raises(InferenceError, match="output 'y' holds NaN or infinity") as info:
        protocol().encode(both, outputs)
    assert "binary data" in info.value.remedy
    other = protocol().decode(memoryview(request(outputs=[{"name": "z"}])), None)
    protocol().encode(other, outputs)
    raw = protocol().decode(memoryview(request(parameters={"binary_data_output": True})), None)
    headers, content = protocol().encode(raw, outputs)
    length = int(headers["Inference-Header-Content-Length"])
    assert content[length:].startswith(outputs["y"].tobytes()), "as raw bytes it is what it is"


def test_a_raw_answer_has_the_outputs_in_the_order_of_the_request() -> None:
    wanted = protocol().decode(
        memoryview(
            request(
                parameters={"binary_data_output": True},
                outputs=[{"name": "z"}, {"name": "y", "parameters": {"binary_data": True}}],
            )
        ),
        None,
    )
    headers, content = protocol().encode(wanted, OUTPUTS)
    length = int(headers["Inference-Header-Content-Length"])
    described = json.loads(content[:length])["outputs"]
    assert [d["name"] for d in described] == ["z", "y"]
    assert [d["parameters"]["binary_data_size"] for d in described] == [8, 8]
    assert content[length:] == OUTPUTS["z"].tobytes() + OUTPUTS["y"].tobytes()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=12,
)
tensors = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["x", "y", ""]) | json_values,
        "datatype": st.sampled_from(["FP32", "INT8", "BYTES"]) | json_values,
        "shape": st.just([1, 3]) | json_values,
        "data": st.just([1, 2, 3]) | json_values,
        "parameters": st.fixed_dictionaries({"binary_data_size": json_values}) | json_values,
    },
)
requests = st.fixed_dictionaries(
    {"inputs": st.lists(tensors, max_size=2) | json_values},
    optional={
        "id": json_values,
        "parameters": json_values,
        "outputs": st.lists(st.fixed_dictionaries({"name": json_values})) | json_values,
    },
)


@settings(max_examples=300)
@given(
    requests.map(lambda r: json.dumps(r).encode()) | st.binary(max_size=100),
    st.binary(max_size=20),
    st.none() | st.integers(-5, 300),
)
def test_any_body_is_understood_or_refused(
    content: bytes, raw: bytes, header_length: int | None
) -> None:
    length = len(content) if header_length is None else header_length
    try:
        understood = decoded(content + raw, length)
    except InputError:
        return
    assert understood.inputs["x"].shape[1:] == (3,)
    assert understood.inputs["x"].dtype == np.float32
