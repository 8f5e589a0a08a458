"""One tensor of a request or of an answer: from JSON values, raw bytes or shared memory, and back.

Runs in the worker process.

Rules:
- The rules of `agent.serve.worker.inference_protocol` for numbers, bytes and texts.

Source:
    Open Inference Protocol (KServe v2), REST; Triton's extensions for binary tensor data and shared
    memory.
"""

from __future__ import annotations

import functools
import math
import re
import sys
from typing import Annotated, Any, Final

import msgspec
import numpy as np

from agent.serve.worker.shared_memory import Place, read, write
from runtime_adapters.errors import InferenceError, InputError
from runtime_adapters.protocol import Tensor
from runtime_adapters.tensors import datatype_of, dtype_of
from runtime_adapters.texts import flattened, raw_from_texts, texts_from_raw, texts_of
from wire.package.tensors import Datatype, TensorSpec

MAX_DIMENSION: Final = 2**31 - 1
_NESTED: Final = re.compile(rb"\s*\[\s*\[")
_NO_DATA: Final = msgspec.Raw(b"")


class InputTensor(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of a request."""

    name: str
    shape: tuple[int, ...]
    datatype: str
    parameters: dict[str, Any] = {}
    data: msgspec.Raw = _NO_DATA


class OutputTensor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One tensor of a response."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: dict[str, str | int] = {}
    data: list[Any] | msgspec.UnsetType = msgspec.UNSET


def check_declared(tensor: InputTensor, spec: TensorSpec) -> None:
    """Refuse a tensor of another type or shape than is declared.

    Args:
        tensor: A tensor of a request.
        spec: The input that it is for.

    Raises:
        InputError: It does not fit.
    """
    if tensor.datatype != spec.datatype:
        raise InputError(
            f"input {spec.name!r} is {tensor.datatype[:20]}, but the model declares {spec.datatype}"
        )
    fits = len(tensor.shape) == len(spec.shape) and all(
        1 <= given <= MAX_DIMENSION and declared in {-1, given}
        for given, declared in zip(tensor.shape, spec.shape, strict=True)
    )
    if not fits:
        shown = str(list(tensor.shape[:8]))
        raise InputError(
            f"input {spec.name!r} has shape {shown}, but the model declares {list(spec.shape)}"
        )


def from_shared(tensor: InputTensor, spec: TensorSpec, place: Place) -> Tensor:
    """Make an array of what lies in shared memory.

    Args:
        tensor: A tensor of a request, with a declared shape.
        spec: The input that it is for.
        place: Where it lies.

    Returns:
        The array, which is a copy.

    Raises:
        InputError: It has another size, is also sent otherwise, or cannot be read.
    """
    needed = math.prod(tensor.shape) * dtype_of(spec.datatype).itemsize
    if spec.datatype != "BYTES" and place.byte_size != needed:
        raise InputError(
            f"input {spec.name!r} needs {needed} bytes, and its place in shared memory has "
            f"{place.byte_size}"
        )
    if "binary_data_size" in tensor.parameters:
        raise InputError(f"input {spec.name!r} is both raw and in shared memory")
    return from_raw(tensor, spec, place.byte_size, read(place))


def from_raw(tensor: InputTensor, spec: TensorSpec, size: object, raw: memoryview) -> Tensor:
    """Make an array of raw bytes.

    Args:
        tensor: A tensor of a request, with a declared shape.
        spec: The input that it is for.
        size: How many bytes it has, as the client says.
        raw: What is left of the body.

    Returns:
        The array, which is a view of the bytes unless it holds texts.

    Raises:
        InputError: Its bytes are too few, too many, or not of the declared type.
    """
    dtype, count = dtype_of(spec.datatype), math.prod(tensor.shape)
    texts = spec.datatype == "BYTES"  # which say their lengths themselves
    needed = "its" if texts else count * dtype.itemsize
    if type(size) is not int or not 0 <= size <= len(raw) or (size != needed and not texts):
        raise InputError(
            f"input {spec.name!r} needs {needed} raw bytes, {str(size)[:40]} are announced and "
            f"{len(raw)} are left in the body"
        )
    if len(bytes(tensor.data)) > 0:
        raise InputError(f"input {spec.name!r} is both raw and in the JSON")
    if texts:
        return texts_of(spec.name, texts_from_raw(spec.name, raw[:size], count), tensor.shape)
    if spec.datatype == "BOOL" and np.frombuffer(raw[:size], np.uint8).max() > 1:
        raise InputError(f"input {spec.name!r} has a BOOL that is neither 0 nor 1")
    array = np.frombuffer(raw[:size], dtype.newbyteorder("<"))
    return array.astype(dtype, copy=False).reshape(tensor.shape)


def from_values(tensor: InputTensor, spec: TensorSpec) -> Tensor:
    """Make an array of JSON values, nested as the shape says or flat in row-major order.

    Args:
        tensor: A tensor of a request, with a declared shape.
        spec: The input that it is for.

    Returns:
        The array.

    Raises:
        InputError: The values are too few, too many, ragged, or not of the declared type.
    """
    dtype = dtype_of(spec.datatype)
    count = math.prod(tensor.shape)
    wrong = InputError(f"input {spec.name!r} does not hold {count} values of {spec.datatype}")
    depth = len(tensor.shape) if _NESTED.match(tensor.data) else 1
    try:
        values = _values_decoder(spec.datatype, depth).decode(tensor.data)
        if spec.datatype == "BYTES":
            return texts_of(spec.name, flattened(values, tensor.shape), tensor.shape)
        array = np.array(values, np.float64 if dtype.kind == "f" else dtype)
        if array.size != count or (depth > 1 and array.shape != tensor.shape):
            raise wrong
        with np.errstate(over="raise"):
            return array.astype(dtype, copy=False).reshape(tensor.shape)
    except (msgspec.DecodeError, ValueError, OverflowError, FloatingPointError) as exc:
        raise wrong from exc


@functools.cache
def _values_decoder(datatype: Datatype, depth: int) -> msgspec.json.Decoder[Any]:
    """Return the decoder of lists in lists of one type of value.

    It refuses other values: of texts among numbers, NumPy would allocate the longest for each.
    """
    kind: Any = str if datatype == "BYTES" else _value_type(dtype_of(datatype))
    for _ in range(depth):
        kind = list[kind]
    return msgspec.json.Decoder(kind)


def _value_type(dtype: np.dtype[Any]) -> object:
    if dtype.kind not in "iu":
        return bool if dtype.kind == "b" else float
    bounds = np.iinfo(dtype)
    if bounds.max > np.iinfo(np.int64).max:  # more than msgspec can state; NumPy checks it
        return Annotated[int, msgspec.Meta(ge=0)]
    return Annotated[int, msgspec.Meta(ge=int(bounds.min), le=int(bounds.max))]


def sent(name: str, tensor: Tensor, *, binary: bool) -> tuple[OutputTensor, bytes]:
    """Return the description of an output that goes into the answer, and its raw bytes.

    Args:
        name: Its name.
        tensor: Its values.
        binary: Whether it is sent as raw bytes; else its values are in the description.

    Raises:
        InferenceError: JSON cannot hold its values.
    """
    if not binary:
        _check_json_holds(name, tensor)
    content = _raw_bytes(tensor) if binary else b""
    described = OutputTensor(
        name=name,
        datatype=datatype_of(tensor.dtype),
        shape=tensor.shape,
        parameters={"binary_data_size": len(content)} if binary else {},
        data=msgspec.UNSET if binary else tensor.ravel().tolist(),
    )
    return described, content


def put(place: Place, name: str, tensor: Tensor) -> OutputTensor:
    """Put an output into shared memory, and return its description.

    Args:
        place: Where.
        name: Its name.
        tensor: Its values.

    Raises:
        InputError: It does not fit, or the memory cannot be written.
    """
    content = _raw_bytes(tensor)
    if len(content) > place.byte_size:
        raise InputError(
            f"output {name!r} needs {len(content)} bytes, and its place in shared memory has "
            f"{place.byte_size}"
        )
    write(place, memoryview(content))
    return OutputTensor(
        name=name,
        datatype=datatype_of(tensor.dtype),
        shape=tensor.shape,
        parameters=place.parameters(len(content)),
    )


def _check_json_holds(name: str, tensor: Tensor) -> None:
    if tensor.dtype.kind == "f" and not np.isfinite(tensor).all():
        raise InferenceError(
            f"the model's output {name[:80]!r} holds NaN or infinity, which JSON cannot state",
            remedy="ask for this output as binary data, or look for overflows in this variant",
        )


def _raw_bytes(tensor: Tensor) -> bytes:
    if tensor.dtype.hasobject:  # the length goes before each text
        return raw_from_texts(tensor.ravel().tolist())
    if sys.byteorder == "little":
        return tensor.tobytes()
    return tensor.astype(tensor.dtype.newbyteorder("<")).tobytes()
