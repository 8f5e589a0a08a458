"""The HTTP connection with the controller's API.

Rules:
- Every fault leaves here as one of `controller.client.errors`.
- The token is sent to the named controller alone: redirects are not followed, and no proxy of the
  environment is used. With `https://` the certificate is always checked.
- Without TLS the token goes to this machine alone, unless the operator asks for more.
- Only what is safe is sent again: what reads, after a connection that ended without an answer or an
  answer that asks for patience (429, 503); what changes something, after 429 alone, because then
  nothing was done.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.client import (
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    IncompleteRead,
    InvalidURL,
)
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, NamedTuple, Self, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from controller.client import faults
from controller.client.errors import (
    AnswerError,
    ClientError,
    DroppedError,
    FaultError,
    IdentifierError,
    NoControllerError,
    RateError,
    UnavailableError,
)
from controller.client.target import Target, trusting
from controller.domain.paging import CURSOR_HEADER
from controller.schemas import Request, given_fields
from wire.clock import Clock, SystemClock
from wire.codec import from_json
from wire.errors import WireFormatError
from wire.hosts import is_loopback

T = TypeVar("T")
TIMEOUT_S: Final = 30.0
CONNECT_TIMEOUT_S: Final = 5.0
PATIENCE_S: Final = 10.0
"""How long a request waits in all for a controller that asks for patience."""

FIRST_WAIT_S: Final = 0.1
PART_BYTES: Final = 1024 * 1024
MOST_IDLE_S: Final = 2.0
"""A connection that was idle for longer is not used again: servers and proxies close such ones
after some seconds, and a request that meets the close gets no answer."""

Params = Mapping[str, str | list[str]]


class Page(NamedTuple):
    """A part of a list, as it came."""

    content: bytes
    cursor: str
    """What asks for the part after it; empty at the end."""


def segment(text: str) -> str:
    """Return text as one segment of a path, whatever characters it has.

    Raises:
        IdentifierError: Empty, or more than one segment, or one that means a folder.
    """
    if text in {"", ".", ".."} or "/" in text:
        raise IdentifierError(
            f"{text!r} is not an identifier",
            remedy="write it as the list of these things shows it",
        )
    return quote(text, safe=":")


class ApiClient:
    """Requests to one controller, over one connection.

    Args:
        target: Where it is.
        timeout_s: How long an answer may take, and a part of a long one.
        patience_s: How long a request waits in all for a controller that asks for patience.
        clock: Says how long the connection was idle.

    Raises:
        NoControllerError: The address cannot be used, or the token would cross a network in the
            clear.
    """

    def __init__(
        self,
        target: Target,
        *,
        timeout_s: float = TIMEOUT_S,
        patience_s: float = PATIENCE_S,
        clock: Clock | None = None,
    ) -> None:
        self._url = target.url
        self._timeout_s, self._patience_s = timeout_s, patience_s
        connect_s = min(CONNECT_TIMEOUT_S, timeout_s)
        self._headers = {"Authorization": f"Bearer {target.token}", "Accept": "application/json"}
        try:
            parts = urlsplit(target.url)
            host, port = parts.hostname or "", parts.port
            self.is_overheard = parts.scheme != "https" and not is_loopback(host)
            self._http = (
                HTTPSConnection(host, port, timeout=connect_s, context=trusting(target.ca_file))
                if parts.scheme == "https"
                else HTTPConnection(host, port, timeout=connect_s)
            )
        except ValueError as exc:
            raise faults.unusable(self._url, exc) from exc
        if self.is_overheard and not target.clear_text:
            raise NoControllerError(
                f"the API token would go to {host} in the clear",
                remedy="write https://, or in a network that is closed to strangers add "
                "--api-clear-text (or FLEET_API_CLEAR_TEXT=1)",
            )
        self._prefix = parts.path
        self._clock = clock or SystemClock()
        self._idle_since_s = self._clock.monotonic_s()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def get(self, path: str, kind: type[T], params: Params | None = None) -> T:
        """Ask for something.

        Args:
            path: Below the address.
            kind: What the answer is.
            params: Query parameters.

        Returns:
            The answer.
        """
        query = f"?{urlencode(params, doseq=True)}" if params else ""
        return self._decode(self._send("GET", path + query).content, kind)

    def get_page(self, path: str, kind: type[T], params: Params) -> tuple[T, str]:
        """Ask for a part of a list.

        Args:
            path: Below the address.
            kind: What the answer is.
            params: Query parameters.

        Returns:
            The part, and what asks for the next one: empty at the end.
        """
        page = self._send("GET", f"{path}?{urlencode(params, doseq=True)}")
        return self._decode(page.content, kind), page.cursor

    def send(
        self, method: str, path: str, kind: type[T], body: Request | dict[str, Any] | None = None
    ) -> T:
        """Change something.

        Args:
            method: POST, PUT, PATCH or DELETE.
            path: Below the address.
            kind: What the answer is.
            body: What to send; of a request, the fields that are not None.

        Returns:
            The answer.
        """
        if body is None:
            return self._decode(self._send(method, path).content, kind)
        fields = body if isinstance(body, dict) else given_fields(body)
        # A value that JSON lacks is sent as text; the controller says what is wrong with it.
        content = json.dumps(fields, default=str).encode()
        headers = {"Content-Type": "application/json"}
        return self._decode(self._send(method, path, content, headers).content, kind)

    def has_blob(self, sha256: str) -> bool:
        """Tell whether the controller has a blob.

        Args:
            sha256: Its digest.

        Returns:
            Whether it is there.

        Raises:
            FaultError: The controller refused the request.
        """
        try:
            self._send("HEAD", f"/v1/blobs/{sha256}")
        except FaultError as exc:
            if exc.status == HTTPStatus.NOT_FOUND:
                return False
            raise
        return True

    def put_blob(self, sha256: str, path: Path) -> None:
        """Upload a file.

        Args:
            sha256: Its digest, which the controller checks.
            path: The file.
        """
        headers = {
            "Content-Length": str(path.stat().st_size),
            "Content-Type": "application/octet-stream",
        }
        with path.open("rb") as file:
            self._send("PUT", f"/v1/blobs/{sha256}", file, headers)

    def blob(self, sha256: str, size_bytes: int) -> Iterator[bytes]:
        """Download a blob.

        Args:
            sha256: Its digest, which the caller checks.
            size_bytes: Its size.

        Yields:
            Its content in parts.

        Raises:
            AnswerError: It has another size.
            UnreachableError: The controller ended before all of it came.
            FaultError: The controller has no such blob, or refused.
        """
        with self._own_errors():
            response = self._request("GET", f"/v1/blobs/{sha256}")
            if response.status != HTTPStatus.OK:
                raise self._refused("GET", response, response.read())
            if response.length != size_bytes:
                raise self._strange(f"a blob of {response.length} bytes, not {size_bytes}")
            yield from _parts(response, size_bytes)

    def lines(self, path: str, params: Params, limit_bytes: int) -> Iterator[bytes]:
        """Ask for an answer that is too long to be held.

        Args:
            path: Below the address.
            params: Query parameters.
            limit_bytes: The greatest length of a line.

        Yields:
            Its lines, one at a time.

        Raises:
            AnswerError: A line is longer.
            UnreachableError: The controller ended before all of it came.
            FaultError: The controller refused.
        """
        with self._own_errors():
            response = self._request("GET", f"{path}?{urlencode(params, doseq=True)}")
            if response.status != HTTPStatus.OK:
                raise self._refused("GET", response, response.read())
            while line := response.readline(limit_bytes + 1):
                if len(line) > limit_bytes:
                    raise self._strange(f"a line of more than {limit_bytes} bytes")
                yield line

    def _send(
        self,
        method: str,
        path: str,
        content: bytes | BinaryIO | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Page:
        """Send a request, again if that is safe and the controller may take it then.

        Raises:
            ClientError: There is no answer, or a refusal.
        """
        rest_s, wait_s = self._patience_s, FIRST_WAIT_S
        while True:
            try:
                return self._send_once(method, path, content, headers)
            except ClientError as fault:
                wait_s = max(wait_s, getattr(fault, "retry_after_s", 0.0))
                if not _may_repeat(method, fault) or wait_s > rest_s:
                    raise
            self._clock.sleep(wait_s)
            rest_s -= wait_s
            wait_s *= 2.0

    def _send_once(
        self,
        method: str,
        path: str,
        content: bytes | BinaryIO | None,
        headers: Mapping[str, str] | None,
    ) -> Page:
        with self._own_errors():
            response = self._request(method, path, content, headers)
            answer = response.read()
            self._idle_since_s = self._clock.monotonic_s()
        if HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
            return Page(answer, response.headers.get(CURSOR_HEADER, ""))
        raise self._refused(method, response, answer)

    def _refused(
        self, method: str, response: HTTPResponse, answer: bytes
    ) -> FaultError | AnswerError:
        later = response.headers.get("Retry-After", "")
        return faults.refused(
            self._url,
            method,
            response.status,
            answer,
            retry_after_s=float(later) if later.isdecimal() else 0.0,
        )

    def _request(
        self,
        method: str,
        path: str,
        content: bytes | BinaryIO | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> HTTPResponse:
        if self._clock.monotonic_s() - self._idle_since_s > MOST_IDLE_S:
            self._http.close()
        if self._http.sock is None:
            self._http.connect()
        self._http.sock.settimeout(self._timeout_s)
        # A controller that refuses a body answers before it has read it all.
        with suppress(BrokenPipeError, ConnectionResetError):
            self._http.request(
                method, self._prefix + path, content, {**self._headers, **(headers or {})}
            )
        return self._http.getresponse()

    @contextmanager
    def _own_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException as exc:
            self._http.close()  # the next request opens a new connection
            if isinstance(exc, InvalidURL | UnicodeError | OSError | HTTPException):
                raise faults.lost(self._url, exc) from exc
            raise

    def _strange(self, what: str) -> AnswerError:
        return faults.strange(self._url, what)

    def _decode(self, answer: bytes, kind: type[T]) -> T:
        try:
            return from_json(answer, kind, limit_bytes=len(answer))
        except WireFormatError as exc:
            raise self._strange("an answer in another form") from exc


def _may_repeat(method: str, fault: ClientError) -> bool:
    """Tell whether a request that failed may be sent again, and may succeed then."""
    if isinstance(fault, RateError):
        return True
    return isinstance(fault, DroppedError | UnavailableError) and method in {"GET", "HEAD"}


def _parts(response: HTTPResponse, size_bytes: int) -> Iterator[bytes]:
    while part := response.read(PART_BYTES):
        size_bytes -= len(part)
        yield part
    if size_bytes > 0:
        raise IncompleteRead(b"", size_bytes)
