"""The HTTP client of the controller's API, and how a command finds the controller.

Rules:
- Every fault leaves here as one of `controller.cli.errors`; httpx is seen nowhere else.
- The token is sent to the named controller alone: redirects are not followed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import quote

import typer

from controller.cli.errors import (
    AnswerError,
    ArgumentError,
    FaultError,
    NoControllerError,
    UnreachableError,
)
from controller.cli.output import plain_text

if TYPE_CHECKING:
    import httpx
    from pydantic import BaseModel

T = TypeVar("T")
B = TypeVar("B", bound="BaseModel")
TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5.0
UPLOAD_STEP_BYTES = 256 * 1024
MAX_TOKEN_BYTES = 4096
REMEDY = (
    "use --home DIR, or --url URL with --token-file FILE (or set FLEET_HOME, or FLEET_URL and "
    "FLEET_TOKEN)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """The options that say where the controller is, as given."""

    home: Path | None = None
    url: str | None = None
    token_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Target:
    """A controller's address and the secret for it."""

    url: str
    token: str


def find_controller(options: ConnectionOptions, environment: Mapping[str, str]) -> Target:
    """Say where the controller is: an option beats the environment, an address beats a directory.

    Args:
        options: From the command line.
        environment: FLEET_HOME, FLEET_URL, FLEET_TOKEN.

    Returns:
        Address and token.

    Raises:
        NoControllerError: Nothing says so, or a file that does cannot be read.
    """
    token_file, url = options.token_file, options.url
    home = options.home
    if url is None and home is None:
        url = environment.get("FLEET_URL") or None
        home = Path(environment["FLEET_HOME"]) if environment.get("FLEET_HOME") else None
    if url is None and home is None:
        raise NoControllerError("no controller is named", remedy=REMEDY)
    if url is None and home is not None:
        from controller.app.home import read_home

        found = read_home(home)
        return Target(url=found.api_url, token=_read_token(token_file or found.token_file))
    url = (url or "").rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise NoControllerError(f"{url!r} is not an address", remedy="write http://HOST:PORT")
    token = environment.get("FLEET_TOKEN", "")
    if token_file is not None:
        token = _read_token(token_file)
    if not token:
        raise NoControllerError(f"no token for {url}", remedy=REMEDY)
    return Target(url=url, token=token)


def segment(text: str) -> str:
    """Return text as one segment of a path, whatever characters it has.

    Raises:
        ArgumentError: Empty, or a name that a path takes for a folder.
    """
    if text in {"", ".", ".."}:
        raise ArgumentError(f"{text!r} is not an identifier")
    return quote(text, safe=":")


def request_body(kind: type[B], **values: Any) -> B:  # noqa: ANN401 - checked here
    """Return the body of a request.

    Args:
        kind: Its type.
        values: Its fields.

    Returns:
        The body.

    Raises:
        ArgumentError: A value is out of range.
    """
    from pydantic import ValidationError

    try:
        return kind(**values)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ArgumentError(f"{where}: {first['msg'].lower()}") from exc


def connect(context: typer.Context) -> ApiClient:
    """Return a client for the controller that the command line names."""
    options = context.obj if isinstance(context.obj, ConnectionOptions) else ConnectionOptions()
    return ApiClient(find_controller(options, os.environ))


class ApiClient:
    """Requests to one controller.

    Args:
        target: Where it is.
    """

    def __init__(self, target: Target) -> None:
        import httpx

        self._url = target.url
        self._http = httpx.Client(
            base_url=target.url,
            headers={"Authorization": f"Bearer {target.token}"},
            timeout=httpx.Timeout(TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            # A proxy of the environment must not see the token of a local controller.
            trust_env=False,
        )

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
        return self._decode(self._send("GET", path, params=dict(params or {})), kind)

    def send(self, method: str, path: str, kind: type[T], body: BaseModel | None = None) -> T:
        """Change something.

        Args:
            method: POST, PUT, PATCH or DELETE.
            path: Below the address.
            kind: What the answer is.
            body: What to send; fields that were not set are left out.

        Returns:
            The answer.
        """
        content = None if body is None else body.model_dump_json(exclude_unset=True)
        headers = {} if body is None else {"Content-Type": "application/json"}
        return self._decode(self._send(method, path, content=content, headers=headers), kind)

    def has_blob(self, sha256: str) -> bool:
        """Tell whether the controller has a blob.

        Args:
            sha256: Its digest.

        Returns:
            Whether it is there.

        Raises:
            FaultError: The controller refused to say.
        """
        try:
            self._send("HEAD", f"/v1/blobs/{sha256}")
        except FaultError as exc:
            if exc.status == 404:  # noqa: PLR2004 - HTTP
                return False
            raise
        return True

    def put_blob(self, sha256: str, path: Path) -> None:
        """Upload a file in steps.

        Args:
            sha256: Its digest, which the controller checks.
            path: The file.
        """
        headers = {
            "Content-Length": str(path.stat().st_size),
            "Content-Type": "application/octet-stream",
        }
        self._send("PUT", f"/v1/blobs/{sha256}", content=_pieces(path), headers=headers)

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:  # noqa: ANN401 - httpx's own options
        with self._own_errors():
            response = self._http.request(method, path, **options)
        if response.is_success:
            return response
        raise self._fault(response)

    @contextmanager
    def _own_errors(self) -> Iterator[None]:
        import httpx

        try:
            yield
        except httpx.TimeoutException as exc:
            raise UnreachableError(
                f"the controller at {self._url} did not answer in time",
                remedy="look at its log, then try again",
            ) from exc
        except httpx.TransportError as exc:
            raise UnreachableError(
                f"no controller answers at {self._url}",
                remedy="start it with `fleet controller run DIR`, or correct --home or --url",
            ) from exc
        except (httpx.InvalidURL, httpx.HTTPError) as exc:
            raise NoControllerError(f"{self._url!r} cannot be used: {exc}") from exc

    def _fault(self, response: httpx.Response) -> FaultError | AnswerError:
        from pydantic import ValidationError

        from controller.schemas import Fault

        if response.status_code == 401:  # noqa: PLR2004 - HTTP
            return FaultError(
                f"the controller at {self._url} refused the token",
                remedy="use the token file of that controller (api.token in its directory)",
                fault_code="controller.unauthorized",
                status=401,
            )
        if response.request.method == "HEAD":  # has no body
            return FaultError(
                f"the controller answered {response.status_code}", status=response.status_code
            )
        try:
            fault = Fault.model_validate_json(response.content)
        except ValidationError:
            return self._strange(f"status {response.status_code} without a reason")
        return FaultError(
            plain_text(fault.message),
            remedy=plain_text(fault.remedy),
            fault_code=fault.code,
            status=response.status_code,
        )

    def _decode(self, response: httpx.Response, kind: type[T]) -> T:
        from pydantic import TypeAdapter, ValidationError

        try:
            return TypeAdapter(kind).validate_json(response.content)
        except ValidationError as exc:
            raise self._strange("an answer of another form") from exc

    def _strange(self, what: str) -> AnswerError:
        return AnswerError(
            f"{self._url} gave {what}",
            remedy="see that it is a controller, and of this version",
        )


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(UPLOAD_STEP_BYTES):
            yield piece


def _read_token(path: Path) -> str:
    """Read a secret.

    Raises:
        NoControllerError: It cannot be read, or holds none.
    """
    try:
        with path.open("rb") as file:
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
