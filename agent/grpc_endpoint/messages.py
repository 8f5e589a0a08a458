"""Serialized messages from and to plain values: the one door to `protobuf`.

The messages are those of Triton's `grpc_service.proto` and `model_config.proto` (BSD 3-Clause) and
of gRPC's `health.proto` (Apache 2.0). The unchanged files are in `protocol/`, and
`protocol/descriptors.binpb` is what `protoc` makes of them
(`python -m tests.packaging.test_grpc_protocol`). Classes are built of it at run time, because
generated code asks for a `protobuf` as new as its `protoc`.

Rules:
- The descriptors are in a pool of their own: other generated code for the same files may be loaded
  beside.
- Nothing of `protobuf` leaves this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from google.protobuf import (  # type: ignore[import-untyped]  # has no stubs
    descriptor_pb2,
    descriptor_pool,
    json_format,
    message,
    message_factory,
)

from agent.grpc_endpoint.bounds import NOT_A_MESSAGE, check_bounds
from agent.grpc_endpoint.statuses import RefusedCallError
from agent.grpc_endpoint.translation import InferAnswer, InferCall, Tensor, Value, Wanted

DESCRIPTORS: Final = Path(__file__).with_name("protocol") / "descriptors.binpb"
INFERENCE: Final = "inference"
HEALTH: Final = "grpc.health.v1"
SMALL_BYTES: Final = 64 * 1024
"""Longest message of a call that is no inference."""

_FINAL: Final = "triton_final_response"


class Messages:
    """Reads and writes messages.

    Raises:
        OSError: The descriptors cannot be read.
    """

    def __init__(self) -> None:
        files = descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS.read_bytes())
        pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            pool.Add(file)
        self._pool = pool
        self._infer_request = self._class(f"{INFERENCE}.ModelInferRequest")
        self._infer_response = self._class(f"{INFERENCE}.ModelInferResponse")
        self._stream_response = self._class(f"{INFERENCE}.ModelStreamInferResponse")

    def fields(self, name: str, content: bytes) -> dict[str, Any]:
        """Return the fields of a small message that are set.

        Args:
            name: Full name of the message.
            content: As received.

        Raises:
            RefusedCallError: It is not such a message, or too long.
        """
        if len(content) > SMALL_BYTES:
            raise RefusedCallError(
                "RESOURCE_EXHAUSTED", f"a message of this call may have {SMALL_BYTES} bytes"
            )
        parsed = _parsed(self._class(name), content)
        fields: dict[str, Any] = json_format.MessageToDict(parsed, preserving_proto_field_name=True)
        return fields

    def message(self, name: str, fields: Mapping[str, Any]) -> bytes:
        """Return a serialized message.

        Args:
            name: Full name of the message.
            fields: Its fields as JSON has them; it leaves out those that the message does not know.

        Raises:
            RefusedCallError: The message cannot hold them.
        """
        made = self._class(name)()
        try:
            json_format.ParseDict(fields, made, ignore_unknown_fields=True)
        except json_format.ParseError as exc:
            raise RefusedCallError("INTERNAL", f"gRPC cannot state the answer: {exc}") from exc
        return _serialized(made)

    def infer_call(self, content: bytes) -> InferCall:
        """Read a request for inference.

        Args:
            content: As received.

        Raises:
            RefusedCallError: It is malformed, or would take too much memory.
        """
        check_bounds(content)
        parsed = _parsed(self._infer_request, content)
        return InferCall(
            model=parsed.model_name,
            version=parsed.model_version,
            id=parsed.id,
            parameters=_parameters(parsed.parameters),
            inputs=[
                Tensor(
                    name=tensor.name,
                    datatype=tensor.datatype,
                    shape=tensor.shape,
                    parameters=_parameters(tensor.parameters),
                    contents={field.name: values for field, values in tensor.contents.ListFields()},
                )
                for tensor in parsed.inputs
            ],
            outputs=[
                Wanted(wanted.name, _parameters(wanted.parameters)) for wanted in parsed.outputs
            ],
            raw=parsed.raw_input_contents,
        )

    def infer_answer(self, answer: InferAnswer) -> bytes:
        """Return the serialized answer to a request for inference."""
        return _serialized(self._answered(answer))

    def stream_answer(self, answer: InferAnswer, *, says_final: bool) -> bytes:
        """Return the serialized answer to a request on a stream.

        Args:
            answer: The answer.
            says_final: Whether the client wants to be told that no other answer follows.
        """
        response = self._answered(answer)
        if says_final:
            response.parameters[_FINAL].bool_param = True
        return _serialized(self._stream_response(infer_response=response))

    def stream_refusal(self, error: str, call: InferCall | None) -> bytes:
        """Return the serialized refusal of a request on a stream.

        Args:
            error: Why.
            call: The request; None if it could not be read.
        """
        made = self._stream_response(error_message=error)
        if call is not None:
            made.infer_response.id = call.id
            made.infer_response.model_name = call.model
        return _serialized(made)

    def _answered(self, answer: InferAnswer) -> Any:  # noqa: ANN401 - a class made at run time
        made = self._infer_response(
            model_name=answer.model, model_version=answer.version, id=answer.id
        )
        _set_parameters(made.parameters, answer.parameters)
        for output in answer.outputs:
            added = made.outputs.add(name=output.name, datatype=output.datatype, shape=output.shape)
            _set_parameters(added.parameters, output.parameters)
            made.raw_output_contents.append(bytes(output.raw))
        return made

    def _class(self, name: str) -> Any:  # noqa: ANN401 - a class made at run time
        return message_factory.GetMessageClass(self._pool.FindMessageTypeByName(name))


def _parsed(kind: Any, content: bytes) -> Any:  # noqa: ANN401 - a class made at run time
    """Parse a message.

    Raises:
        RefusedCallError: It is no such message.
    """
    try:
        return kind.FromString(content)
    except (message.DecodeError, UnicodeDecodeError) as exc:
        raise RefusedCallError("INVALID_ARGUMENT", NOT_A_MESSAGE) from exc


def _serialized(made: Any) -> bytes:  # noqa: ANN401 - a class made at run time
    content: bytes = made.SerializeToString()
    return content


def _parameters(parameters: Mapping[str, Any]) -> dict[str, Value]:
    """Return parameters as plain values.

    Raises:
        RefusedCallError: One has no value.
    """
    values: dict[str, Value] = {}
    for name, parameter in parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        if kind is None:
            raise RefusedCallError(
                "INVALID_ARGUMENT", f"the parameter {name[:80]!r} has no value that is known here"
            )
        values[name] = getattr(parameter, kind)
    return values


def _set_parameters(made: Any, values: Mapping[str, Value]) -> None:  # noqa: ANN401 - a protobuf map
    for name, value in values.items():
        if isinstance(value, bool):
            made[name].bool_param = value
        elif isinstance(value, int):
            made[name].int64_param = value
        elif isinstance(value, float):
            made[name].double_param = value
        else:
            made[name].string_param = value
