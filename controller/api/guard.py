"""The gate before the HTTP API: it checks the token, its role, the address and the body's size.

Rules:
- The gate checks the token and its role before it reads a byte of the body.
- A request without the token is answered, and then its connection ends. A request with it keeps the
  place of its connection.
- No path and no query holds a NUL, which PostgreSQL stores in no text.
- The gate counts the bytes of a body as they arrive; it does not trust the announced length.
"""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controller.api import faults as api_faults
from controller.api import rights
from controller.api.callers import Callers
from controller.api.noting import Noting
from controller.api.places import keep_place
from controller.errors import InvalidRequestError, TooLargeError
from controller.services.audit_log import AuditLog
from controller.store.acting import Act
from wire.clock import Clock
from wire.errors import FleetError

MAX_BODY_BYTES = 1024 * 1024
OPEN_PATHS = frozenset({"/v1/health"})
"""These paths need no token: they say nothing about the fleet, and load balancers ask for them."""

_BLOBS = "/v1/blobs/"


class Guard:
    """An ASGI application that checks each request before another application gets it.

    Args:
        app: The other application.
        callers: Finds who asks.
        audit: Where requests are noted that change something.
        clock: Wall time.
        max_blob_bytes: The largest body of an uploaded blob.
    """

    def __init__(
        self, app: ASGIApp, callers: Callers, audit: AuditLog, clock: Clock, max_blob_bytes: int
    ) -> None:
        self._app = app
        self._callers = callers
        self._audit = audit
        self._clock = clock
        self._max_blob_bytes = max_blob_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with a fault."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        headers = {name.lower(): value for name, value in scope["headers"]}
        act: Act | None = None
        try:
            if path not in OPEN_PATHS:
                caller = await self._callers.find(scope, headers.get(b"authorization", b""))
                keep_place(scope)
                wanted = rights.asked(scope)
                act = rights.act_of(caller, wanted, self._clock)
                rights.check(caller, wanted)
                scope.setdefault("state", {})["caller"] = caller
            _check_address(path, scope["query_string"])
            limit = self._max_blob_bytes if path.startswith(_BLOBS) else MAX_BODY_BYTES
            _check_length(headers.get(b"content-length", b""), limit)
        except FleetError as exc:
            await self._noted(api_faults.answer(exc), act)(scope, receive, send)
            return
        await self._noted(self._app, act)(scope, _Counted(receive, limit), send)

    def _noted(self, app: ASGIApp, act: Act | None) -> ASGIApp:
        return app if act is None else Noting(app, act, self._audit)


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
