"""Posts to a server, each within a time, over a connection that may be kept.

Rules:
- Nothing that the server does takes longer than the time of the post, however slowly it answers:
  the limit of a socket begins anew with each byte, so the connection is cut.
- Nor does the way to it: its addresses are tried within that time, and a look-up of its name that
  has not ended by then is left to itself. One at a time is under way for each name.
- An answer whose head is cut off is none. Of its body so many bytes are read, and those of a
  success alone. One that is longer, or that does not end in time, still tells by its status what
  came of the post.
- No redirect is followed, and no proxy of the environment is used.
"""

from __future__ import annotations

import io
import socket
import ssl
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from wire.clock import SystemClock

MAX_ANSWER_BYTES: Final = 64 * 1024
_CUT_OFF: Final = (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""What is raised when a server has gone before it has read all of a post."""

_CLOCK: Final = SystemClock()
_Address = tuple[int, int, Any]
"""Family, protocol and address."""


class Answer(NamedTuple):
    """What a server answered."""

    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes | None
    """None if it was not read to its end."""


class _Lines:
    """Lines of a connection, of which the last is remembered."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream
        self.last = b""

    def readline(self, limit: int = -1) -> bytes:
        self.last = self._stream.readline(limit)
        return self.last

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


class _WholeHead(HTTPResponse):
    """An answer whose head has come to its end, which `http.client` does not ask for.

    Answers that only inform come before it (RFC 9110, 15.2); `http.client` knows 100 alone.
    """

    def begin(self) -> None:
        lines = _Lines(self.fp)
        self.fp = lines  # type: ignore[assignment]  # it has what is used of a stream
        is_answer = False
        while not is_answer:
            super().begin()
            if lines.last not in {b"\r\n", b"\n"}:
                raise HTTPException("the head of the answer is cut off")
            is_answer = self.status // 100 != 1 or self.status == HTTPStatus.SWITCHING_PROTOCOLS
            if not is_answer:
                self.headers = None  # type: ignore[assignment]  # as before it began


class _LookUps:
    """Look-ups of names, each in a thread: nothing can end one, but nobody has to wait for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: dict[tuple[str, int], Future[list[_Address]]] = {}

    def addresses(self, host: str, port: int, timeout_s: float) -> list[_Address]:
        """Return the addresses of a host.

        Raises:
            TimeoutError: They are not known in time.
            OSError: It has none.
            UnicodeError: It is no name.
        """
        with self._lock:
            found = self._under_way.get((host, port))
            if found is None:
                found = self._under_way[host, port] = Future()
                threading.Thread(
                    target=self._look, args=(host, port, found), name="look-up", daemon=True
                ).start()
        return found.result(timeout_s)

    def _look(self, host: str, port: int, found: Future[list[_Address]]) -> None:
        try:
            found.set_result(
                [
                    (family, protocol, address)
                    for family, _, protocol, _, address in socket.getaddrinfo(
                        host, port, type=socket.SOCK_STREAM
                    )
                ]
            )
        except (OSError, UnicodeError) as exc:
            found.set_exception(exc)
        finally:
            with self._lock:
                del self._under_way[host, port]


_LOOK_UPS: Final = _LookUps()


class Poster:
    """Posts to one server; one post at a time."""

    def __init__(self) -> None:
        self._posting = threading.Lock()
        self._connection: HTTPConnection | None = None
        self._socket: socket.socket | None = None
        """That of the connection; it lets go of it while the last answer is being read."""

        self._is_closed = False

    def post(
        self,
        url: str,
        headers: Mapping[str, str],
        content: bytes,
        timeout_s: float,
        tls: ssl.SSLContext | None,
        *,
        answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> Answer:
        """Post a body.

        Args:
            url: Where to; always of one server.
            headers: Of the request.
            content: The body.
            timeout_s: From the connection to the end of the answer.
            tls: What certificates are trusted; None for no TLS.
            answer_bytes: How much of a body is read; 0 for none, which ends the connection.

        Returns:
            The answer.

        Raises:
            TimeoutError: There was none in time.
            OSError: There is no connection.
            HTTPException: The answer is not HTTP.
        """
        try:
            with self._posting:
                return self._post(url, headers, content, timeout_s, tls, answer_bytes)
        finally:
            self._leave_if_closed()

    def close(self) -> None:
        """End what is on its way; may be called in another thread, and returns at once."""
        self._is_closed = True
        self._cut()
        self._leave_if_closed()

    def _post(
        self,
        url: str,
        headers: Mapping[str, str],
        content: bytes,
        timeout_s: float,
        tls: ssl.SSLContext | None,
        answer_bytes: int,
    ) -> Answer:
        is_over = threading.Event()

        def cut() -> None:
            is_over.set()
            self._cut()

        timer = threading.Timer(timeout_s, cut)
        timer.daemon = True
        timer.start()
        response = None
        is_kept = False
        try:
            connection = self._connection or self._connected(url, tls, timeout_s, is_over)
            connection.sock.settimeout(timeout_s)
            with suppress(*_CUT_OFF):  # it may have answered by then
                connection.request("POST", _target(url), content, dict(headers))
            response = connection.getresponse()
            if is_over.is_set():  # a header that is cut off looks like a whole one
                raise TimeoutError
            body = _body(response, answer_bytes)
            is_kept = body is not None and connection.sock is not None and not is_over.is_set()
        except (OSError, HTTPException) as exc:
            if is_over.is_set():
                raise TimeoutError from exc
            raise
        finally:
            timer.cancel()
            if response is not None:
                response.close()
            if not is_kept:
                self._drop()
        return Answer(response.status, response.reason, dict(response.getheaders()), body)

    def _connected(
        self, url: str, tls: ssl.SSLContext | None, timeout_s: float, is_over: threading.Event
    ) -> HTTPConnection:
        """Open a connection, so that it can be cut from its first byte on.

        Raises:
            TimeoutError: The time is over, or this is closed.
            OSError: There is no connection.
        """
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        connection = (
            HTTPConnection(host, port) if tls is None else HTTPSConnection(host, port, context=tls)
        )
        sock = _opened(host, connection.port, timeout_s)
        sock.settimeout(timeout_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is None:
            self._socket = sock
        else:
            self._socket = tls.wrap_socket(
                sock, server_hostname=host, do_handshake_on_connect=False
            )
        connection.response_class = _WholeHead
        connection.sock = self._socket
        self._connection = connection
        if is_over.is_set() or self._is_closed:  # it could not be cut before
            raise TimeoutError
        if isinstance(self._socket, ssl.SSLSocket):
            self._socket.do_handshake()
        return connection

    def _cut(self) -> None:
        if (sock := self._socket) is not None:
            with suppress(OSError):
                # Not the method of TLS, which another thread may be using.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def _leave_if_closed(self) -> None:
        """Close the connection unless a post has it, which will."""
        if self._is_closed and self._posting.acquire(blocking=False):
            try:
                self._drop()
            finally:
                self._posting.release()

    def _drop(self) -> None:
        connection, self._connection, self._socket = self._connection, None, None
        if connection is not None:
            with suppress(OSError):
                connection.close()


def _opened(host: str, port: int, timeout_s: float) -> socket.socket:
    """Open a connection to the first address that takes one; each has its share of the time.

    Raises:
        TimeoutError: The time is over.
        OSError: There is no connection.
    """
    end_s = _CLOCK.monotonic_s() + timeout_s
    found = _LOOK_UPS.addresses(host, port, timeout_s)
    fault: OSError = TimeoutError()
    for at, (family, protocol, address) in enumerate(found):
        left_s = end_s - _CLOCK.monotonic_s()
        if left_s <= 0:
            raise TimeoutError
        sock = socket.socket(family, socket.SOCK_STREAM, protocol)
        try:
            sock.settimeout(left_s / (len(found) - at))
            sock.connect(address)
        except OSError as exc:
            sock.close()
            fault = exc
        else:
            return sock
    raise fault


def _target(url: str) -> str:
    parts = urlsplit(url)
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _body(response: HTTPResponse, limit: int) -> bytes | None:
    """Return the body of a success; None if it is too long or does not end."""
    if not limit or response.status // 100 != HTTPStatus.OK // 100:
        return None
    try:
        body = response.read(limit + 1)
    except (OSError, HTTPException):
        return None
    is_whole = len(body) <= limit and not response.length
    return body if is_whole else None
