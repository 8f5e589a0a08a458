"""Triton's extensions of the Open Inference Protocol: which ones the endpoint answers.

Rules:
- A document about the model leaves out figures that the endpoint does not have.
- The endpoint refuses other extensions, and metrics and feedback where they are off, with 501 and
  says what to do instead.

Source:
    Triton Inference Server, protocol/extension_*.md: model configuration, model repository,
    statistics, shared memory, trace, logging.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from typing import Any, Final, Protocol

from agent.serve.frames import Reply
from agent.serve.pool import Prepared
from agent.serve.regions import Region
from wire.package.tensors import TensorSpec

NAMES: Final = ("binary_tensor_data", "classification", "model_configuration", "statistics")
"""The extensions in the server's metadata, beside what the settings add."""

SHARED_MEMORY: Final = "/v2/systemsharedmemory/"
NO_SHARED_MEMORY: Final = (
    "shared memory is off: set shared_memory_bytes below [endpoint] in agent.toml, or send tensors "
    "raw, with binary_tensor_data"
)
NO_CUDA: Final = "memory of graphics units is not shared: send tensors raw, with binary_tensor_data"
NO_TRACES: Final = "requests are not traced: see `fleet telemetry query` and `fleet-agent why`"
NO_LOG_SETTINGS: Final = (
    "clients cannot change the log: read the journal of the agent's systemd service"
)
NO_METRICS: Final = "metrics are off: set `metrics = true` below [endpoint] in agent.toml"
NO_FEEDBACK: Final = "feedback is off: set `enabled = true` below [feedback] in agent.toml"
_NOT_OFFERED: Final = (
    (re.compile(r"/v2/cudasharedmemory/.{1,300}"), NO_CUDA),
    (re.compile(r"/v2/(?:models/[^/]{1,200}/)?trace/setting"), NO_TRACES),
    (re.compile(r"/v2/logging"), NO_LOG_SETTINGS),
    (re.compile(r"/metrics"), NO_METRICS),
    (re.compile(r"/v2/models/[^/]{1,200}(?:/versions/[^/]{1,200})?/feedback"), NO_FEEDBACK),
)


class SharedMemoryPort(Protocol):
    """Knows the shared memory that clients have registered."""

    @property
    def extensions(self) -> tuple[str, ...]:
        """What the server's metadata list because of it."""
        ...

    def answer(
        self, method: str, path: str, body: memoryview, connection: socket.socket | None
    ) -> Reply:
        """Answer the paths below `SHARED_MEMORY`."""
        ...

    def of_request(
        self, head: memoryview, connection: socket.socket | None, *, deferrable: bool
    ) -> tuple[Region, ...]:
        """Return the client's regions if the JSON names one; RegionError if it may not."""
        ...


class NoSharedMemory:
    """Stands where clients may use no shared memory. A worker refuses what names a region."""

    extensions: tuple[str, ...] = ()

    def answer(
        self,
        method: str,  # noqa: ARG002 - as declared above
        path: str,  # noqa: ARG002
        body: memoryview,  # noqa: ARG002
        connection: socket.socket | None,  # noqa: ARG002
    ) -> Reply:
        """Refuse the extension."""
        return Reply.refusal(501, NO_SHARED_MEMORY)

    def of_request(
        self,
        head: memoryview,  # noqa: ARG002
        connection: socket.socket | None,  # noqa: ARG002
        *,
        deferrable: bool,  # noqa: ARG002
    ) -> tuple[Region, ...]:
        """Return nothing."""
        return ()


def not_offered(path: str) -> Reply | None:
    """Refuse an extension that this endpoint does not have.

    Args:
        path: Path of the request.

    Returns:
        The refusal, or None if the path belongs to no such extension.
    """
    for pattern, way in _NOT_OFFERED:
        if pattern.fullmatch(path):
            return Reply.refusal(501, way)
    return None


def config_document(active: Prepared) -> dict[str, Any]:
    """Return a model's configuration.

    `max_batch_size` is 0, which means that `dims` are whole shapes, with the batch if there is one.

    Args:
        active: The variant that serves.
    """
    info = active.variant.info
    return {
        "name": active.model.name,
        "platform": info.runtime,
        "backend": info.runtime,
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": 0,
        "input": _tensors(info.inputs),
        "output": _tensors(info.outputs),
        "default_model_filename": info.model_file,
        "parameters": {
            name: {"string_value": value} for name, value in active.model.parameters.items()
        },
    }


def _tensors(specs: Iterable[TensorSpec]) -> list[dict[str, Any]]:
    return [
        {
            "name": spec.name,
            "data_type": "TYPE_STRING" if spec.datatype == "BYTES" else f"TYPE_{spec.datatype}",
            "dims": list(spec.shape),
        }
        for spec in specs
    ]
