"""What a client sends, part by part, each within a time.

Rules:
- No client can hold a thread by sending slowly: every part has a deadline, not every byte.
- No more is kept than one line, or one read, ahead of what was asked for.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Final

from agent.serve.http.head import END, MAX_FIELDS, MAX_LINE_BYTES, RefusedRequestError
from wire.clock import Clock

READ_BYTES: Final = 1024 * 1024
LINE_READ_BYTES: Final = 64 * 1024
BROKE_OFF: Final = "the request broke off"


class Incoming:
    """The receiving side of a connection.

    Args:
        connection: Where it comes from.
        clock: For deadlines.
    """

    def __init__(self, connection: socket.socket, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self._ahead = b""
        """What was received last; from `_at` on it was not asked for yet."""

        self._at = 0

    def waits_for_request(self, timeout_s: float) -> bool:
        """Wait for the first bytes of a request.

        Args:
            timeout_s: How long.

        Returns:
            Whether some came.

        Raises:
            OSError: The client went away, or (TimeoutError) was silent.
        """
        if self._at == len(self._ahead):
            self._connection.settimeout(timeout_s)
            self._ahead, self._at = self._connection.recv(LINE_READ_BYTES), 0
        return bool(self._ahead)

    def head(self, timeout_s: float) -> Iterator[bytes]:
        """Read a request line and the fields after it.

        Args:
            timeout_s: How long that may take.

        Yields:
            Each line as soon as it came, with its ending.

        Raises:
            RefusedRequestError: They are too long, too many, too late, not lines, or break off.
            OSError: The client went away.
        """
        deadline_s = self._clock.monotonic_s() + timeout_s
        try:
            first = self._line(deadline_s, 414)
            if first == END:  # some clients end a body with one
                first = self._line(deadline_s, 414)
            yield first
            for _ in range(MAX_FIELDS + 1):
                line = self._line(deadline_s, 431)
                if line == END:
                    return
                yield line
            raise RefusedRequestError(431, f"more than {MAX_FIELDS} header fields")
        except TimeoutError:
            raise RefusedRequestError(
                408, f"the header did not come within {timeout_s:g} s"
            ) from None

    def body(self, length: int, timeout_s: float, take: Callable[[int], None]) -> memoryview:
        """Read a body.

        Args:
            length: As announced.
            timeout_s: How long that may take.
            take: Called with a number of bytes that are kept from now on; may refuse the request.

        Returns:
            The body.

        Raises:
            RefusedRequestError: It comes too late or breaks off.
            OSError: The client went away.
        """
        deadline_s = self._clock.monotonic_s() + timeout_s
        body = bytearray(self._ahead[self._at : self._at + length])
        self._at += len(body)
        take(len(body))
        try:
            while len(body) < length:
                block = self._receive(min(length - len(body), READ_BYTES), deadline_s)
                take(len(block))
                body += block
        except TimeoutError:
            raise RefusedRequestError(
                408, f"the body did not come within {timeout_s:g} s"
            ) from None
        return memoryview(body)

    def ignore(self, for_s: float) -> None:
        """Read on and forget it, until the client stops or the time is over.

        Args:
            for_s: The time.
        """
        deadline_s = self._clock.monotonic_s() + for_s
        with contextlib.suppress(OSError, RefusedRequestError):
            while True:
                self._receive(LINE_READ_BYTES, deadline_s)

    def _line(self, deadline_s: float, too_long: int) -> bytes:
        """Return the next line with its ending.

        Raises:
            RefusedRequestError: It is too long (with this status), breaks off, or does not end as
                lines do.
            TimeoutError: It did not come in time.
        """
        while (end := self._ahead.find(b"\n", self._at, self._at + MAX_LINE_BYTES)) < 0:
            if len(self._ahead) - self._at >= MAX_LINE_BYTES:
                raise RefusedRequestError(too_long, f"a line is over {MAX_LINE_BYTES} bytes")
            block = self._receive(LINE_READ_BYTES, deadline_s)
            self._ahead, self._at = self._ahead[self._at :] + block, 0
        line, self._at = self._ahead[self._at : end + 1], end + 1
        if not line.endswith(END):
            raise RefusedRequestError(400, "a line does not end with CR LF")
        return line

    def _receive(self, count: int, deadline_s: float) -> bytes:
        left_s = deadline_s - self._clock.monotonic_s()
        if left_s <= 0:
            raise TimeoutError
        self._connection.settimeout(left_s)
        block = self._connection.recv(count)
        if not block:
            raise RefusedRequestError(400, BROKE_OFF)
        return block
