"""Which request over HTTP each call is, except for inference.

Pure. What the endpoint offers is decided there: a call that it does not offer gets its 501 and the
reason.

Rules:
- Shared memory is refused here: the endpoint would take each client for the gRPC process, whose
  memory is the agent's.
- A server or a model that is not ready is an answer, not an error, as Triton has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec

from agent.grpc_endpoint.statuses import RefusedCallError, check
from agent.grpc_endpoint.translation import NO_SHARED_MEMORY

CALLS: Final = (
    "ServerLive",
    "ServerReady",
    "ModelReady",
    "ServerMetadata",
    "ModelMetadata",
    "ModelConfig",
    "ModelStatistics",
    "RepositoryIndex",
    "RepositoryModelLoad",
    "RepositoryModelUnload",
    "SystemSharedMemoryStatus",
    "SystemSharedMemoryRegister",
    "SystemSharedMemoryUnregister",
    "CudaSharedMemoryStatus",
    "CudaSharedMemoryRegister",
    "CudaSharedMemoryUnregister",
    "TraceSetting",
    "LogSettings",
)
OPEN: Final = frozenset({"ServerLive", "ServerReady"})
"""Calls that need no token."""

LIVE: Final = "/v2/health/live"
READY: Final = "/v2/health/ready"
_NOT_READY: Final = (404, 503)
_INNER: Final = {"ModelConfig": "config", "RepositoryIndex": "models"}
"""The field of the answer that holds the whole document."""

_PLAIN: Final = {
    "ServerLive": LIVE,
    "ServerReady": READY,
    "ServerMetadata": "/v2",
    "LogSettings": "/v2/logging",
}
_OF_A_MODEL: Final = {
    "ModelReady": "/ready",
    "ModelMetadata": "",
    "ModelConfig": "/config",
    "ModelStatistics": "/stats",
}


class Asked(NamedTuple):
    """A request over HTTP."""

    method: str
    target: str
    body: bytes = b""


def asked(call: str, fields: Mapping[str, Any]) -> Asked:
    """Return the request for a call.

    Args:
        call: One of `CALLS`.
        fields: Those of its message that are set.

    Raises:
        RefusedCallError: It names no model, or is about shared memory.
    """
    if "SharedMemory" in call:
        raise RefusedCallError("UNIMPLEMENTED", NO_SHARED_MEMORY)
    if call in _PLAIN:
        return Asked("GET", _PLAIN[call])
    if call in _OF_A_MODEL:
        name, version = fields.get("name", ""), fields.get("version", "")
        is_all = call == "ModelStatistics" and not name
        path = "/v2/models" if is_all else model_path(name, version)
        return Asked("GET", path + _OF_A_MODEL[call])
    if call.startswith("Repository"):
        return _of_the_repository(call, fields)
    name = fields.get("model_name", "")
    return Asked("GET", f"/v2/{f'models/{_segment(name)}/' if name else ''}trace/setting")


def answer_of(
    call: str, status: int, headers: Mapping[str, str], body: memoryview
) -> dict[str, Any]:
    """Return the fields of the answer to a call.

    Args:
        call: One of `CALLS`.
        status: Of the HTTP answer.
        headers: Names in lower case.
        body: JSON.

    Raises:
        RefusedCallError: The endpoint refuses the call.
    """
    if status in _NOT_READY and call in {"ServerReady", "ModelReady"}:
        return {"ready": False}
    check(status, headers, body)
    try:
        document = msgspec.json.decode(body) if body else {}
    except msgspec.DecodeError as exc:
        raise RefusedCallError("INTERNAL", "the endpoint's answer is malformed") from exc
    return {_INNER[call]: document} if call in _INNER else document


def model_path(name: str, version: str) -> str:
    """Return the path of a model, or of one version of it.

    Args:
        name: Of the model.
        version: Empty for the one that serves.

    Raises:
        RefusedCallError: The name is empty.
    """
    path = f"/v2/models/{_segment(name)}"
    return f"{path}/versions/{_segment(version)}" if version else path


def _of_the_repository(call: str, fields: Mapping[str, Any]) -> Asked:
    if call == "RepositoryIndex":
        body = msgspec.json.encode({"ready": bool(fields.get("ready", False))})
        return Asked("POST", "/v2/repository/index", body)
    action = call.removeprefix("RepositoryModel").lower()
    name = _segment(fields.get("model_name", ""))
    given = fields.get("parameters", {}).items()
    parameters = {key: next(iter(choice.values()), None) for key, choice in given}
    body = msgspec.json.encode({"parameters": parameters} if parameters else {})
    return Asked("POST", f"/v2/repository/models/{name}/{action}", body)


def _segment(name: str) -> str:
    """Return a name as a part of a path.

    Raises:
        RefusedCallError: It is empty.
    """
    if not name:
        raise RefusedCallError("INVALID_ARGUMENT", "the name of the model is empty")
    return quote(name, safe="")
