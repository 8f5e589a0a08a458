"""The head of an HTTP/1.1 answer, strictly read; pure.

Rules:
- What two readers could understand differently is refused: a bare CR or LF, a NUL, a folded line, a
  space before the colon, a field of those below that occurs twice.
- Only the fields that a range needs are kept; all others are dropped unread.
- The caller bounds the size, so nothing here takes more than linear time.

Source:
    RFC 9112 (HTTP/1.1), sections 2.2, 4 and 5; RFC 9110, sections 8.6, 10.2.3, 14.4 and 15.2.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

END: Final = b"\r\n\r\n"
MAX_FIELDS: Final = 64
INFORMATIONAL: Final = range(100, 200)
KEPT: Final = frozenset(
    {b"connection", b"content-length", b"content-range", b"retry-after", b"transfer-encoding"}
)

_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,256}"
_TEXT: Final = rb"[\t\x20-\x7e\x80-\xff]*"
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: " + _TEXT + rb")?")
_FIELD: Final = re.compile(rb"(" + _TOKEN + rb"):(" + _TEXT + rb")")
_LENGTH: Final = re.compile(rb"[0-9]{1,16}")
_RANGE: Final = re.compile(rb"bytes ([0-9]{1,16})-([0-9]{1,16})/(?:[0-9]{1,16}|\*)")
_SECONDS: Final = re.compile(rb"[0-9]{1,3}")
"""A date, which HTTP allows too, would need a clock that is right."""


class AnswerError(Exception):
    """A head is none. This error never leaves what reads ranges."""


class AnswerHead(msgspec.Struct, frozen=True, kw_only=True):
    """What the head of an answer says."""

    status: int
    length: int | None
    """Bytes of the body; None if it ends with the connection."""

    span: tuple[int, int] | None
    """The first and the last byte that come, if the answer says so."""

    retry_s: float | None
    """When to ask again, in seconds."""

    is_coded: bool
    """Whether a transfer coding hides how long the body is."""

    keeps_alive: bool
    """Whether the connection stays open after the body."""


def answer_head(head: bytes) -> AnswerHead:
    """Parse the head of an answer.

    Args:
        head: All lines with their endings, and the empty one.

    Returns:
        What it says.

    Raises:
        AnswerError: It is malformed or ambiguous.
    """
    first, *lines = head.removesuffix(END).split(b"\r\n")
    status_line = _STATUS_LINE.fullmatch(first)
    if status_line is None:
        raise AnswerError("it does not speak HTTP/1.1")
    if len(lines) > MAX_FIELDS:
        raise AnswerError(f"more than {MAX_FIELDS} header fields")
    fields: dict[bytes, bytes] = {}
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise AnswerError("a header field is malformed")
        name = field[1].lower()
        if name in KEPT:
            if name in fields:
                raise AnswerError(f"{name.decode()} occurs twice")
            fields[name] = field[2].strip(b" \t")
    length = fields.get(b"content-length")
    if length is not None and _LENGTH.fullmatch(length) is None:
        raise AnswerError("content-length is not a number")
    span = _RANGE.fullmatch(fields.get(b"content-range", b""))
    retry = _SECONDS.fullmatch(fields.get(b"retry-after", b""))
    options = {each.strip() for each in fields.get(b"connection", b"").lower().split(b",")}
    return AnswerHead(
        status=int(status_line[2]),
        length=int(length) if length is not None else None,
        span=(int(span[1]), int(span[2])) if span else None,
        retry_s=float(retry[0]) if retry else None,
        is_coded=b"transfer-encoding" in fields,
        keeps_alive=status_line[1] == b"1" and b"close" not in options,
    )
