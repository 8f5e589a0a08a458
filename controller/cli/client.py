"""The HTTP client of the controller's API.

Rules:
- Every fault leaves here as one of `controller.cli.errors`.
- The token is sent to the named controller alone: redirects are not followed, and no proxy of the
  environment is used. With `https://` the certificate is always checked.
- Without TLS the token goes to this machine alone, unless the operator asks for more.
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.client import (
    BadStatusLine,
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    IncompleteRead,
    InvalidURL,
)
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Self, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import typer

from controller.cli.arguments import ConnectionOptions
from controller.cli.errors import (
    AnswerError,
    ArgumentError,
    FaultError,
    NoControllerError,
    UnreachableError,
)
from controller.cli.target import Target, find_controller
from controller.schemas import Fault, Health, Request, given_fields
from wire.clock import Clock, SystemClock
from wire.codec import from_json
from wire.console.output import remark
from wire.console.place import place_lines
from wire.console.text import plain_text
from wire.errors import FleetError, WireFormatError
from wire.files import open_file
from wire.hosts import is_loopback

T = TypeVar("T")
TIMEOUT_S = 30.0
PART_BYTES = 1024 * 1024
CONNECT_TIMEOUT_S = 5.0
ENDED: Final = b"controller.unauthorized.ended"
"""In an answer that says which token was refused, and why."""

MOST_IDLE_S = 2.0
"""A connection that was idle for longer is not used again: servers and proxies close such ones
after some seconds, and a request that meets the close gets no answer."""


def segment(text: str) -> str:
    """Return text as one segment of a path, whatever characters it has.

    Raises:
        ArgumentError: Empty, or more than one segment, or one that means a folder.
    """
    if text in {"", ".", ".."} or "/" in text:
        raise ArgumentError(
            f"{text!r} is not an identifier",
            remedy="write it as the list of these things shows it",
        )
    return quote(text, safe=":")


def connect(context: typer.Context) -> ApiClient:
    """Return a client for the controller that the command line names."""
    options = context.obj if isinstance(context.obj, ConnectionOptions) else ConnectionOptions()
    api = ApiClient(find_controller(options, os.environ))
    if api.is_overheard:
        remark("warning: CLEAR TEXT: everybody on the way can read the API token; use https://")
    return api


def tell_cut_off(api: ApiClient) -> None:
    """Say that the controller has no connection with the broker, if that is so.

    What was asked has been answered: if this cannot be asked any more, nothing is said.

    Args:
        api: The controller.
    """
    try:
        health = api.get("/v1/health", Health)
    except FleetError:
        return
    if not health.broker_connected:
        needs = next(iter(health.needs), "a connection with the MQTT broker")
        remark(
            "warning: devices hear nothing, and what is shown of them may be old: the controller "
            f"lacks {plain_text(needs)}"
        )


class ApiClient:
    """Requests to one controller, over one connection.

    Args:
        target: Where it is.
        clock: Says how long the connection was idle.

    Raises:
        NoControllerError: The address cannot be used, or the token would cross a network in the
            clear.
    """

    def __init__(self, target: Target, *, clock: Clock | None = None) -> None:
        self._url = target.url
        self._headers = {"Authorization": f"Bearer {target.token}", "Accept": "application/json"}
        try:
            parts = urlsplit(target.url)
            host, port = parts.hostname or "", parts.port
            self.is_overheard = parts.scheme != "https" and not is_loopback(host)
            self._http = (
                HTTPSConnection(
                    host, port, timeout=CONNECT_TIMEOUT_S, context=_trusting(target.ca_file)
                )
                if parts.scheme == "https"
                else HTTPConnection(host, port, timeout=CONNECT_TIMEOUT_S)
            )
        except ValueError as exc:
            raise self._unusable(exc) from exc
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

    def get(
        self, path: str, kind: type[T], params: Mapping[str, str | list[str]] | None = None
    ) -> T:
        """Ask for something.

        Args:
            path: Below the address.
            kind: What the answer is.
            params: Query parameters.

        Returns:
            The answer.
        """
        query = f"?{urlencode(params, doseq=True)}" if params else ""
        return self._decode(self._send("GET", path + query), kind)

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
            return self._decode(self._send(method, path), kind)
        fields = body if isinstance(body, dict) else given_fields(body)
        # A value that JSON lacks is sent as text; the controller says what is wrong with it.
        content = json.dumps(fields, default=str).encode()
        headers = {"Content-Type": "application/json"}
        return self._decode(self._send(method, path, content, headers), kind)

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
                raise self._fault("GET", response.status, response.read())
            if response.length != size_bytes:
                raise self._strange(f"a blob of {response.length} bytes, not {size_bytes}")
            yield from _parts(response, size_bytes)

    def lines(
        self, path: str, params: Mapping[str, str | list[str]], limit_bytes: int
    ) -> Iterator[bytes]:
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
                raise self._fault("GET", response.status, response.read())
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
    ) -> bytes:
        with self._own_errors():
            response = self._request(method, path, content, headers)
            answer = response.read()
            self._idle_since_s = self._clock.monotonic_s()
        if HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
            return answer
        raise self._fault(method, response.status, answer)

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
        self._http.sock.settimeout(TIMEOUT_S)
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
            if isinstance(exc, TimeoutError):
                raise UnreachableError(
                    f"the controller at {self._url} did not answer in time",
                    remedy="look at its log, then try again",
                ) from exc
            if isinstance(exc, InvalidURL | UnicodeError):
                raise self._unusable(exc) from exc
            if isinstance(exc, ssl.SSLError):
                raise self._untrusted(exc) from exc
            if isinstance(exc, OSError | HTTPException):
                remedy = "start it with `fleet controller run DIR`, or correct --home or --url"
                if isinstance(exc, BadStatusLine) and self._url.startswith("http:"):
                    remedy += "; write https:// if it has TLS"
                raise UnreachableError(
                    f"no controller answers at {self._url}", remedy=remedy
                ) from exc
            raise

    def _untrusted(self, why: ssl.SSLError) -> UnreachableError:
        if isinstance(why, ssl.SSLCertVerificationError):
            return UnreachableError(
                f"the certificate of {self._url} is refused: {why.verify_message.rstrip('.')}",
                remedy="name the file of its authority with --ca-file FILE (or FLEET_CA_FILE), and "
                "use a host name that the certificate holds",
            )
        return UnreachableError(
            f"no TLS with {self._url}: {(why.reason or str(why)).lower().replace('_', ' ')}",
            remedy="write http:// if that controller is on this machine and has no TLS",
        )

    def _unusable(self, why: Exception) -> NoControllerError:
        return NoControllerError(
            f"{self._url!r} cannot be used: {why}", remedy="write --url https://HOST:PORT"
        )

    def _fault(self, method: str, status: int, answer: bytes) -> FaultError | AnswerError:
        if status == HTTPStatus.UNAUTHORIZED and ENDED not in answer:
            return FaultError(
                f"the controller at {self._url} refused the token",
                remedy="use the token file of that controller (api.token in its directory)",
                fault_code="controller.unauthorized",
                status=status,
            )
        if method == "HEAD":  # has no body
            return FaultError(f"the controller answered {status}", status=status)
        try:
            fault = from_json(answer, Fault, limit_bytes=len(answer))
        except WireFormatError:
            return self._strange(f"status {status} without a reason")
        return FaultError(
            plain_text(fault.message),
            remedy=plain_text(fault.remedy),
            fault_code=fault.code,
            status=status,
            shown=place_lines(fault.expression, fault.character),
        )

    def _decode(self, answer: bytes, kind: type[T]) -> T:
        try:
            return from_json(answer, kind, limit_bytes=len(answer))
        except WireFormatError as exc:
            raise self._strange("an answer in another form") from exc

    def _strange(self, what: str) -> AnswerError:
        return AnswerError(
            f"{self._url} gave {what}",
            remedy="check that the address is that of a controller of this version",
        )


def _parts(response: HTTPResponse, size_bytes: int) -> Iterator[bytes]:
    while part := response.read(PART_BYTES):
        size_bytes -= len(part)
        yield part
    if size_bytes > 0:
        raise IncompleteRead(b"", size_bytes)


def _trusting(ca_file: Path | None) -> ssl.SSLContext:
    """Return a context that checks certificates against one authority, or those of the system.

    Raises:
        NoControllerError: The file cannot be read or holds no certificate.
    """
    try:
        if ca_file is not None:
            open_file(ca_file).close()  # OpenSSL would wait for the other end of a named pipe
        return ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except OSError as exc:
        is_content = isinstance(exc, ssl.SSLError)
        reason = "it holds no certificate" if is_content else str(exc.strerror or exc).lower()
        raise NoControllerError(
            f"cannot use the CA file {ca_file}: {reason}",
            remedy="name the PEM file of the authority with --ca-file FILE (or FLEET_CA_FILE)",
        ) from exc
