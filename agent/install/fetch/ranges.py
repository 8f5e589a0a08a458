"""Reads ranges of bytes from HTTP servers over one connection that is kept open.

Rules:
- A server is not trusted: what it sends is bounded by what was asked for, no redirect is followed,
  and no proxy of the environment is asked.
- A server that sends nothing for some time, next to nothing for longer, or headers without end is
  given up.
- All that comes is counted as it comes, headers too, and the install may end at each read.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import re
import socket
import ssl
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import SplitResult

from agent.install.fetch.sources import AbsentError, LaterError, RefusedLinkError, SourceError
from wire.clock import Clock

TIMEOUT_S: Final = 20.0
"""Without a byte for so long, the server is given up."""

PATIENCE_S: Final = 60.0
LEAST_BYTES_PER_S: Final = 4096
"""Slower than this for so long, it is given up too: on such links messages do better."""

READ_BYTES: Final = 256 * 1024
OK, PARTIAL = 200, 206
REFUSED: Final = frozenset({401, 403, 410})
ABSENT, UNAVAILABLE = 404, 503
RETRY_AFTER: Final = re.compile(r"[0-9]{1,3}")
"""Seconds; a date, which HTTP allows too, would need a clock that is right."""

CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,16})-(\d{1,16})/(?:\d{1,16}|\*)")


class _Counted(io.RawIOBase):
    """What comes on a connection."""

    def __init__(self, raw: io.RawIOBase, look: Callable[[int], None]) -> None:
        self._raw = raw
        self._look = look

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:  # noqa: ANN401 - any buffer
        size_bytes = self._raw.readinto(buffer) or 0
        self._look(size_bytes)
        return size_bytes

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Socket:
    """A socket as `http.client` uses it, whose every read is looked at."""

    def __init__(self, sock: socket.socket, look: Callable[[int], None]) -> None:
        self._sock = sock
        self._look = look
        self.sendall = sock.sendall
        self.close = sock.close

    def makefile(self, _mode: str) -> io.BufferedReader:
        raw = self._sock.makefile("rb", buffering=0)
        return io.BufferedReader(_Counted(raw, self._look))


class Ranges:
    """One connection to one server at a time.

    Args:
        ca_files: Authorities of certificates, beside those of the system.
        clock: For servers that send too slowly.
        came: Called with the size of what has come, useful or not.
        connect_s: How long a server may take to accept a connection.
    """

    def __init__(
        self,
        ca_files: Sequence[Path],
        clock: Clock,
        came: Callable[[int], None],
        *,
        connect_s: float,
    ) -> None:
        self._ca_files = tuple(ca_files)
        self._connect_s = connect_s
        self._clock = clock
        self._came = came
        self._connection: http.client.HTTPConnection | None = None
        self._sock: socket.socket | None = None
        self._origin = ("", "", 0)
        self._check: Callable[[], None] = lambda: None
        self._head_until_s = float("inf")
        """Until when the head of an answer must have come."""

    def read(
        self,
        place: SplitResult,
        start: int,
        end: int,
        whole_bytes: int,
        sizes_bytes: Sequence[int],
        check: Callable[[], None],
    ) -> Generator[bytes]:
        """Ask for a range, and yield it in blocks.

        Args:
            place: Where it is.
            start: The first byte.
            end: The byte after the last.
            whole_bytes: Size of the whole file.
            sizes_bytes: Sizes of the blocks; together they are the range.
            check: Called often; raises to end the reading.

        Yields:
            The blocks; their content is not checked.

        Raises:
            RefusedLinkError: The server refuses the link.
            AbsentError: It has no such blob.
            LaterError: It asks to try again a little later.
            SourceError: It does not give the range.
        """
        self._check = check
        try:
            check()
            # An answer that ends its connection keeps the socket open until it is closed itself.
            with contextlib.closing(self._ask(place, start, end)) as answer:
                self._check_answer(answer, place.netloc, start, end, whole_bytes)
                for size_bytes in sizes_bytes:
                    yield self._block(answer, size_bytes, place.netloc)
                if answer.length == 0:
                    answer.read(0)  # ends the answer, so that the connection can be used again
                else:
                    self.close()
        except (OSError, ValueError, http.client.HTTPException) as exc:
            self.close()
            check()  # a stop wakes the read
            raise SourceError(f"{place.netloc} cannot be read: {_why(exc)}") from exc
        except BaseException:
            self.close()
            raise

    def wake(self) -> None:
        """Let a read that waits end at once; for any thread."""
        if (sock := self._sock) is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _ask(self, place: SplitResult, start: int, end: int) -> http.client.HTTPResponse:
        kept = self._connection is not None
        try:
            return self._answer(place, start, end)
        except (OSError, http.client.HTTPException):
            self.close()
            self._check()
            if not kept:
                raise
        return self._answer(place, start, end)  # the server had closed the connection

    def _answer(self, place: SplitResult, start: int, end: int) -> http.client.HTTPResponse:
        target = f"{place.path or '/'}{f'?{place.query}' if place.query else ''}"
        headers = {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
        self._head_until_s = self._clock.monotonic_s() + TIMEOUT_S
        try:
            connection = self._connected(place)
            connection.request("GET", target, headers=headers)
            return connection.getresponse()
        finally:
            self._head_until_s = float("inf")

    def _look(self, size_bytes: int) -> None:
        """Count what came, and end a reading that takes too long or is not wanted any more.

        Raises:
            SourceError: The head of an answer does not end.
        """
        self._came(size_bytes)
        self._check()
        if self._clock.monotonic_s() > self._head_until_s:
            raise SourceError(f"{self._origin[1]} does not come to the end of its headers")

    def _check_answer(
        self, answer: http.client.HTTPResponse, host: str, start: int, end: int, whole_bytes: int
    ) -> None:
        """Check that an answer has the bytes that were asked for.

        Raises:
            RefusedLinkError: It refuses the link.
            AbsentError: It says that there is no such blob.
            LaterError: It asks to try again later.
            SourceError: It has other bytes, or none.
        """
        if answer.getheader("Transfer-Encoding") is not None:
            raise SourceError(f"{host} does not say how long its answer is")
        if answer.status in REFUSED:
            raise RefusedLinkError(f"{host} refuses the link ({answer.status})")
        if answer.status == OK and (start, end) == (0, whole_bytes):
            return  # a server without ranges gives the whole
        if answer.status == ABSENT:
            raise AbsentError(f"{host} answers with status {ABSENT}")
        later = RETRY_AFTER.fullmatch(answer.getheader("Retry-After", ""))
        if answer.status == UNAVAILABLE and later:
            raise LaterError(f"{host} answers with status {UNAVAILABLE}", retry_s=float(later[0]))
        if answer.status != PARTIAL:
            raise SourceError(f"{host} answers with status {answer.status}")
        found = CONTENT_RANGE.fullmatch(answer.getheader("Content-Range", ""))
        if not found or (int(found[1]), int(found[2])) != (start, end - 1):
            raise SourceError(f"{host} answers with other bytes than were asked for")

    def _block(self, answer: http.client.HTTPResponse, size_bytes: int, host: str) -> bytes:
        """Read one block.

        Raises:
            SourceError: The answer ends before, or trickles.
        """
        data = bytearray()
        began_s = self._clock.monotonic_s()
        while len(data) < size_bytes:
            read = answer.read1(min(size_bytes - len(data), READ_BYTES))
            data += read
            if not read:
                raise SourceError(f"{host} ended its answer too early")
            took_s = self._clock.monotonic_s() - began_s
            if took_s > PATIENCE_S and len(data) < took_s * LEAST_BYTES_PER_S:
                raise SourceError(f"{host} sends too slowly")
        return bytes(data)

    def _connected(self, place: SplitResult) -> http.client.HTTPConnection:
        host = place.hostname or ""
        origin = (place.scheme, host, place.port or 0)
        if self._connection is not None and origin == self._origin:
            return self._connection
        self.close()
        if place.scheme == "https":
            context = ssl.create_default_context()
            for file in self._ca_files:
                context.load_verify_locations(file)
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, place.port, timeout=self._connect_s, context=context
            )
        else:
            connection = http.client.HTTPConnection(host, place.port, timeout=self._connect_s)
        connection.connect()
        self._sock = connection.sock
        self._sock.settimeout(TIMEOUT_S)
        connection.sock = cast("socket.socket", _Socket(self._sock, self._look))
        self._connection, self._origin = connection, origin
        return connection

    def close(self) -> None:
        """Close the connection; the next range opens another."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._sock = None


def _why(exc: Exception) -> str:
    if isinstance(exc, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {exc.verify_message}"
    if isinstance(exc, TimeoutError):
        return f"nothing came for {TIMEOUT_S:g} s"
    if isinstance(exc, OSError):
        return (exc.strerror or str(exc) or type(exc).__name__).lower()
    return f"it does not speak HTTP ({type(exc).__name__})"
