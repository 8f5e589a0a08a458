"""Says in one line what is wrong with a connection or an answer, and what to do."""

from __future__ import annotations

import ssl
from http import HTTPStatus
from http.client import BadStatusLine, IncompleteRead, InvalidURL
from typing import Final

from controller.client.errors import (
    FAULTS,
    AnswerError,
    DroppedError,
    FaultError,
    NoControllerError,
    UnreachableError,
)
from controller.schemas import Fault
from wire.codec import from_json
from wire.console.place import place_lines
from wire.console.text import plain_text
from wire.errors import WireFormatError

ENDED: Final = b"controller.unauthorized.ended"
"""In an answer that says which token was refused, and why."""


def lost(url: str, why: Exception) -> UnreachableError | NoControllerError:
    """Return the fault of a request without an answer.

    Args:
        url: The address of the controller.
        why: What Python says.
    """
    if isinstance(why, TimeoutError):
        return UnreachableError(
            f"the controller at {url} did not answer in time",
            remedy="look at its log, then try again",
        )
    if isinstance(why, InvalidURL | UnicodeError):
        return unusable(url, why)
    if isinstance(why, ssl.SSLError):
        return _untrusted(url, why)
    remedy = "start it with `fleet controller run DIR`, or correct --home or --url"
    if isinstance(why, BadStatusLine) and url.startswith("http:"):
        remedy += "; write https:// if it has TLS"
    is_dropped = isinstance(why, ConnectionResetError | BrokenPipeError | IncompleteRead)
    kind = DroppedError if is_dropped else UnreachableError
    return kind(f"no controller answers at {url}", remedy=remedy)


def unusable(url: str, why: Exception) -> NoControllerError:
    """Return the fault of an address that is none."""
    return NoControllerError(
        f"{url!r} cannot be used: {why}", remedy="write --url https://HOST:PORT"
    )


def strange(url: str, what: str) -> AnswerError:
    """Return the fault of an answer that no controller gives."""
    return AnswerError(
        f"{url} gave {what}",
        remedy="check that the address is that of a controller of this version",
    )


def refused(
    url: str, method: str, status: int, answer: bytes, *, retry_after_s: float
) -> FaultError | AnswerError:
    """Return the fault that a controller answered.

    Args:
        url: Its address.
        method: Of the request.
        status: Of the answer.
        answer: Its body.
        retry_after_s: When the controller wants to be asked again.
    """
    kind = FAULTS.get(status, FaultError)
    if status == HTTPStatus.UNAUTHORIZED and ENDED not in answer:
        return kind(
            f"the controller at {url} refused the token",
            remedy="use the token file of that controller (api.token in its directory)",
            fault_code="controller.unauthorized",
            status=status,
        )
    if method == "HEAD":  # has no body
        fault = Fault(code="", message=f"the controller answered {status}")
    else:
        try:
            fault = from_json(answer, Fault, limit_bytes=len(answer))
        except WireFormatError:
            return strange(url, f"status {status} without a reason")
    return kind(
        plain_text(fault.message),
        remedy=plain_text(fault.remedy),
        fault_code=fault.code,
        status=status,
        retry_after_s=retry_after_s,
        shown=place_lines(fault.expression, fault.character),
    )


def _untrusted(url: str, why: ssl.SSLError) -> UnreachableError:
    if isinstance(why, ssl.SSLCertVerificationError):
        return UnreachableError(
            f"the certificate of {url} is refused: {why.verify_message.rstrip('.')}",
            remedy="name the file of its authority with --ca-file FILE (or FLEET_CA_FILE), and "
            "use a host name that the certificate holds",
        )
    return UnreachableError(
        f"no TLS with {url}: {(why.reason or str(why)).lower().replace('_', ' ')}",
        remedy="write http:// if that controller is on this machine and has no TLS",
    )
