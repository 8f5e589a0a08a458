"""Decodes Open Inference Protocol requests and encodes responses. Runs in the worker process.

A body is JSON, or JSON followed by the raw bytes of some tensors (the binary tensor extension).
These tensors set `parameters.binary_data_size`; their bytes have the order of their declaration.

Rules:
- Every number in a request is checked against the declared tensor and the received bytes before
  memory is allocated: the length of a request bounds its cost, or that of its shared memory.
- A number that does not fit into the tensor's type is refused; it is never wrapped or truncated.
- Raw bytes are little endian, as the extension says.
- Raw bytes of a request are not copied, unless they are texts.
- Texts are UTF-8, and each is bounded; other bytes are refused.
- JSON has neither NaN nor infinity. An answer that holds one is an error in JSON, never a `null`;
  as raw bytes it is sent as it is.

Source:
    Open Inference Protocol (KServe v2), REST; Triton's extensions for binary tensor data,
    classification and shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from agent.serve.regions import Region
from agent.serve.worker.processing import Processing, Wanted
from agent.serve.worker.shared_memory import place_of
from agent.serve.worker.tensors import (
    MAX_DIMENSION,
    InputTensor,
    OutputTensor,
    check_declared,
    from_raw,
    from_shared,
    from_values,
    put,
    sent,
)
from runtime_adapters.errors import InputError
from runtime_adapters.protocol import Tensors
from wire.package.tensors import TensorSpec

MAX_JSON_BYTES: Final = 16 * 1024 * 1024
"""Longest JSON part. Its values take up to some thirty times as much memory (14 MiB of `{}` took
433 MiB), which `serving.memory_bytes` bounds where it is set. Send larger tensors raw."""

MAX_ID_CHARACTERS: Final = 1024
MOST_NAMED: Final = 8
"""Inputs that an error names."""

HEADER_LENGTH: Final = "Inference-Header-Content-Length"
EXAMPLE: Final = (
    'send {"inputs": [{"name": ..., "datatype": ..., "shape": [...], "data": [...]}]}; '
    "GET /v2/models/NAME names the inputs"
)


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
        name: Returns the id of a request that has none; the answer then has it.
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
        name: Callable[[], str] = str,
    ) -> None:
        self._inputs = {spec.name: spec for spec in inputs}
        outputs = tuple(outputs)
        self._outputs = tuple(spec.name for spec in outputs)
        self._processing = processing or Processing(self._inputs.values(), outputs)
        self._model_name = model_name
        self._model_version = model_version
        self._parameters = dict(parameters)
        self._name = name
        self._decoder = msgspec.json.Decoder(InferenceHeader)

    def decode(
        self, body: memoryview, header_length: int | None, regions: Sequence[Region] = ()
    ) -> InferenceRequest:
        """Read a request.

        Args:
            body: JSON and raw tensors, as received.
            header_length: Length of the JSON in bytes; None if all of the body is JSON.
            regions: Shared memory that the client has registered.

        Returns:
            The request; its arrays are views of the body where they were sent raw.

        Raises:
            InputError: It is malformed, or asks for what this variant does not have.
        """
        json_length = len(body) if header_length is None else header_length
        if not 0 <= json_length <= len(body):
            raise InputError(f"the JSON part of {json_length} bytes is longer than the body")
        header = self._decode_header(body[:json_length])
        outputs = self._choose_outputs(header, regions)
        return InferenceRequest(
            id=header.id or self._name(),
            inputs=self._decode_inputs(header.inputs, body[json_length:], regions),
            outputs=outputs,
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
            if wanted.place is not None:
                described.append(put(wanted.place, wanted.name, outputs[wanted.name]))
                continue
            answer = {wanted.name: outputs[wanted.name]}
            if wanted.classes or wanted.processed:
                answer = self._processing.answer(wanted, outputs)
            for name, tensor in answer.items():
                output, content = sent(name, tensor, binary=wanted.binary)
                described.append(output)
                raw += [content] if wanted.binary else []
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
        if not part:
            raise InputError("the request has no body, or no JSON in it", remedy=EXAMPLE)
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

    def _which_there_are(self) -> str:
        """Return the inputs that there are, as a remedy; a long list is cut."""
        names = list(self._inputs)
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        return f"the model has {', '.join(names[:MOST_NAMED])}{more}"

    def _decode_inputs(
        self, described: tuple[InputTensor, ...], raw: memoryview, regions: Sequence[Region]
    ) -> Tensors:
        tensors: Tensors = {}
        for tensor in described:
            spec = self._inputs.get(tensor.name)
            if spec is None or tensor.name in tensors:
                raise InputError(
                    f"input {tensor.name[:80]!r} occurs twice"
                    if spec
                    else f"there is no input {tensor.name[:80]!r}: {self._which_there_are()}"
                )
            is_raw_sample = _flag(tensor.parameters, "raw", default=False)
            if is_raw_sample:
                spec = self._processing.raw(spec.name)
            check_declared(tensor, spec)
            size = tensor.parameters.get("binary_data_size")
            place = place_of(tensor.parameters, regions)
            if place is not None:
                tensors[tensor.name] = from_shared(tensor, spec, place)
            elif size is None:
                tensors[tensor.name] = from_values(tensor, spec)
            else:
                tensors[tensor.name] = from_raw(tensor, spec, size, raw)
                raw = raw[size:]
            if is_raw_sample:
                tensors[spec.name] = self._processing.prepared(spec.name, tensors[spec.name])
        if len(raw) > 0:
            raise InputError(f"{len(raw)} bytes follow the last tensor")
        if missing := [name for name in self._inputs if name not in tensors]:
            raise InputError(f"input {missing[0]!r} is missing")
        return tensors

    def _choose_outputs(
        self, header: InferenceHeader, regions: Sequence[Region]
    ) -> tuple[Wanted, ...]:
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
                place=place_of(choice.parameters, regions),
            )
            if wanted.classes or wanted.processed:
                self._processing.check(wanted)
            chosen[choice.name] = wanted
        return tuple(chosen.values())


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
