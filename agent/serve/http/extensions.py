"""Triton's extensions of the Open Inference Protocol: which ones the endpoint answers.

Rules:
- A document about the model leaves out figures that the endpoint does not have.
- The endpoint refuses other extensions with 501 and says what to do instead.

Source:
    Triton Inference Server, protocol/extension_*.md: model configuration, model repository,
    statistics, shared memory, trace, logging.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from agent.serve.frames import Reply
from agent.serve.pool import Prepared
from wire.package.manifest import TensorSpec

NAMES: Final = ("binary_tensor_data", "classification", "model_configuration", "statistics")
"""The extensions in the server's metadata, beside what the settings add."""

NO_SHARED_MEMORY: Final = (
    "shared memory is not supported: send tensors raw, with binary_tensor_data"
)
NO_TRACES: Final = "requests are not traced: see `fleet telemetry query` and `fleet-agent why`"
NO_LOG_SETTINGS: Final = (
    "clients cannot change the log: read the journal of the agent's systemd service"
)
_NOT_OFFERED: Final = (
    (re.compile(r"/v2/(?:system|cuda)sharedmemory/.{1,300}"), NO_SHARED_MEMORY),
    (re.compile(r"/v2/(?:models/[^/]{1,200}/)?trace/setting"), NO_TRACES),
    (re.compile(r"/v2/logging"), NO_LOG_SETTINGS),
)


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
