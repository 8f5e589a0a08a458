"""Messages keep what they hold, and bytes that are none are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.grpc_endpoint.statuses import RefusedCallError
from agent.grpc_endpoint.translation import InferAnswer, Output

pytest.importorskip("google.protobuf", reason="protobuf is not installed")
from agent.grpc_endpoint.messages import SMALL_BYTES, Messages

MESSAGES = Messages()
TEXT = st.text(max_size=12)
SHAPE = st.lists(st.integers(-1, 2**31), max_size=3)
VALUES = st.one_of(
    st.booleans().map(lambda value: ("bool_param", value)),
    st.integers(-(2**63), 2**63 - 1).map(lambda value: ("int64_param", value)),
    st.integers(0, 2**64 - 1).map(lambda value: ("uint64_param", value)),
    TEXT.map(lambda value: ("string_param", value)),
    st.floats(allow_nan=False).map(lambda value: ("double_param", value)),
)
PARAMETERS = st.dictionaries(TEXT, VALUES, max_size=3)


def set_on(made: Any, parameters: dict[str, tuple[str, Any]]) -> dict[str, Any]:
    for name, (kind, value) in parameters.items():
        setattr(made[name], kind, value)
    return {name: value for name, (_, value) in parameters.items()}


@given(
    TEXT,
    TEXT,
    PARAMETERS,
    st.lists(
        st.tuples(TEXT, SHAPE, PARAMETERS, st.lists(st.integers(0, 99), max_size=3)), max_size=3
    ),
    st.lists(st.tuples(TEXT, PARAMETERS), max_size=2),
    st.lists(st.binary(max_size=9), max_size=3),
)
def test_a_request_is_read_as_it_was_written(
    model: str,
    request_id: str,
    parameters: dict[str, tuple[str, Any]],
    inputs: list[tuple[str, list[int], dict[str, tuple[str, Any]], list[int]]],
    outputs: list[tuple[str, dict[str, tuple[str, Any]]]],
    raw: list[bytes],
) -> None:
    made = MESSAGES._class("inference.ModelInferRequest")(
        model_name=model, id=request_id, raw_input_contents=raw
    )
    expected = set_on(made.parameters, parameters)
    for name, shape, own, values in inputs:
        tensor = made.inputs.add(name=name, datatype="INT64", shape=shape)
        set_on(tensor.parameters, own)
        tensor.contents.int64_contents.extend(values)
    for name, own in outputs:
        set_on(made.outputs.add(name=name).parameters, own)
    call = MESSAGES.infer_call(made.SerializeToString())
    assert (call.model, call.version, call.id) == (model, "", request_id)
    assert call.parameters == expected
    assert list(call.raw) == raw
    for tensor, (name, shape, own, values) in zip(call.inputs, inputs, strict=True):
        assert (tensor.name, tensor.datatype, list(tensor.shape)) == (name, "INT64", shape)
        assert tensor.parameters == {key: value for key, (_, value) in own.items()}
        given_values = {field: list(found) for field, found in tensor.contents.items()}
        assert given_values == ({"int64_contents": values} if values else {})
    assert [wanted.name for wanted in call.outputs] == [name for name, _ in outputs]


@given(st.binary(max_size=64))
def test_any_bytes_are_a_request_or_refused_as_none(content: bytes) -> None:
    try:
        call = MESSAGES.infer_call(content)
    except RefusedCallError as exc:
        code = exc.code
    else:
        code, _ = "INVALID_ARGUMENT", call.model
    assert code == "INVALID_ARGUMENT"


def test_an_answer_is_written_with_its_tensors_in_order() -> None:
    raw = memoryview(b"abcdef")
    outputs = [
        Output("y", "INT8", [2], {"a": 1, "b": 0.5, "c": True, "d": "x"}, raw[:2]),
        Output("z", "INT8", [4], {}, raw[2:]),
    ]
    answer = InferAnswer("m", "1", "id", {"device": "d"}, outputs)
    kind = MESSAGES._class("inference.ModelInferResponse")
    made = kind.FromString(MESSAGES.infer_answer(answer))
    assert (made.model_name, made.model_version, made.id) == ("m", "1", "id")
    assert made.parameters["device"].string_param == "d"
    assert [(out.name, out.datatype, list(out.shape)) for out in made.outputs] == [
        ("y", "INT8", [2]),
        ("z", "INT8", [4]),
    ]
    own = made.outputs[0].parameters
    assert own["a"].int64_param == 1
    assert own["b"].double_param == 0.5
    assert own["c"].bool_param is True
    assert own["d"].string_param == "x"
    assert list(made.raw_output_contents) == [b"ab", b"cdef"]


def test_fields_that_the_message_does_not_know_are_left_out() -> None:
    content = MESSAGES.message("inference.ModelReadyResponse", {"ready": True, "name": "m"})
    assert content == b"\x08\x01"
    with pytest.raises(RefusedCallError) as info:
        MESSAGES.message("inference.ModelReadyResponse", {"ready": "maybe"})
    assert info.value.code == "INTERNAL"


def test_a_message_that_is_no_inference_is_small() -> None:
    name = "inference.ModelReadyRequest"
    assert MESSAGES.fields(name, b"\x0a\x01m") == {"name": "m"}
    with pytest.raises(RefusedCallError) as info:
        MESSAGES.fields(name, b"\x0a" + bytes(SMALL_BYTES))
    assert info.value.code == "RESOURCE_EXHAUSTED"
    with pytest.raises(RefusedCallError) as info:
        MESSAGES.fields(name, b"\x0a\x05m")
    assert info.value.code == "INVALID_ARGUMENT"
