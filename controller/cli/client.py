"""The HTTP client of the controller's API, and how a command finds the controller.

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
from dataclasses import dataclass
from http import HTTPStatus
from http.client import (
    BadStatusLine,
    HTTPConnection,
    HTTPException,
    HTTPSConnection,
    InvalidURL,
)
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self, TypeVar
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
from controller.schemas import Fault, Request, given_fields
from wire.codec import from_json
from wire.console.output import remark
from wire.console.text import plain_text
from wire.errors import WireFormatError
from wire.files import open_file
from wire.hosts import is_loopback

T = TypeVar("T")
TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5.0
MAX_TOKEN_BYTES = 4096
REMEDY = (
    "use --home DIR, or --url URL with --token-file FILE (or set FLEET_HOME, or FLEET_URL and "
    "FLEET_TOKEN)"
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Target:
    """A controller's address and the secret for it."""

    url: str
    token: str
    ca_file: Path | None = None
    """Authority of the certificate; None for those of the system."""

    clear_text: bool = False
    """Whether the token may go to another machine without TLS."""


def find_controller(options: ConnectionOptions, environment: Mapping[str, str]) -> Target:
    """Find the controller: options come before the environment, an address before a directory.

    Args:
        options: From the command line.
        environment: FLEET_HOME, FLEET_URL, FLEET_TOKEN, FLEET_CA_FILE, FLEET_API_CLEAR_TEXT.

    Returns:
        Address, token and authority.

    Raises:
        NoControllerError: No setting names a controller, or its file cannot be read.
    """
    token_file, url, home = options.token_file, options.url, options.home
    ca_file = options.ca_file or _path(environment, "FLEET_CA_FILE")
    clear_text = options.api_clear_text or environment.get("FLEET_API_CLEAR_TEXT") == "1"
    if url is None and home is None:
        url = environment.get("FLEET_URL") or None
        home = _path(environment, "FLEET_HOME")
    if url is None and home is None:
        raise NoControllerError("no controller is named", remedy=REMEDY)
    if url is None and home is not None:
        from controller.app.home import read_home

        found = read_home(home)
        token = _read_token(token_file or found.token_file)
        return Target(
            url=found.api_url,
            token=token,
            ca_file=ca_file or found.ca_file,
            clear_text=clear_text or found.clear_text,
        )
    url = (url or "").rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise NoControllerError(f"{url!r} is not an address", remedy="write https://HOST:PORT")
    token = environment.get("FLEET_TOKEN", "")
    if token_file is not None:
        token = _read_token(token_file)
    if not token:
        raise NoControllerError(f"no token for {url}", remedy=REMEDY)
    if not _is_word(token):
        raise NoControllerError("FLEET_TOKEN holds a space or a character that no token has")
    if not _is_word(url):
        raise NoControllerError(
            f"{url!r} is not an address: it holds a space or a character that no address has",
            remedy="write https://HOST:PORT",
        )
    return Target(url=url, token=token, ca_file=ca_file, clear_text=clear_text)


def _path(environment: Mapping[str, str], name: str) -> Path | None:
    return Path(environment[name]) if environment.get(name) else None


def _is_word(text: str) -> bool:
    """Tell whether a text may stand in the head of an HTTP request."""
    return text.isascii() and text.isprintable() and " " not in text


def segment(text: str) -> str:
    """Return text as one segment of a path, whatever characters it has.

    Raises:
        ArgumentError: Empty, or more than one segment, or one that means a folder.
    """
    if text in {"", ".", ".."} or "/" in text:
        raise ArgumentError(f"{text!r} is not an identifier")
    return quote(text, safe=":")


def connect(context: typer.Context) -> ApiClient:
    """Return a client for the controller that the command line names."""
    options = context.obj if isinstance(context.obj, ConnectionOptions) else ConnectionOptions()
    api = ApiClient(find_controller(options, os.environ))
    if api.is_overheard:
        remark("warning: CLEAR TEXT: everybody on the way can read the API token; use https://")
    return api


class ApiClient:
    """Requests to one controller, over one connection.

    Args:
        target: Where it is.

    Raises:
        NoControllerError: The address cannot be used, or the token would cross a network in the
            clear.
    """

    def __init__(self, target: Target) -> None:
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

    def _send(
        self,
        method: str,
        path: str,
        content: bytes | BinaryIO | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        with self._own_errors():
            if self._http.sock is None:
                self._http.connect()
            self._http.sock.settimeout(TIMEOUT_S)
            # A controller that refuses a body answers before it has read it all.
            with suppress(BrokenPipeError, ConnectionResetError):
                self._http.request(
                    method, self._prefix + path, content, {**self._headers, **(headers or {})}
                )
            response = self._http.getresponse()
            answer = response.read()
        if HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
            return answer
        raise self._fault(method, response.status, answer)

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
        return NoControllerError(f"{self._url!r} cannot be used: {why}")

    def _fault(self, method: str, status: int, answer: bytes) -> FaultError | AnswerError:
        if status == HTTPStatus.UNAUTHORIZED:
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


def _read_token(path: Path) -> str:
    """Read a secret.

    Raises:
        NoControllerError: It cannot be read, or holds none.
    """
    try:
        with open_file(path) as file:
            token = file.read(MAX_TOKEN_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError) as exc:
        reason = (exc.strerror or str(exc)).lower() if isinstance(exc, OSError) else "not text"
        raise NoControllerError(
            f"cannot read the token file {path}: {reason}",
            remedy="run as its owner, or name another with --token-file",
        ) from exc
    if not token or not token.isascii() or not token.isprintable():
        raise NoControllerError(f"the token file {path} holds no token")
    return token
