"""How the endpoint's HTTP statuses are told in gRPC.

Pure.

Source:
    gRPC, doc/statuscodes.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import msgspec

Code: TypeAlias = Literal[
    "CANCELLED",
    "DEADLINE_EXCEEDED",
    "INTERNAL",
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "RESOURCE_EXHAUSTED",
    "UNAUTHENTICATED",
    "UNAVAILABLE",
    "UNIMPLEMENTED",
]
OK: Final = 200
_CODES: Final[Mapping[int, Code]] = {
    401: "UNAUTHENTICATED",
    404: "NOT_FOUND",
    408: "UNAVAILABLE",
    410: "NOT_FOUND",
    413: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_CLIENT_FAULTS: Final = range(400, 500)
KEPT: Final = ("retry-after", "edgefleet-advice")
"""Headers of an answer that become trailing metadata, under the same names."""

MAX_CHARACTERS: Final = 500


class RefusedCallError(Exception):
    """A call is refused. This error never leaves the gRPC process.

    Args:
        code: Name of the gRPC status.
        message: What is wrong, in one line.
        metadata: Trailing metadata.
    """

    def __init__(self, code: Code, message: str, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = " ".join(message.split())[:MAX_CHARACTERS]
        self.metadata = dict(metadata or {})


class _Fault(msgspec.Struct, frozen=True):
    error: str


_FAULT: Final = msgspec.json.Decoder(_Fault)


def code_of(status: int) -> Code:
    """Return the gRPC status that tells an HTTP status of a refusal."""
    known = _CODES.get(status)
    if known is not None:
        return known
    return "INVALID_ARGUMENT" if status in _CLIENT_FAULTS else "INTERNAL"


def check(status: int, headers: Mapping[str, str], body: memoryview) -> None:
    """Tell a refusal of the endpoint as one of the call.

    Args:
        status: HTTP status.
        headers: Names in lower case.
        body: `{"error": ...}` if it refuses.

    Raises:
        RefusedCallError: It refuses.
    """
    if status == OK:
        return
    try:
        message = _FAULT.decode(body).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        message = f"the endpoint answered with status {status}"
    raise RefusedCallError(code_of(status), message, trailing(headers))


def trailing(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the trailing metadata for the headers of an answer."""
    return {name: headers[name] for name in KEPT if name in headers}
