"""The gate before the HTTP API: it checks the token, the address and the size of the body.

Rules:
- The gate checks the token, in constant time, before it reads a byte of the body.
- A request without the token is answered, and then its connection ends. A request with it keeps the
  place of its connection.
- No path and no query holds a NUL, which PostgreSQL stores in no text.
- The gate counts the bytes of a body as they arrive; it does not trust the announced length.
"""

from __future__ import annotations

import hmac

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controller.api import faults as api_faults
from controller.api.places import keep_place
from controller.errors import InvalidRequestError, TooLargeError, UnauthorizedError
from wire.errors import FleetError

MAX_BODY_BYTES = 1024 * 1024
OPEN_PATHS = frozenset({"/v1/health"})
"""These paths need no token: they say nothing about the fleet, and load balancers ask for them."""

METRICS_PATH = "/metrics"
"""This path may be read with a token of its own, too."""

_BLOBS = "/v1/blobs/"


class Guard:
    """An ASGI application that checks each request before another application gets it.

    Args:
        app: The other application.
        token: The API token.
        max_blob_bytes: The largest body of an uploaded blob.
        metrics_token: What opens the metrics alone; None if only the API token does.
    """

    def __init__(
        self, app: ASGIApp, token: str, max_blob_bytes: int, metrics_token: str | None = None
    ) -> None:
        self._app = app
        self._token = token.encode()
        self._metrics_token = None if metrics_token is None else metrics_token.encode()
        self._max_blob_bytes = max_blob_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with a fault."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        headers = {name.lower(): value for name, value in scope["headers"]}
        try:
            if path not in OPEN_PATHS:
                self._check_token(path, headers.get(b"authorization", b""))
                keep_place(scope)
            _check_address(path, scope["query_string"])
            limit = self._max_blob_bytes if path.startswith(_BLOBS) else MAX_BODY_BYTES
            _check_length(headers.get(b"content-length", b""), limit)
        except FleetError as exc:
            await api_faults.answer(exc)(scope, receive, send)
            return
        await self._app(scope, _Counted(receive, limit), send)

    def _check_token(self, path: str, header: bytes) -> None:
        scheme, _, shown = header.partition(b" ")
        right = hmac.compare_digest(shown.strip(), self._token)
        if path == METRICS_PATH and self._metrics_token is not None:
            right |= hmac.compare_digest(shown.strip(), self._metrics_token)
        if scheme.lower() == b"bearer" and right:
            return
        if path == METRICS_PATH and self._metrics_token is not None:
            raise UnauthorizedError(
                "the token of the metrics is missing or wrong",
                remedy="send the content of the file prometheus.token_file as a bearer token",
            )
        raise UnauthorizedError(
            "the API token is missing or wrong",
            remedy="send the content of api.token as a bearer token",
        )


class _Counted:
    """The body of a request, which ends in a fault when it is too large."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._limit = limit
        self._size_bytes = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        self._size_bytes += len(message.get("body", b""))
        if self._size_bytes > self._limit:
            # The framework lets only its own exception through while it reads a body.
            raise HTTPException(413, _too_large(self._limit).message)
        return message


def _check_address(path: str, query: bytes) -> None:
    if "\0" in path or b"%00" in query:
        raise InvalidRequestError("the path or the query holds the character NUL (%00)")


def _check_length(announced: bytes, limit: int) -> None:
    if announced.isdigit() and int(announced) > limit:
        raise _too_large(limit)


def _too_large(limit: int) -> TooLargeError:
    return TooLargeError(f"the body is larger than the limit of {limit} bytes")
