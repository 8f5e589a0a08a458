"""Reads ranges of bytes from HTTP servers over one connection that is kept open.

Rules:
- A server is not trusted: what it sends is bounded by what was asked for, no redirect is followed,
  and no proxy of the environment is asked.
- A server that sends nothing for some time, or a head that is long, is given up. One that sends
  next to nothing for longer is too, if there is another.
- All that comes is counted as it comes, headers too, and the install may end at each read.
- Whatever goes wrong here is a fault of that server: it ends no install.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult

from agent.install.fetch.answer import AnswerError, AnswerHead
from agent.install.fetch.connection import Bounds, Connection, GoneError, wake
from agent.install.fetch.rate import Rate
from agent.install.fetch.slowness import Slow
from agent.install.fetch.sources import (
    AbsentError,
    BusyError,
    EndedError,
    LaterError,
    RefusedLinkError,
    SlowError,
    SourceError,
)
from wire.clock import Clock
from wire.errors import FleetError

if TYPE_CHECKING:
    import socket

OK, PARTIAL = 200, 206
REFUSED: Final = frozenset({401, 403, 410})
ABSENT, UNAVAILABLE = 404, 503
AGAIN_S: Final = 3.0
"""When to ask a server again that ended a new connection at once: it may have too many."""


class Ranges:
    """One connection to one server at a time.

    Args:
        ca_files: Authorities of certificates, beside those of the system.
        clock: For servers that send too slowly.
        came: Called with the size of what has come, useful or not.
        bounds: What a server may cost.
    """

    def __init__(
        self,
        ca_files: Sequence[Path],
        clock: Clock,
        came: Callable[[int], None],
        bounds: Bounds,
    ) -> None:
        self._ca_files = tuple(ca_files)
        self._bounds = bounds
        self._clock = clock
        self._came = came
        self._connection: Connection | None = None
        self._sock: socket.socket | None = None
        self._origin = ("", "", 0)
        self._host = ""
        self._rate = Rate(bounds.window_s, bounds.least_bytes_per_s)
        """Of that origin, over all its connections."""

        self._check: Callable[[], None] = lambda: None
        self._too_slow: Callable[[Slow], bool] = lambda _slow: True

    def read(
        self,
        place: SplitResult,
        start: int,
        end: int,
        whole_bytes: int,
        sizes_bytes: Sequence[int],
        check: Callable[[], None],
        too_slow: Callable[[Slow], bool] = lambda _slow: True,
    ) -> Generator[memoryview]:
        """Ask for a range, and yield it in blocks.

        Args:
            place: Where it is.
            start: The first byte.
            end: The byte after the last.
            whole_bytes: Size of the whole file.
            sizes_bytes: Sizes of the blocks; together they are the range.
            check: Called often; raises to end the reading.
            too_slow: Called when the server is too slow; returns whether it is to be left.

        Yields:
            The blocks; their content is not checked. Each is good until the next one is asked for.

        Raises:
            RefusedLinkError: The server refuses the link.
            AbsentError: It has no such blob.
            BusyError: It ended a new connection at once.
            LaterError: It asks to try again a little later.
            EndedError: It ended its answer too early.
            SlowError: It is too slow.
            SourceError: It does not give the range.
            FleetError: The check raised it.
        """
        self._check, self._too_slow = check, too_slow
        host = self._host = place.netloc
        try:
            check()
            head = self._ask(place, start, end)
            _check_answer(head, host, start, end, whole_bytes)
            buffer = memoryview(bytearray(max(sizes_bytes, default=0)))
            for size_bytes in sizes_bytes:
                block = buffer[:size_bytes]
                self._fill(block)
                yield block
            is_over = self._connection is not None and not self._connection.has_more
            if not (is_over and head.length == end - start and head.keeps_alive):
                self.close()
        except FleetError:
            self.close()
            raise
        except Exception as exc:
            self.close()
            check()  # a stop wakes the read
            if isinstance(exc, GoneError):
                raise BusyError(f"{host} ended the connection at once", retry_s=AGAIN_S) from exc
            raise SourceError(f"{host} cannot be read: {_why(exc)}") from exc
        except BaseException:
            self.close()
            raise

    def wake(self) -> None:
        """Let a read that waits end at once; for any thread."""
        if (sock := self._sock) is not None:
            wake(sock)

    def close(self) -> None:
        """Close the connection; the next range opens another."""
        connection, self._connection, self._sock = self._connection, None, None
        if connection is not None:
            connection.close()

    def _ask(self, place: SplitResult, start: int, end: int) -> AnswerHead:
        origin = (place.scheme, place.hostname or "", place.port or 0)
        if origin != self._origin:
            self.close()
            self._origin = origin
            self._rate = Rate(self._bounds.window_s, self._bounds.least_bytes_per_s)
        if self._connection is not None:
            try:
                return self._connection.ask(place, start, end)
            except GoneError:  # it had closed what was kept
                self.close()
                self._check()
        self._connection = Connection(
            place,
            ca_files=self._ca_files,
            bounds=self._bounds,
            clock=self._clock,
            look=self._look,
            made=self._made,
        )
        return self._connection.ask(place, start, end)

    def _made(self, sock: socket.socket) -> None:
        self._sock = sock

    def _look(self, size_bytes: int, waited_s: float) -> None:
        """Count what came, and end a reading that takes too long or is not wanted any more.

        Raises:
            SlowError: The server has been too slow for too long, and is to be left.
        """
        self._came(size_bytes)
        self._check()
        if self._rate.add(waited_s, size_bytes):
            return
        least_bytes_per_s = self._bounds.least_bytes_per_s
        slow = Slow(
            who=self._host,
            bytes_per_s=self._rate.bytes_per_s,
            least_bytes_per_s=least_bytes_per_s,
        )
        self._rate = Rate(self._bounds.window_s, least_bytes_per_s)
        if self._too_slow(slow):
            raise SlowError(slow)

    def _fill(self, block: memoryview) -> None:
        """Read one block.

        Raises:
            EndedError: The answer ends before.
            SourceError: It trickles.
        """
        connection, at = self._connection, 0
        while connection is not None and at < len(block):
            try:
                size_bytes = connection.read_into(block[at:])
            except ConnectionError:
                size_bytes = 0
            if not size_bytes:
                self._check()  # a stop wakes the read
                raise EndedError(f"{self._host} ended its answer too early")
            at += size_bytes


def _check_answer(head: AnswerHead, host: str, start: int, end: int, whole_bytes: int) -> None:
    """Check that an answer has the bytes that were asked for.

    Raises:
        RefusedLinkError: It refuses the link.
        AbsentError: It says that there is no such blob.
        LaterError: It asks to try again later.
        SourceError: It has other bytes, or none.
    """
    if head.is_coded:
        raise SourceError(f"{host} does not say how long its answer is")
    if head.status in REFUSED:
        raise RefusedLinkError(f"{host} refuses the link ({head.status})")
    if head.status == ABSENT:
        raise AbsentError(f"{host} answers with status {ABSENT}")
    if head.status == UNAVAILABLE and head.retry_s is not None:
        raise LaterError(f"{host} answers with status {UNAVAILABLE}", retry_s=head.retry_s)
    is_whole = head.status == OK and (start, end) == (0, whole_bytes)  # it knows no ranges
    if head.status != PARTIAL and not is_whole:
        raise SourceError(f"{host} answers with status {head.status}")
    if not is_whole and head.span != (start, end - 1):
        raise SourceError(f"{host} answers with other bytes than were asked for")
    if head.length is not None and head.length < end - start:
        raise SourceError(f"{host} answers with fewer bytes than were asked for")


def _why(exc: Exception) -> str:
    if isinstance(exc, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {exc.verify_message}"
    if isinstance(exc, TimeoutError):
        return "nothing came in time"
    if isinstance(exc, AnswerError):
        return str(exc)
    if isinstance(exc, OSError):
        return (exc.strerror or str(exc) or type(exc).__name__).lower()
    return f"its answer cannot be understood ({type(exc).__name__})"
