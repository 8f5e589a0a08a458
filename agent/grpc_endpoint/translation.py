"""Turns a gRPC request for inference into one over HTTP, and the answer back.

Pure. Tensors cross as raw bytes, with the binary tensor extension: what came raw is handed on as it
is, and typed contents are packed, little endian.

Rules:
- A request has either typed contents or `raw_input_contents`, never both.
- The number of values is compared with the shape before anything is packed.
- What the endpoint can check by itself, such as names, shapes and the length of raw tensors, is
  checked there.

Source:
    Open Inference Protocol (KServe v2), gRPC; Triton's binary tensor data extension for HTTP.
"""

from __future__ import annotations

import array
import math
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from agent.grpc_endpoint.statuses import RefusedCallError

Value: TypeAlias = bool | int | float | str
"""A parameter's value."""

HEADER_LENGTH: Final = "inference-header-content-length"
NO_SHARED_MEMORY: Final = "gRPC offers no shared memory: send tensors in raw_input_contents"
NO_TICKETS: Final = "deferrable requests get a ticket, which only HTTP has: send them there"
_SIZE: Final = "binary_data_size"
_REGION: Final = "shared_memory_region"
_BYTES: Final = ("bytes_contents", "")
_PACKED: Final[Mapping[str, tuple[str, str]]] = {
    "BOOL": ("bool_contents", "B"),
    "INT8": ("int_contents", "b"),
    "INT16": ("int_contents", "h"),
    "INT32": ("int_contents", "i"),
    "INT64": ("int64_contents", "q"),
    "UINT8": ("uint_contents", "B"),
    "UINT16": ("uint_contents", "H"),
    "UINT32": ("uint_contents", "I"),
    "UINT64": ("uint64_contents", "Q"),
    "FP32": ("fp32_contents", "f"),
    "FP64": ("fp64_contents", "d"),
    "BYTES": _BYTES,
}
"""For each datatype the field of its typed contents, and the code of `array`."""


class Tensor(NamedTuple):
    """An input."""

    name: str
    datatype: str
    shape: Sequence[int]
    parameters: Mapping[str, Value]
    contents: Mapping[str, Sequence[Any]]
    """The typed contents that are not empty, by the name of their field."""


class Wanted(NamedTuple):
    """An output that the client wants."""

    name: str
    parameters: Mapping[str, Value]


class InferCall(NamedTuple):
    """A request for inference, as the message has it."""

    model: str
    version: str
    id: str
    parameters: Mapping[str, Value]
    inputs: Sequence[Tensor]
    outputs: Sequence[Wanted]
    raw: Sequence[bytes]


class Output(NamedTuple):
    """An output of an answer."""

    name: str
    datatype: str
    shape: Sequence[int]
    parameters: Mapping[str, Value]
    raw: memoryview


class InferAnswer(NamedTuple):
    """An answer, as the message has it."""

    model: str
    version: str
    id: str
    parameters: Mapping[str, Value]
    outputs: Sequence[Output]


class _DescribedOutput(msgspec.Struct, frozen=True):
    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: dict[str, bool | int | float | str] = {}


class _Described(msgspec.Struct, frozen=True):
    model_name: str
    model_version: str = ""
    id: str = ""
    parameters: dict[str, bool | int | float | str] = {}
    outputs: tuple[_DescribedOutput, ...] = ()


_DECODER: Final = msgspec.json.Decoder(_Described)


def request_parts(call: InferCall, *, limit_bytes: int) -> tuple[bytes, list[bytes]]:
    """Return the body of the request over HTTP.

    Args:
        call: The request.
        limit_bytes: Longest body.

    Returns:
        The JSON, and the raw tensors that follow it.

    Raises:
        RefusedCallError: The request is wrong, or asks for what gRPC does not offer here.
    """
    if call.parameters.get("deferrable"):
        raise RefusedCallError("UNIMPLEMENTED", NO_TICKETS)
    given = [tensor.parameters for tensor in call.inputs]
    if any(_REGION in names for names in (*given, *(wanted.parameters for wanted in call.outputs))):
        raise RefusedCallError("UNIMPLEMENTED", NO_SHARED_MEMORY)
    raw = _raw_tensors(call, limit_bytes)
    header = {
        "id": call.id,
        "parameters": _checked(call.parameters) | {"binary_data_output": True},
        "inputs": [
            {
                "name": tensor.name,
                "datatype": tensor.datatype,
                "shape": list(tensor.shape),
                "parameters": _checked(tensor.parameters) | {_SIZE: len(content)},
            }
            for tensor, content in zip(call.inputs, raw, strict=True)
        ],
        "outputs": [
            {
                "name": wanted.name,
                "parameters": _checked(wanted.parameters) | {"binary_data": True},
            }
            for wanted in call.outputs
        ],
    }
    return msgspec.json.encode(header), raw


def answer_of(headers: Mapping[str, str], body: memoryview) -> InferAnswer:
    """Read the endpoint's answer.

    Args:
        headers: Names in lower case.
        body: JSON, and raw tensors after it.

    Returns:
        The answer; its tensors are views of the body.

    Raises:
        RefusedCallError: It is not what the endpoint should answer.
    """
    try:
        length = int(headers.get(HEADER_LENGTH, len(body)))
        described = _DECODER.decode(body[:length])
    except (ValueError, msgspec.DecodeError) as exc:
        raise RefusedCallError("INTERNAL", f"the endpoint's answer is malformed: {exc}") from exc
    left, outputs = body[length:], list[Output]()
    for output in described.outputs:
        size = output.parameters.get(_SIZE)
        if not isinstance(size, int) or not 0 <= size <= len(left):
            raise RefusedCallError("INTERNAL", "the endpoint's answer holds a tensor in part")
        others = {name: value for name, value in output.parameters.items() if name != _SIZE}
        outputs.append(Output(output.name, output.datatype, output.shape, others, left[:size]))
        left = left[size:]
    return InferAnswer(
        described.model_name,
        described.model_version,
        described.id,
        described.parameters,
        outputs,
    )


def _raw_tensors(call: InferCall, limit_bytes: int) -> list[bytes]:
    """Return the bytes of all inputs.

    Raises:
        RefusedCallError: There are too few or too many, or they are of two kinds.
    """
    for tensor in call.inputs:
        if call.raw and tensor.contents:
            raise RefusedCallError(
                "INVALID_ARGUMENT",
                f"input {tensor.name[:80]!r} has typed contents beside raw_input_contents: "
                "send one of them",
            )
    if call.raw and len(call.raw) != len(call.inputs):
        raise RefusedCallError(
            "INVALID_ARGUMENT",
            f"there are {len(call.raw)} raw_input_contents for {len(call.inputs)} inputs",
        )
    if call.raw:
        return list(call.raw)
    packed, left_bytes = list[bytes](), limit_bytes
    for tensor in call.inputs:
        packed.append(_packed(tensor, left_bytes))
        left_bytes -= len(packed[-1])
    return packed


def _packed(tensor: Tensor, limit_bytes: int) -> bytes:
    """Return typed contents as raw bytes.

    Raises:
        RefusedCallError: They do not fit the datatype or the shape, or are too long.
    """
    field, code = _PACKED.get(tensor.datatype, ("", ""))
    if not field:
        raise RefusedCallError(
            "INVALID_ARGUMENT",
            f"input {tensor.name[:80]!r} is {tensor.datatype[:20]!r}, which has no typed contents: "
            "send it in raw_input_contents",
        )
    values = tensor.contents.get(field, ())
    if any(name != field for name in tensor.contents):
        raise RefusedCallError(
            "INVALID_ARGUMENT",
            f"input {tensor.name[:80]!r} is {tensor.datatype}, whose contents belong into {field}",
        )
    if any(size < 0 for size in tensor.shape) or math.prod(tensor.shape) != len(values):
        raise RefusedCallError(
            "INVALID_ARGUMENT",
            f"input {tensor.name[:80]!r} has {len(values)} values in {field}, which is not what "
            f"its shape {list(tensor.shape[:8])} holds",
        )
    lengths = sum(map(len, values)) if field == _BYTES[0] else 0
    each_bytes = array.array(code).itemsize if code else 4
    if len(values) * each_bytes + lengths > limit_bytes:
        raise RefusedCallError("RESOURCE_EXHAUSTED", f"the tensors are over {limit_bytes} bytes")
    if not code:
        return b"".join(part for value in values for part in (struct.pack("<I", len(value)), value))
    try:
        numbers = array.array(code, values)
    except OverflowError as exc:
        raise RefusedCallError(
            "INVALID_ARGUMENT",
            f"input {tensor.name[:80]!r} has a value that is not within {tensor.datatype}",
        ) from exc
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _checked(parameters: Mapping[str, Value]) -> dict[str, Value]:
    """Return parameters that JSON can state.

    Raises:
        RefusedCallError: One is NaN or infinite.
    """
    for name, value in parameters.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise RefusedCallError(
                "INVALID_ARGUMENT", f"the parameter {name[:80]!r} is not a finite number"
            )
    return dict(parameters)
