"""The head of an HTTP/1.1 request: its first line and its fields, in the strict reading.

Rules:
- What two readers could take for different requests is refused: a bare CR or LF, a NUL, a folded
  line, a space before the colon, two lengths, a length beside a transfer coding, two hosts.
- A body's length is announced; chunked bodies are refused (411).
- Nothing here reads a socket.

Source:
    RFC 9110 (semantics) and RFC 9112 (HTTP/1.1), where sections 2.2, 3.2, 5 and 6.3 say what a
    server has to refuse, and 6.3 that a missing length may be answered with 411.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

MAX_LINE_BYTES: Final = 8 * 1024
MAX_FIELDS: Final = 100
END: Final = b"\r\n"

_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
_REQUEST_LINE: Final = re.compile(
    rb"(" + _TOKEN + rb"{1,40}) ([\x21-\x7e]+) HTTP/([0-9])\.([0-9])\r\n"
)
_FIELD: Final = re.compile(rb"(" + _TOKEN + rb"+):([\t\x20-\x7e\x80-\xff]*)\r\n")
_ABSOLUTE: Final = re.compile(r"https?://[^/?#]+", re.IGNORECASE)
_DIGITS: Final = re.compile(r"[0-9]{1,15}")
_ONCE: Final = frozenset({"content-length", "host", "transfer-encoding"})
_WITH_BODY: Final = ("POST", "PUT", "PATCH")


class RefusedRequestError(Exception):
    """A request ends here, and its connection with it. Never leaves this package.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A request, less its body."""

    method: str
    target: str
    """Path and query; an absolute target has lost its scheme and host."""

    headers: dict[str, str]
    """Names in lower case; fields of one name are joined with commas."""

    length: int
    """Of the body, in bytes."""

    keeps_alive: bool
    """Whether the client may send another request after this one."""

    waits: bool
    """Whether the client sends the body only when it is told to (`Expect: 100-continue`)."""


def head_of_request(lines: Iterator[bytes], max_body_bytes: int) -> Head:
    """Understand the head of a request.

    Args:
        lines: The request line and the fields, with their line endings; a line is asked for when
            those before it are right.
        max_body_bytes: Longest body that is taken.

    Returns:
        The head.

    Raises:
        RefusedRequestError: It is malformed, ambiguous, or announces what is not taken.
    """
    match = _REQUEST_LINE.fullmatch(next(lines, b""))
    if match is None:
        raise RefusedRequestError(400, "a malformed request line")
    if match[3] != b"1":
        raise RefusedRequestError(400, "HTTP/1.1 is spoken here")
    method, target = match[1].decode(), match[2].decode()
    is_1_0 = match[4] == b"0"
    headers = _headers(lines)
    if not is_1_0 and "host" not in headers:
        raise RefusedRequestError(400, "Host is missing")
    connection = {option.strip() for option in headers.get("connection", "").lower().split(",")}
    return Head(
        method=method,
        target=_ABSOLUTE.sub("", target, count=1) or "/" if target[0] != "/" else target,
        headers=headers,
        length=_body_length(method, headers, max_body_bytes, is_1_0=is_1_0),
        keeps_alive="close" not in connection and (not is_1_0 or "keep-alive" in connection),
        waits=not is_1_0 and _expects(headers),
    )


def _headers(fields: Iterable[bytes]) -> dict[str, str]:
    """Collect the fields.

    Raises:
        RefusedRequestError: One is malformed, or stands twice where that is ambiguous.
    """
    headers: dict[str, str] = {}
    for line in fields:
        match = _FIELD.fullmatch(line)
        if match is None:
            raise RefusedRequestError(400, "a malformed header field")
        name, value = match[1].decode().lower(), match[2].strip(b" \t").decode("latin-1")
        if name in headers and name in _ONCE:
            raise RefusedRequestError(400, f"{name} occurs twice")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _body_length(
    method: str, headers: Mapping[str, str], max_body_bytes: int, *, is_1_0: bool
) -> int:
    """Return the length of the body as announced.

    Raises:
        RefusedRequestError: It is not announced as it must be, or is too long.
    """
    text = headers.get("content-length")
    if "transfer-encoding" in headers:
        if text is not None or is_1_0:
            raise RefusedRequestError(400, "Transfer-Encoding makes the length ambiguous")
        raise RefusedRequestError(411, "chunked bodies are not taken: announce the length")
    if text is None:
        if method in _WITH_BODY:
            raise RefusedRequestError(411, "Content-Length is missing")
        return 0
    if _DIGITS.fullmatch(text) is None:
        raise RefusedRequestError(400, "Content-Length is not one number")
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
        raise RefusedRequestError(417, "nothing but 100-continue can be expected")
    return expected is not None
