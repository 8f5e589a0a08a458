"""Decodes Open Inference Protocol requests and encodes responses. Runs in the worker process.

A body is JSON, or JSON followed by the raw bytes of some tensors (the binary tensor extension).
These tensors set `parameters.binary_data_size`; their bytes have the order of their declaration.

Rules:
- Every number in a request is checked against the declared tensor and the received bytes before
  memory is allocated: the length of a request bounds its cost.
- A number that does not fit into the tensor's type is refused; it is never wrapped or truncated.
- Raw bytes are little endian, as the extension says.
- Raw bytes of a request are not copied, unless they are texts.
- Texts are UTF-8, and each is bounded; other bytes are refused.
- JSON has neither NaN nor infinity. An answer that holds one is an error in JSON, never a `null`;
  as raw bytes it is sent as it is.

Source:
    Open Inference Protocol (KServe v2), REST; Triton's extensions for binary tensor data and
    classification.
"""

from __future__ import annotations

import functools
import math
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

import msgspec
import numpy as np

from agent.serve.worker.processing import Processing, Wanted
from runtime_adapters.errors import InferenceError, InputError
from runtime_adapters.protocol import Tensor, Tensors
from runtime_adapters.tensors import datatype_of, dtype_of
from runtime_adapters.texts import flattened, raw_from_texts, texts_from_raw, texts_of
from wire.package.manifest import Datatype, TensorSpec

MAX_JSON_BYTES: Final = 16 * 1024 * 1024
"""Longest JSON part. Its values take up to some thirty times as much memory (14 MiB of `{}` took
433 MiB), which `serving.memory_bytes` bounds where it is set. Send larger tensors raw."""

MAX_ID_CHARACTERS: Final = 1024
MAX_DIMENSION: Final = 2**31 - 1
HEADER_LENGTH: Final = "Inference-Header-Content-Length"
_NESTED: Final = re.compile(rb"\s*\[\s*\[")
_NO_DATA: Final = msgspec.Raw(b"")


class InputTensor(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of a request."""

    name: str
    shape: tuple[int, ...]
    datatype: str
    parameters: dict[str, Any] = {}
    data: msgspec.Raw = _NO_DATA


class OutputChoice(msgspec.Struct, frozen=True, kw_only=True):
    """An output that the client wants, and its form."""

    name: str
    parameters: dict[str, Any] = {}


class InferenceHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON part of a request."""

    id: str = ""
    parameters: dict[str, Any] = {}
    inputs: tuple[InputTensor, ...]
    outputs: tuple[OutputChoice, ...] = ()


class OutputTensor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One tensor of a response."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: dict[str, int] = {}
    data: list[Any] | msgspec.UnsetType = msgspec.UNSET


class InferenceResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The JSON part of a response."""

    model_name: str
    model_version: str
    id: str = ""
    parameters: dict[str, str] = {}
    outputs: tuple[OutputTensor, ...]


class InferenceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A decoded request."""

    id: str
    inputs: dict[str, Any]
    """Arrays by name."""

    outputs: tuple[Wanted, ...]
    """The outputs to answer with."""


class InferenceProtocol:
    """Requests and responses of one loaded variant.

    Args:
        inputs: The declared inputs.
        outputs: The declared outputs.
        model_name: The name that clients ask for.
        model_version: Version of the package.
        parameters: Put into every response.
        processing: The processing that the variant declares; none by default.
    """

    def __init__(
        self,
        *,
        inputs: Iterable[TensorSpec],
        outputs: Iterable[TensorSpec],
        model_name: str,
        model_version: str,
        parameters: Mapping[str, str],
        processing: Processing | None = None,
    ) -> None:
        self._inputs = {spec.name: spec for spec in inputs}
        outputs = tuple(outputs)
        self._outputs = tuple(spec.name for spec in outputs)
        self._processing = processing or Processing(self._inputs.values(), outputs)
        self._model_name = model_name
        self._model_version = model_version
        self._parameters = dict(parameters)
        self._decoder = msgspec.json.Decoder(InferenceHeader)

    def decode(self, body: memoryview, header_length: int | None) -> InferenceRequest:
        """Read a request.

        Args:
            body: JSON and raw tensors, as received.
            header_length: Length of the JSON in bytes; None if all of the body is JSON.

        Returns:
            The request; its arrays are views of the body where they were sent raw.

        Raises:
            InputError: It is malformed, or asks for what this variant does not have.
        """
        json_length = len(body) if header_length is None else header_length
        if not 0 <= json_length <= len(body):
            raise InputError(f"the JSON part of {json_length} bytes is longer than the body")
        header = self._decode_header(body[:json_length])
        return InferenceRequest(
            id=header.id,
            inputs=self._decode_inputs(header.inputs, body[json_length:]),
            outputs=self._choose_outputs(header),
        )

    def encode(self, request: InferenceRequest, outputs: Tensors) -> tuple[dict[str, str], bytes]:
        """Write a response.

        Args:
            request: The request that it answers.
            outputs: The outputs of the session.

        Returns:
            HTTP headers and the body.

        Raises:
            InputError: It asks for more than an answer may hold.
            InferenceError: The outputs do not fit what the variant declares of them, or JSON cannot
                hold their values.
        """
        described: list[OutputTensor] = []
        raw: list[bytes] = []
        for wanted in request.outputs:
            binary = wanted.binary
            answer = {wanted.name: outputs[wanted.name]}
            if wanted.classes or wanted.processed:
                answer = self._processing.answer(wanted, outputs)
            for name, tensor in answer.items():
                if not binary:
                    _check_json_holds(name, tensor)
                content = _raw_bytes(tensor) if binary else b""
                described.append(
                    OutputTensor(
                        name=name,
                        datatype=datatype_of(tensor.dtype),
                        shape=tensor.shape,
                        parameters={"binary_data_size": len(content)} if binary else {},
                        data=msgspec.UNSET if binary else tensor.ravel().tolist(),
                    )
                )
                raw += [content] if binary else []
        header = msgspec.json.encode(
            InferenceResponse(
                model_name=self._model_name,
                model_version=self._model_version,
                id=request.id,
                parameters=self._parameters,
                outputs=tuple(described),
            )
        )
        if not raw:
            return {"Content-Type": "application/json"}, header
        headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(header))}
        return headers, b"".join((header, *raw))

    def _decode_header(self, part: memoryview) -> InferenceHeader:
        if len(part) > MAX_JSON_BYTES:
            raise InputError(
                f"the JSON part is over {MAX_JSON_BYTES} bytes",
                remedy="send large tensors raw, with the binary tensor extension",
            )
        try:
            header = self._decoder.decode(part)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise InputError(f"the JSON is not an inference request: {exc}") from exc
        if len(header.id) > MAX_ID_CHARACTERS:
            raise InputError(f"the request id is over {MAX_ID_CHARACTERS} characters")
        return header

    def _decode_inputs(self, described: tuple[InputTensor, ...], raw: memoryview) -> Tensors:
        tensors: Tensors = {}
        for tensor in described:
            spec = self._inputs.get(tensor.name)
            if spec is None or tensor.name in tensors:
                raise InputError(
                    f"input {tensor.name[:80]!r} occurs twice"
                    if spec
                    else f"there is no input {tensor.name[:80]!r}"
                )
            is_raw_sample = _flag(tensor.parameters, "raw", default=False)
            if is_raw_sample:
                spec = self._processing.raw(spec.name)
            _check_declared(tensor, spec)
            size = tensor.parameters.get("binary_data_size")
            if size is None:
                tensors[tensor.name] = _from_values(tensor, spec)
            else:
                tensors[tensor.name] = _from_raw(tensor, spec, size, raw)
                raw = raw[size:]
            if is_raw_sample:
                tensors[spec.name] = self._processing.prepared(spec.name, tensors[spec.name])
        if len(raw) > 0:
            raise InputError(f"{len(raw)} bytes follow the last tensor")
        if missing := [name for name in self._inputs if name not in tensors]:
            raise InputError(f"input {missing[0]!r} is missing")
        return tensors

    def _choose_outputs(self, header: InferenceHeader) -> tuple[Wanted, ...]:
        default = _flag(header.parameters, "binary_data_output", default=False)
        if not header.outputs:
            return tuple(Wanted(name=name, binary=default) for name in self._outputs)
        chosen: dict[str, Wanted] = {}
        for choice in header.outputs:
            if choice.name not in self._outputs or choice.name in chosen:
                raise InputError(f"output {choice.name[:80]!r} is unknown or occurs twice")
            wanted = Wanted(
                name=choice.name,
                binary=_flag(choice.parameters, "binary_data", default=default),
                classes=_classes(choice.parameters),
                processed=_flag(choice.parameters, "processed", default=False),
            )
            if wanted.classes or wanted.processed:
                self._processing.check(wanted)
            chosen[choice.name] = wanted
        return tuple(chosen.values())


def _check_declared(tensor: InputTensor, spec: TensorSpec) -> None:
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


def _from_raw(tensor: InputTensor, spec: TensorSpec, size: object, raw: memoryview) -> Tensor:
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


def _from_values(tensor: InputTensor, spec: TensorSpec) -> Tensor:
    """Make an array of JSON values, nested as the shape says or flat in row-major order.

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


def _classes(parameters: Mapping[str, object]) -> int:
    """Return how many classes the client asks for; 0 if it asks for none.

    Raises:
        InputError: The parameter is not a number of classes.
    """
    if "classification" not in parameters:
        return 0
    count = parameters["classification"]
    if type(count) is not int or not 1 <= count <= MAX_DIMENSION:
        raise InputError("parameter classification is not a number of classes")
    return count


def _flag(parameters: Mapping[str, object], name: str, *, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise InputError(f"parameter {name} is neither true nor false")
    return value
