"""HTTP requests to one registry: credentials, redirects, limits and faults.

Rules:
- Credentials go to the registry and to the server of tokens that it names; never on to where a
  redirect leads.
- Where an address leads is asked of what connects there, and an address that programs could read in
  different ways leads nowhere.
- TLS, unless the operator says clear text; a registry with TLS leads nobody to a place without it.
- Of what is no content, no more than a limit is read.
- Every fault of the network leaves here as one of `packager.errors`. Proxies of the environment are
  not used.

Source:
    OCI distribution spec 1.1; Docker's "Token Authentication Specification" and "OAuth2 token
    authentication" for `Bearer`.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import urlencode, urljoin

import msgspec
import urllib3
from urllib3.util import parse_url

from packager.errors import (
    RegistryAnswerError,
    RegistryError,
    RegistryUnreachableError,
)
from packager.registry.credentials import Login
from packager.registry.faults import Faults
from wire.codec import from_json
from wire.errors import WireFormatError
from wire.files import open_file
from wire.version import VERSION

CONNECT_TIMEOUT_S: Final = 10.0
READ_TIMEOUT_S: Final = 60.0
"""How long a registry may be silent: some check a whole upload before they answer."""

SEND_BYTES: Final = 64 * 1024
MAX_ANSWER_BYTES: Final = 64 * 1024
"""Of a token or a fault."""

MAX_REDIRECTS: Final = 5
USER_AGENT: Final = f"edgefleet/{VERSION}"
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_CHALLENGE: Final = re.compile(r'(\w+)="([^"]*)"')
_ADDRESS: Final = re.compile(r"[!-\[\]-~]*")
"""ASCII without blanks, control characters and the backslash, as RFC 3986 has it: what programs
make of the others differs."""

Body = Callable[[], Iterable[bytes]]
"""Returns what is to be sent, each time anew."""

Origin = tuple[str, str, int]


class _Token(msgspec.Struct):
    token: str = ""
    access_token: str = ""


class Access:
    """Requests to one registry.

    Args:
        host: Its name, perhaps with a port.
        login: Returns the credentials, if there are any; asked once, if the registry wants them.
        ca_file: An authority that counts beside those of the system.
        clear_text: Whether to speak without TLS.

    Raises:
        RegistryError: The file of the authority is unusable.
    """

    def __init__(
        self,
        host: str,
        *,
        login: Callable[[], Login | None],
        ca_file: Path | None = None,
        clear_text: bool = False,
    ) -> None:
        self.host = host
        self._scheme = "http" if clear_text else "https"
        self._login = login
        self._faults = Faults(host, self._credentials)
        self._known: tuple[Login | None] | None = None
        self._authorization = ""
        self._base = f"{self._scheme}://{host}/v2/"
        self._origin = self._origin_of(self._base)
        self._pool = urllib3.PoolManager(
            ssl_context=_trusting(ca_file),
            retries=False,
            timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=READ_TIMEOUT_S),
        )

    def close(self) -> None:
        """Close all connections."""
        self._pool.clear()

    @contextmanager
    def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        """Ask for something.

        Args:
            method: GET and HEAD follow redirects; others do not.
            url: Below the registry's address, or absolute.
            headers: Beside those for the credentials.
            body: What is sent.

        Yields:
            The answer, its body not read yet.

        Raises:
            RegistryUnreachableError: There is no answer, or it broke off.
            RegistryRefusedError: The credentials are wrong or missing.
            RegistryAnswerError: It leads on to where nobody should go.
        """
        url = urljoin(self._base, url)
        with self._faults.own_errors():
            for _ in range(MAX_REDIRECTS + 1):
                response = self._answer(method, url, headers or {}, body)
                if response.status not in REDIRECTS or method not in {"GET", "HEAD"}:
                    break
                url = self.joined(url, response.headers.get("Location", ""))
                _end(response)
            else:
                raise RegistryAnswerError(f"{self.host} leads on and on")
            try:
                yield response
            except BaseException:
                response.close()
                raise
            _end(response)

    def joined(self, url: str, location: str) -> str:
        """Return where an answer leads.

        Args:
            url: What was asked for, below the registry's address or absolute.
            location: The header of the answer.

        Returns:
            The absolute address.

        Raises:
            RegistryAnswerError: There is no such place, it is one without TLS, or its address can
                be read in several ways.
        """
        if _ADDRESS.fullmatch(location) is None:
            raise RegistryAnswerError(f"{self.host} leads to no address")
        try:
            target = urljoin(urljoin(self._base, url), location)
            origin = self._origin_of(target)
            has_user = parse_url(target).auth is not None
        except ValueError as exc:
            raise RegistryAnswerError(f"{self.host} leads to no address") from exc
        if has_user:
            raise RegistryAnswerError(f"{self.host} leads to an address with a user in it")
        if not location or not origin[1]:
            raise RegistryAnswerError(f"{self.host} leads nowhere")
        if origin[0] not in {"https", self._scheme}:
            raise RegistryAnswerError(f"{self.host} leads to a place without TLS")
        return target

    def fault(self, response: urllib3.BaseHTTPResponse, what: str) -> RegistryError:
        """Return what an answer that is no success means.

        Args:
            response: The answer.
            what: What was asked for, for the text.
        """
        return self._faults.of_answer(response, what)

    def _answer(
        self, method: str, url: str, headers: Mapping[str, str], body: Body | None
    ) -> urllib3.BaseHTTPResponse:
        is_registry = self._origin_of(url) == self._origin
        response = self._send(method, url, headers, body, with_credentials=is_registry)
        if response.status != HTTPStatus.UNAUTHORIZED or not is_registry:
            return response
        challenge = ", ".join(response.headers.getlist("WWW-Authenticate"))
        _end(response)
        self._authorization = self._authorized(challenge)
        return self._send(method, url, headers, body, with_credentials=True)

    def _send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: Body | None,
        *,
        with_credentials: bool,
    ) -> urllib3.BaseHTTPResponse:
        given = {"Accept-Encoding": "identity", "User-Agent": USER_AGENT, **headers}
        if with_credentials and self._authorization:
            given["Authorization"] = self._authorization
        return self._pool.request(
            method,
            url,
            headers=given,
            body=None if body is None else _small_parts(body()),
            preload_content=False,
            decode_content=False,
            redirect=False,
        )

    def _authorized(self, challenge: str) -> str:
        """Return the header that answers a challenge.

        Raises:
            RegistryRefusedError: There are no credentials, or they are refused.
        """
        login = self._credentials()
        scheme, _, rest = challenge.partition(" ")
        if scheme.lower() == "bearer" or "bearer " in rest.lower():
            start = challenge.lower().index("bearer ")
            return f"Bearer {self._token(dict(_CHALLENGE.findall(challenge[start:])), login)}"
        if scheme.lower() == "basic" and login is not None and login.basic:
            if self._authorization == login.basic:
                raise self._faults.refused()
            return login.basic
        raise self._faults.refused()

    def _token(self, challenge: Mapping[str, str], login: Login | None) -> str:
        """Fetch a token from where the registry says.

        Raises:
            RegistryRefusedError: There is none for these credentials.
            RegistryAnswerError: That place has no TLS, or gives something else.
            RegistryUnreachableError: It cannot answer now.
        """
        realm = self.joined(self._base, challenge.get("realm", ""))
        scheme, host, _ = self._origin_of(realm)
        if scheme != "https" and host != self._origin[1]:
            raise RegistryAnswerError(f"{self.host} sends credentials elsewhere without TLS")
        asked = {key: challenge[key] for key in ("service", "scope") if key in challenge}
        headers = {"Accept": "application/json", "User-Agent": USER_AGENT}
        if login is not None and login.token:
            method, url = "POST", realm
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            form = asked | {"grant_type": "refresh_token", "client_id": "edgefleet"}
            body = urlencode(form | {"refresh_token": login.token}).encode()
        else:
            method, body = "GET", b""
            url = f"{realm}{'&' if '?' in realm else '?'}{urlencode(asked)}"
            if login is not None:
                headers["Authorization"] = login.basic
        response = self._pool.request(
            method, url, headers=headers, body=body or None,
            preload_content=False, decode_content=False, redirect=False,
        )  # fmt: skip
        try:
            content = response.read(MAX_ANSWER_BYTES + 1)
        finally:
            response.close()
        if response.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            raise self._faults.refused()
        if response.status != HTTPStatus.OK:
            raise RegistryUnreachableError(
                f"the server of tokens of {self.host} answers {response.status}",
                remedy="try again later",
            )
        try:
            told = from_json(content, _Token, limit_bytes=MAX_ANSWER_BYTES)
        except WireFormatError:
            raise RegistryAnswerError(f"the server of tokens of {self.host} gives none") from None
        token = told.token or told.access_token
        if not token or not token.isascii() or not token.isprintable():
            raise RegistryAnswerError(f"the server of tokens of {self.host} gives none")
        return token

    def _credentials(self) -> Login | None:
        if self._known is None:
            self._known = (self._login(),)
        return self._known[0]

    @staticmethod
    def _origin_of(url: str) -> Origin:
        parts = parse_url(url)
        default = 443 if parts.scheme == "https" else 80
        return parts.scheme or "", parts.host or "", parts.port or default


def _small_parts(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Cut what is sent: the time limit of a socket is for each part as a whole."""
    for part in parts:
        for start in range(0, len(part), SEND_BYTES):
            yield part[start : start + SEND_BYTES]


def _end(response: urllib3.BaseHTTPResponse) -> None:
    """Read the rest of an answer, so that its connection can be used again; not if it is long."""
    response.read(MAX_ANSWER_BYTES)
    response.close()


def _trusting(ca_file: Path | None) -> ssl.SSLContext:
    """Return a context that checks certificates by the system's authorities and perhaps one more.

    The server of tokens, or the store that a registry leads to, often has another authority.

    Raises:
        RegistryError: The file cannot be read or holds no certificate.
    """
    context = ssl.create_default_context()
    try:
        if ca_file is not None:
            open_file(ca_file).close()  # OpenSSL would wait for the other end of a named pipe
            context.load_verify_locations(cafile=str(ca_file))
    except OSError as exc:
        is_content = isinstance(exc, ssl.SSLError)
        reason = "it holds no certificate" if is_content else str(exc.strerror or exc).lower()
        raise RegistryError(
            f"cannot use the CA file {ca_file}: {reason}",
            remedy="name the PEM file of the authority with --registry-ca-file FILE",
        ) from exc
    return context
