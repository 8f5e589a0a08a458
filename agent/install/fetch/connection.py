"""One connection to an HTTP server, whose every read is counted, bounded and looked at.

Rules:
- Nothing here connects a second time by itself: who asks again makes another connection.
- The head of an answer has a size and a deadline, whatever comes before it or how it is cut.
- Any thread may end what waits here.
"""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult

import msgspec

from agent.install.fetch.answer import (
    END,
    INFORMATIONAL,
    AnswerError,
    AnswerHead,
    answer_head,
)
from wire.clock import Clock

PORTS: Final = {"http": 80, "https": 443}
_TARGET: Final = re.compile(r"/[\x21-\x7e]*")
_HOST: Final = re.compile(r"[\x21-\x7e]+")


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What one server may cost. The defaults are for servers far away."""

    connect_s: float = 10.0
    """How long it may take to accept a connection, by each of its addresses."""

    head_s: float = 20.0
    """How long the head of an answer may take."""

    head_bytes: int = 16 * 1024
    """How long it may be, with all that comes before it."""

    silent_s: float = 20.0
    """Without a byte for so long, it is given up."""

    window_s: float = 60.0
    least_bytes_per_s: float = 4096.0
    """Slower than this for so long, it is left too, if there is another source."""


class GoneError(ConnectionError):
    """The server ended a connection before the first byte of an answer."""

    def __init__(self) -> None:
        super().__init__("it ended the connection at once")


class Connection:
    """A connection that is open.

    Args:
        place: Where the server is.
        ca_files: Authorities of certificates, beside those of the system.
        bounds: What the server may cost.
        clock: For the deadline of a head.
        look: Called at each read, with the size of what has come and how long it took in seconds;
            raises to end the reading.
        made: Takes what `wake` may end, before anything waits for the server's bytes.

    Raises:
        OSError: There is no connection, or the certificate is not trusted.
        ValueError: The host is none.
    """

    def __init__(
        self,
        place: SplitResult,
        *,
        ca_files: Sequence[Path],
        bounds: Bounds,
        clock: Clock,
        look: Callable[[int, float], None],
        made: Callable[[socket.socket], None],
    ) -> None:
        self._bounds = bounds
        self._clock = clock
        self._look = look
        self._came = bytearray(bounds.head_bytes)
        self._at, self._end = 0, 0
        """What has come with a head and was not asked for yet."""

        self._left_s = 0.0
        """For the head."""

        host = place.hostname or ""
        sock = socket.create_connection((host, place.port or PORTS[place.scheme]), bounds.connect_s)
        try:
            if place.scheme == "https":
                sock = _secured(sock, host, ca_files)
            self._sock = sock
            made(sock)
            look(0, 0.0)  # a stop that came before had nothing to end
            if isinstance(sock, ssl.SSLSocket):
                sock.do_handshake()
        except BaseException:
            sock.close()
            raise

    def ask(self, place: SplitResult, start: int, end: int) -> AnswerHead:
        """Ask for a range, and read the head of the answer.

        Args:
            place: Where it is.
            start: The first byte.
            end: The byte after the last.

        Returns:
            The head; the body is to be read.

        Raises:
            GoneError: The server has ended the connection.
            AnswerError: It answers with no head, or with one that does not end.
            OSError: It does not answer.
            ValueError: The link cannot be sent.
        """
        self._at = self._end = 0
        self._left_s = self._bounds.head_s
        try:
            self._sock.settimeout(self._left_s)
            self._sock.sendall(_request(place, start, end))
            self._fill()
        except (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError) as exc:
            raise GoneError from exc
        while True:
            head = answer_head(self._head())
            if head.status not in INFORMATIONAL:
                self._sock.settimeout(self._bounds.silent_s)
                return head

    def read_into(self, buffer: memoryview) -> int:
        """Read some bytes of a body.

        Args:
            buffer: Where to; not empty.

        Returns:
            How many; 0 if the server ended the connection.

        Raises:
            OSError: The connection is broken, or (TimeoutError) silent.
        """
        if self._at < self._end:
            size_bytes = min(len(buffer), self._end - self._at)
            buffer[:size_bytes] = self._came[self._at : self._at + size_bytes]
            self._at += size_bytes
            return size_bytes
        return self._receive(buffer)

    @property
    def has_more(self) -> bool:
        """Whether more came than was asked for."""
        return self._at < self._end

    def close(self) -> None:
        """Close it."""
        self._sock.close()

    def _head(self) -> bytes:
        """Return the next head.

        Raises:
            AnswerError: It is too long, or does not end.
        """
        while (found := self._came.find(END, self._at, self._end)) < 0:
            if self._end == len(self._came):
                raise AnswerError(f"its headers are over {self._end} bytes")
            self._fill()
        head = bytes(self._came[self._at : found + len(END)])
        self._at = found + len(END)
        return head

    def _fill(self) -> None:
        """Read more of a head.

        Raises:
            AnswerError: It does not come to its end.
            GoneError: Nothing of it came.
        """
        if self._left_s <= 0:
            raise AnswerError("it does not come to the end of its headers")
        self._sock.settimeout(min(self._left_s, self._bounds.silent_s))
        with memoryview(self._came) as view:
            size_bytes = self._receive(view[self._end :])
        if not size_bytes:
            if self._end:
                raise AnswerError("it ended its answer within the headers")
            raise GoneError
        self._end += size_bytes

    def _receive(self, buffer: memoryview) -> int:
        began_s = self._clock.monotonic_s()
        size_bytes = self._sock.recv_into(buffer)
        waited_s = self._clock.monotonic_s() - began_s
        self._left_s -= waited_s  # and not what `look` takes: it may do other work meanwhile
        self._look(size_bytes, waited_s)
        return size_bytes


def wake(sock: socket.socket) -> None:
    """Let what waits for a socket end at once; for any thread."""
    with contextlib.suppress(OSError):  # of TLS, the reading thread may need what is above it
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _secured(sock: socket.socket, host: str, ca_files: Sequence[Path]) -> ssl.SSLSocket:
    context = ssl.create_default_context()
    for file in ca_files:
        context.load_verify_locations(file)
    return context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)


def _request(place: SplitResult, start: int, end: int) -> bytes:
    """Return a request.

    Raises:
        ValueError: The link would be another request.
    """
    target = f"{place.path or '/'}{f'?{place.query}' if place.query else ''}"
    host = place.hostname or ""
    host = f"[{host}]" if ":" in host else host
    if place.port not in {None, PORTS[place.scheme]}:
        host = f"{host}:{place.port}"
    if not _TARGET.fullmatch(target) or not _HOST.fullmatch(host):
        raise ValueError("the link cannot be sent")
    lines = (
        f"GET {target} HTTP/1.1",
        f"Host: {host}",
        f"Range: bytes={start}-{end - 1}",
        "Accept-Encoding: identity",
        "",
        "",
    )
    return "\r\n".join(lines).encode("ascii")
