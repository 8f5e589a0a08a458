"""An HTTP/1.1 request: a strictly read head and a body, each within a time limit.

`head_of_request` parses lines and reads no socket. `Incoming` reads the socket.

Rules:
- Input that two readers could understand differently is refused: a bare CR or LF, a NUL, a folded
  line, a space before the colon, two lengths, a length beside a transfer coding, two hosts.
- The client announces the length of its body, or sends it in chunks; other codings are refused.
  Who does neither sends no body.
- A slow client cannot hold a thread: the deadline is for a whole part, not for each byte.
- The reader holds at most one line, or one read, beyond what its caller has asked for.

Source:
    RFC 9110 (semantics) and RFC 9112 (HTTP/1.1), where sections 2.2, 3.2, 5 and 6.3 say what a
    server has to refuse, 6.3 that a request without length and transfer coding has no body, and
    7.1 what chunks are.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from agent.timed_socket import TimedStream
from wire.clock import Clock

MAX_LINE_BYTES: Final = 8 * 1024
MAX_FIELDS: Final = 100
END: Final = b"\r\n"
HEAD_END: Final = END + END
READ_BYTES: Final = 1024 * 1024
LINE_READ_BYTES: Final = 64 * 1024
LATE_BODY: Final = "the body did not arrive within {:g} s"
BROKE_OFF: Final = "the request ended before it was complete"

_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
_REQUEST_LINE: Final = re.compile(
    rb"(" + _TOKEN + rb"{1,40}) ([\x21-\x7e]+) HTTP/([0-9])\.([0-9])\r\n"
)
_FIELD: Final = re.compile(rb"(" + _TOKEN + rb"+):([\t\x20-\x7e\x80-\xff]*)\r\n")
_ABSOLUTE: Final = re.compile(r"https?://[^/?#]+", re.IGNORECASE)
_DIGITS: Final = re.compile(r"[0-9]{1,15}")
_CHUNK_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,8})(?:[\t ]*;[\t\x20-\x7e\x80-\xff]*)?\r\n")
_ONCE: Final = frozenset({"content-length", "host", "transfer-encoding"})


class RefusedRequestError(Exception):
    """A server refuses a request and closes its connection. This error never leaves the server.

    Args:
        status: HTTP status.
        message: What is wrong, in one line.
        headers: Further headers of the answer.
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = dict(headers or {})


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """A request without its body. Several requests may share one."""

    method: str
    target: str
    """Path and query; the scheme and host of an absolute target are removed."""

    headers: Mapping[str, str]
    """Names in lower case; fields of one name are joined with commas."""

    length: int | None
    """Length of the body, in bytes; None if it comes in chunks."""

    keeps_alive: bool
    """Whether the client may send another request after this one."""

    waits: bool
    """Whether the client sends the body only when it is told to (`Expect: 100-continue`)."""


class Incoming:
    """The receiving side of a connection.

    Args:
        stream: The connection.
        clock: For deadlines.
    """

    def __init__(self, stream: TimedStream, clock: Clock) -> None:
        self._stream = stream
        self._clock = clock
        self._ahead = b""
        """The bytes received last; those from `_at` on have not been asked for yet."""

        self._at = 0
        self._last: tuple[bytes, Head] | None = None
        """The last head that came whole in one read, as it came and as it was read."""

    def waits_for_request(self, timeout_s: float) -> bool:
        """Wait for the first bytes of a request.

        Args:
            timeout_s: How long.

        Returns:
            Whether some bytes came.

        Raises:
            OSError: The client went away, or (TimeoutError) was silent.
        """
        if self._at == len(self._ahead):
            self._ahead, self._at = self._stream.receive(LINE_READ_BYTES, timeout_s), 0
        return bool(self._ahead)

    def request(self, timeout_s: float, max_body_bytes: int) -> Head:
        """Read the head of a request; clients often send the same one again.

        Args:
            timeout_s: How long that may take.
            max_body_bytes: Longest body that is accepted, always the same for one connection.

        Returns:
            The head.

        Raises:
            RefusedRequestError: It is malformed, ambiguous, too long or too late.
            OSError: The client went away.
        """
        begin, block = self._at, self._ahead
        end = block.find(HEAD_END, begin) + len(HEAD_END)
        raw = block[begin:end]
        if self._last is not None and self._last[0] == raw:
            self._at = end
            return self._last[1]
        head = head_of_request(self.head(timeout_s), max_body_bytes)
        if self._ahead is block and self._at == end:
            self._last = raw, head
        return head

    def head(self, timeout_s: float) -> Iterator[bytes]:
        """Read a request line and the fields after it.

        Args:
            timeout_s: How long that may take.

        Yields:
            Each line as soon as it has come, with its ending.

        Raises:
            RefusedRequestError: They are too long, too many, too late, not lines, or incomplete.
            OSError: The client went away.
        """
        deadline_s = self._clock.monotonic_s() + timeout_s
        try:
            first = self._line(deadline_s, 414)
            if first == END:  # some clients send one after a body
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
                408, f"the header did not arrive within {timeout_s:g} s"
            ) from None

    def body(self, length: int, timeout_s: float, take: Callable[[int], None]) -> memoryview:
        """Read a body.

        Args:
            length: The length that the client announced.
            timeout_s: How long that may take.
            take: Called with a number of bytes that are kept from now on; may refuse the request.

        Returns:
            The body.

        Raises:
            RefusedRequestError: The body is late or incomplete.
            OSError: The client went away.
        """
        deadline_s = self._clock.monotonic_s() + timeout_s
        body = bytearray()
        try:
            self._fill(body, length, deadline_s, take)
        except TimeoutError:
            raise RefusedRequestError(408, LATE_BODY.format(timeout_s)) from None
        return memoryview(body)

    def chunked_body(
        self, limit_bytes: int, timeout_s: float, take: Callable[[int], None]
    ) -> memoryview:
        """Read a body that comes in chunks; extensions and trailers are dropped.

        Args:
            limit_bytes: Longest body that is accepted.
            timeout_s: How long that may take.
            take: Called with a number of bytes that are kept from now on; may refuse the request.

        Returns:
            The body.

        Raises:
            RefusedRequestError: The body is malformed, too long, late or incomplete.
            OSError: The client went away.
        """
        deadline_s = self._clock.monotonic_s() + timeout_s
        body = bytearray()
        try:
            while size := self._chunk_size(deadline_s):
                if len(body) + size > limit_bytes:
                    raise RefusedRequestError(413, f"the body is over {limit_bytes} bytes")
                self._fill(body, len(body) + size, deadline_s, take)
                if self._line(deadline_s, 400) != END:
                    raise RefusedRequestError(400, "a chunk is longer than it says")
            for _ in range(MAX_FIELDS + 1):
                line = self._line(deadline_s, 431)
                if line == END:
                    return memoryview(body)
                if _FIELD.fullmatch(line) is None:
                    raise RefusedRequestError(400, "a trailer field is malformed")
            raise RefusedRequestError(431, f"more than {MAX_FIELDS} trailer fields")
        except TimeoutError:
            raise RefusedRequestError(408, LATE_BODY.format(timeout_s)) from None

    def ignore(self, for_s: float) -> None:
        """Read and drop what comes, until the client stops or the time is over.

        Args:
            for_s: For how long.
        """
        deadline_s = self._clock.monotonic_s() + for_s
        with contextlib.suppress(OSError, RefusedRequestError):
            while True:
                self._receive(LINE_READ_BYTES, deadline_s)

    def _chunk_size(self, deadline_s: float) -> int:
        match = _CHUNK_SIZE.fullmatch(self._line(deadline_s, 400))
        if match is None:
            raise RefusedRequestError(400, "the size of a chunk is malformed")
        return int(match[1], 16)

    def _fill(
        self, body: bytearray, length: int, deadline_s: float, take: Callable[[int], None]
    ) -> None:
        """Append to a body what comes, until it has a length."""
        ahead = self._ahead[self._at : self._at + length - len(body)]
        self._at += len(ahead)
        take(len(ahead))
        body += ahead
        while len(body) < length:
            block = self._receive(min(length - len(body), READ_BYTES), deadline_s)
            take(len(block))
            body += block

    def _line(self, deadline_s: float, too_long: int) -> bytes:
        """Return the next line with its ending.

        Raises:
            RefusedRequestError: It is too long (with the status `too_long`), incomplete, or does
                not end with CR LF.
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
        block = self._stream.receive(count, left_s)
        if not block:
            raise RefusedRequestError(400, BROKE_OFF)
        return block


def head_of_request(lines: Iterator[bytes], max_body_bytes: int) -> Head:
    """Parse the head of a request.

    Args:
        lines: The request line and the fields, with their line endings; a line is read only after
            the lines before it have been checked.
        max_body_bytes: Longest body that is accepted.

    Returns:
        The head.

    Raises:
        RefusedRequestError: It is malformed, ambiguous, or announces what is not accepted.
    """
    match = _REQUEST_LINE.fullmatch(next(lines, b""))
    if match is None:
        raise RefusedRequestError(400, "the request line is malformed")
    if match[3] != b"1":
        raise RefusedRequestError(400, "only HTTP/1.1 is supported")
    method, target = match[1].decode(), match[2].decode()
    is_1_0 = match[4] == b"0"
    headers = _headers(lines)
    if not is_1_0 and "host" not in headers:
        raise RefusedRequestError(400, "the Host header is missing")
    connection = {option.strip() for option in headers.get("connection", "").lower().split(",")}
    return Head(
        method=method,
        target=_ABSOLUTE.sub("", target, count=1) or "/" if target[0] != "/" else target,
        headers=headers,
        length=_body_length(headers, max_body_bytes, is_1_0=is_1_0),
        keeps_alive="close" not in connection and (not is_1_0 or "keep-alive" in connection),
        waits=not is_1_0 and _expects(headers),
    )


def _headers(fields: Iterable[bytes]) -> dict[str, str]:
    """Collect the fields.

    Raises:
        RefusedRequestError: A field is malformed, or occurs twice though it must occur once.
    """
    headers: dict[str, str] = {}
    for line in fields:
        match = _FIELD.fullmatch(line)
        if match is None:
            raise RefusedRequestError(400, "a header field is malformed")
        name, value = match[1].decode().lower(), match[2].strip(b" \t").decode("latin-1")
        if name in headers and name in _ONCE:
            raise RefusedRequestError(400, f"{name} occurs twice")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _body_length(headers: Mapping[str, str], max_body_bytes: int, *, is_1_0: bool) -> int | None:
    """Return the length of the body that the client announces; None if it comes in chunks.

    Raises:
        RefusedRequestError: The announcement is malformed or too long.
    """
    text = headers.get("content-length")
    if "transfer-encoding" in headers:
        if text is not None or is_1_0:
            raise RefusedRequestError(400, "Transfer-Encoding makes the length ambiguous")
        if headers["transfer-encoding"].lower() != "chunked":
            raise RefusedRequestError(411, "Transfer-Encoding supports only chunked")
        return None
    if text is None:
        return 0
    if _DIGITS.fullmatch(text) is None:
        raise RefusedRequestError(400, "Content-Length is not a single number")
    if int(text) > max_body_bytes:
        raise RefusedRequestError(413, f"the body is over {max_body_bytes} bytes")
    return int(text)


def _expects(headers: Mapping[str, str]) -> bool:
    """Tell whether the client waits before it sends its body.

    Raises:
        RefusedRequestError: It expects something else.
    """
    expected = headers.get("expect")
    if expected is not None and expected.lower() != "100-continue":
        raise RefusedRequestError(417, "Expect supports only 100-continue")
    return expected is not None
