"""Faults of the HTTP API: which status a fault has, and how it is written.

Rules:
- Every answer of 400 or more is a `Fault`, also those that the framework makes.
- The log gets every detail of an unexpected fault; the client gets none.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import asdict
from http import HTTPStatus
from typing import Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from controller.errors import (
    ConflictError,
    ForbiddenError,
    InvalidRequestError,
    LinkError,
    RateLimitedError,
    SelectorError,
    TooLargeError,
    UnauthorizedError,
    UnknownError,
    WrongTokensError,
)
from controller.metadata.errors import MetadataError
from controller.schemas import Fault
from telemetry.errors import AlertRuleError, QueryError, UnknownMetricError
from wire.errors import FleetError, IntegrityError, SignatureError, TopicError, WireFormatError

_log = logging.getLogger(__name__)

STATUSES: Mapping[type[FleetError], int] = {
    UnauthorizedError: 401,
    ForbiddenError: 403,
    LinkError: 403,
    UnknownError: 404,
    ConflictError: 409,
    TooLargeError: 413,
    InvalidRequestError: 422,
    MetadataError: 422,
    SignatureError: 422,
    IntegrityError: 422,
    WireFormatError: 422,
    TopicError: 422,
    UnknownMetricError: 404,
    QueryError: 422,
    AlertRuleError: 422,
    RateLimitedError: 429,
}
"""The status of each family; the first match counts. Without one, a retryable fault is 503, any
other 400."""

_HEADERS: Mapping[type[FleetError], Mapping[str, str]] = {
    UnauthorizedError: {"WWW-Authenticate": "Bearer", "Connection": "close"},
    LinkError: {"Connection": "close"},
}
"""What an answer to a fault has in its header. A client that shows no token, or no valid link, may
send one request for each connection."""

_LATER: Final = {"Retry-After": "5"}
"""What an answer of 503 has there."""

FAULT_RESPONSES: dict[int | str, dict[str, object]] = {
    status: {"model": Fault, "description": text}
    for status, text in (
        (400, "The request cannot be read, or cannot be done as the controller is set up."),
        (401, "The API token is missing, wrong, expired or revoked."),
        (403, "The role of the API token does not allow it."),
        (404, "There is nothing with this name."),
        (409, "The request conflicts with the present state."),
        (413, "The body is too large."),
        (422, "The request is not valid."),
        (429, "The API token is used too often; Retry-After says when to try again."),
        (503, "The database or the broker does not answer, or the API is busy; try again."),
    )
}


def status_of(error: FleetError) -> int:
    """Return the HTTP status of a fault."""
    for family, status in STATUSES.items():
        if isinstance(error, family):
            return status
    return 503 if error.retryable else 400


def answer(error: FleetError) -> Response:
    """Return a fault as an HTTP answer."""
    fault = Fault(code=error.code, message=error.message, remedy=error.remedy)
    if isinstance(error, SelectorError):
        fault.expression, fault.character = error.expression, error.character
    status = status_of(error)
    return JSONResponse(asdict(fault), status_code=status, headers=_headers(error, status))


def _headers(error: FleetError, status: int) -> Mapping[str, str] | None:
    if isinstance(error, RateLimitedError):
        later = {"Retry-After": str(max(math.ceil(error.retry_after_s), 1))}
        return {**later, "Connection": "close"} if isinstance(error, WrongTokensError) else later
    for family, headers in _HEADERS.items():
        if isinstance(error, family):
            return headers
    return _LATER if status == HTTPStatus.SERVICE_UNAVAILABLE else None


def written(response: Response) -> bytes:
    """Return an answer as HTTP/1.1 writes it; the connection ends after it."""
    status = HTTPStatus(response.status_code)
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}".encode(),
        *(name + b": " + value for name, value in response.raw_headers),
        b"connection: close",
    ]
    return b"\r\n".join([*lines, b"", bytes(response.body)])


def install(app: FastAPI) -> None:
    """Make an application answer every fault with a `Fault`."""
    app.add_exception_handler(FleetError, _fleet_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientDisconnect, _client_left)
    app.add_exception_handler(Exception, _unforeseen)


def _fleet_error(_request: Request, exc: Exception) -> Response:
    if not isinstance(exc, FleetError):
        raise TypeError(type(exc))
    return answer(exc)


def _invalid(_request: Request, exc: Exception) -> Response:
    if not isinstance(exc, RequestValidationError):
        raise TypeError(type(exc))
    first = exc.errors()[0]
    # The first part says where in the request the field is, which is always its body or its query.
    where = ".".join(str(part) for part in first["loc"][1:] or first["loc"])
    text = f"{where}: {str(first['msg']).lower()}"
    # A name in the body may hold a line end or the like; a message is one line.
    message = "".join(char if char.isprintable() else " " for char in text)
    fault = Fault(code=InvalidRequestError.code, message=message)
    return JSONResponse(asdict(fault), status_code=422)


def _http_error(_request: Request, exc: Exception) -> Response:
    if not isinstance(exc, HTTPException):
        raise TypeError(type(exc))
    too_large = exc.status_code == 413  # noqa: PLR2004 - HTTP
    code = TooLargeError.code if too_large else "controller.http"
    fault = Fault(code=code, message=str(exc.detail).lower())
    return JSONResponse(asdict(fault), status_code=exc.status_code, headers=exc.headers)


def _client_left(request: Request, _exc: Exception) -> Response:
    """Say so in one line: a client that ends an upload half way is no fault of the controller."""
    _log.info("%s %s: the client left before its body was whole", request.method, request.url.path)
    return Response(status_code=400)  # nobody reads it


def _unforeseen(request: Request, exc: Exception) -> Response:
    _log.error("%s %s failed", request.method, request.url.path, exc_info=exc)
    fault = Fault(code="controller.internal", message="the controller failed; see its log")
    return JSONResponse(asdict(fault), status_code=500)
