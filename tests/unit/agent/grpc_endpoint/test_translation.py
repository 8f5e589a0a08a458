"""A request and an answer keep what they hold on their way between gRPC and HTTP."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.grpc_endpoint.statuses import RefusedCallError
from agent.grpc_endpoint.translation import (
    HEADER_LENGTH,
    InferCall,
    Tensor,
    Value,
    Wanted,
    answer_of,
    request_parts,
)
from agent.serve.worker.inference_protocol import InferenceProtocol
from runtime_adapters.texts import raw_from_texts
from tests.simulators.triton import EVERY_TYPE
from wire.package.tensors import TensorSpec

LIMIT = 2**20
FIELDS = {
    "BOOL": "bool", "INT8": "int", "INT16": "int", "INT32": "int", "INT64": "int64",
    "UINT8": "uint", "UINT16": "uint", "UINT32": "uint", "UINT64": "uint64",
    "FP32": "fp32", "FP64": "fp64", "BYTES": "bytes",
}  # fmt: skip
SHORT = (
    b'{"model_name":"m","outputs":[{"name":"y","datatype":"FP32","shape":[1],'
    b'"parameters":{"binary_data_size":9}}]}'
)
TEXT = st.text(max_size=20)
VALUES: st.SearchStrategy[Value] = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXT,
)
PARAMETERS = st.dictionaries(
    TEXT.filter(lambda name: name not in {"deferrable", "shared_memory_region"}), VALUES, max_size=3
)


def call(
    inputs: Sequence[Tensor] = (),
    raw: Sequence[bytes] = (),
    parameters: Mapping[str, Value] | None = None,
    outputs: Sequence[Wanted] = (),
) -> InferCall:
    return InferCall("m", "", "id", parameters or {}, inputs, outputs, raw)


def typed(datatype: str, values: Sequence[Any], shape: Sequence[int], field: str = "") -> Tensor:
    name = f"{field or FIELDS[datatype]}_contents"
    return Tensor("x", datatype, shape, {}, {name: values} if values else {})


def refusal(request: InferCall, limit_bytes: int = LIMIT) -> tuple[str, str]:
    with pytest.raises(RefusedCallError) as info:
        request_parts(request, limit_bytes=limit_bytes)
    return info.value.code, info.value.message


@st.composite
def arrays(draw: st.DrawFn) -> tuple[str, np.ndarray[Any, Any]]:
    datatype = draw(st.sampled_from([t for t in EVERY_TYPE if t != "FP16"]))
    names = {"BOOL": "bool", "FP32": "float32", "FP64": "float64"}
    dtype = np.dtype(names.get(datatype, datatype.lower()))
    shape = draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    if dtype.kind == "b":
        element: st.SearchStrategy[Any] = st.booleans()
    elif dtype.kind == "f":
        element = st.floats(width=32 if dtype.itemsize == 4 else 64)
    else:
        element = st.integers(int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    count = int(np.prod(shape))
    values = draw(st.lists(element, min_size=count, max_size=count))
    return datatype, np.array(values, dtype).reshape(shape)


@given(arrays())
def test_typed_contents_become_the_bytes_of_the_array(
    drawn: tuple[str, np.ndarray[Any, Any]],
) -> None:
    datatype, array = drawn
    tensor = typed(datatype, array.ravel().tolist(), array.shape)
    header, raw = request_parts(call([tensor]), limit_bytes=LIMIT)
    assert raw == [array.astype(array.dtype.newbyteorder("<")).tobytes()]
    described = json.loads(header)["inputs"][0]
    assert described["shape"] == list(array.shape)
    assert described["parameters"] == {"binary_data_size": array.nbytes}


@given(st.lists(st.text(max_size=8), max_size=5))
def test_texts_get_their_lengths_in_front(texts: list[str]) -> None:
    tensor = typed("BYTES", [text.encode() for text in texts], [len(texts)])
    _, raw = request_parts(call([tensor]), limit_bytes=LIMIT)
    assert raw == [raw_from_texts(texts)]


@given(PARAMETERS, PARAMETERS, st.lists(st.binary(max_size=16), max_size=3))
def test_parameters_and_raw_contents_are_handed_on_as_they_are(
    parameters: dict[str, Value], of_a_tensor: dict[str, Value], raw: list[bytes]
) -> None:
    inputs = [Tensor(f"x{n}", "FP16", [1], of_a_tensor, {}) for n in range(len(raw))]
    request = call(inputs, raw, parameters, [Wanted("y", of_a_tensor)])
    header, parts = request_parts(request, limit_bytes=LIMIT)
    document = json.loads(header)
    assert parts == raw
    assert document["id"] == "id"
    assert document["parameters"] == parameters | {"binary_data_output": True}
    for described, content in zip(document["inputs"], raw, strict=True):
        assert described["parameters"] == of_a_tensor | {"binary_data_size": len(content)}
    assert document["outputs"][0]["parameters"] == of_a_tensor | {"binary_data": True}


@given(arrays())
def test_a_tensor_comes_back_from_the_workers_own_protocol(
    drawn: tuple[str, np.ndarray[Any, Any]],
) -> None:
    datatype, array = drawn
    if array.size == 0:
        return
    spec = TensorSpec(name="x", datatype=datatype, shape=array.shape)  # type: ignore[arg-type]  # one of EVERY_TYPE
    protocol = InferenceProtocol(
        inputs=[spec], outputs=[spec], model_name="m", model_version="1", parameters={"a": "b"}
    )
    tensor = typed(datatype, array.ravel().tolist(), array.shape)
    header, raw = request_parts(call([tensor]), limit_bytes=LIMIT)
    request = protocol.decode(memoryview(b"".join([header, *raw])), len(header))
    assert np.array_equal(request.inputs["x"], array, equal_nan=array.dtype.kind == "f")
    headers, body = protocol.encode(request, request.inputs)
    answer = answer_of({name.lower(): v for name, v in headers.items()}, memoryview(body))
    assert (answer.model, answer.version, answer.id) == ("m", "1", "id")
    assert answer.parameters == {"a": "b"}
    (output,) = answer.outputs
    assert (output.name, output.datatype, tuple(output.shape)) == ("x", datatype, array.shape)
    assert output.parameters == {}
    assert bytes(output.raw) == raw[0]


@pytest.mark.parametrize(
    ("tensor", "fault"),
    [
        (typed("INT8", [128], [1]), "has a value that is not within INT8"),
        (typed("UINT16", [65536], [1]), "has a value that is not within UINT16"),
        (typed("FP32", [1.0], [2]), "has 1 values in fp32_contents"),
        (typed("FP32", [1.0], [-1]), "has 1 values in fp32_contents"),
        (typed("FP32", [], [10**9, 10**9, 10**9]), "has 0 values in fp32_contents"),
        (typed("FP32", [1], [1], "int"), "whose contents belong into fp32_contents"),
        (typed("FP16", [1.0], [1], "fp32"), "send it in raw_input_contents"),
        (typed("", [1.0], [1], "fp32"), "send it in raw_input_contents"),
        (typed("XXX" * 99, [1.0], [1], "fp32"), "send it in raw_input_contents"),
    ],
)
def test_contents_that_do_not_fit_are_refused(tensor: Tensor, fault: str) -> None:
    code, message = refusal(call([tensor]))
    assert (code, fault in message) == ("INVALID_ARGUMENT", True), message


@pytest.mark.parametrize("tensors", [1, 3])
def test_contents_that_would_be_longer_than_a_body_are_not_packed(tensors: int) -> None:
    inputs = [typed("INT64", [0] * 100, [100])] * tensors
    assert refusal(call(inputs), 800 * tensors - 1)[0] == "RESOURCE_EXHAUSTED"
    assert len(request_parts(call(inputs), limit_bytes=800 * tensors)[1]) == tensors
    texts = typed("BYTES", [b"abc"] * 2, [2])
    assert refusal(call([texts]), 13)[0] == "RESOURCE_EXHAUSTED"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_parameter_that_json_cannot_state_is_refused(value: float) -> None:
    assert refusal(call(parameters={"p": value}))[0] == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("body", "length"),
    [
        (b"{", None),
        (b"[]", None),
        (b'{"model_name": "m"}', "x"),
        (b'{"model_name":"m","outputs":[{"name":"y","datatype":"FP32","shape":[1]}]}', None),
        (SHORT, None),
    ],
)
def test_an_answer_that_is_none_is_told_as_our_fault(body: bytes, length: str | None) -> None:
    headers = {} if length is None else {HEADER_LENGTH: length}
    with pytest.raises(RefusedCallError) as info:
        answer_of(headers, memoryview(body))
    assert info.value.code == "INTERNAL"


def test_an_answer_without_outputs_is_an_answer() -> None:
    answer = answer_of({}, memoryview(b'{"model_name": "m", "outputs": []}'))
    assert (answer.model, list(answer.outputs)) == ("m", [])
