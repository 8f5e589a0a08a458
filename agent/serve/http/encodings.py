"""The HTTP content codings gzip and deflate, for requests and answers.

Rules:
- However small a request's body is, it never grows beyond a bound: each block is counted before the
  next one is decompressed.
- An answer is compressed only if the client names exactly one coding. Libraries list all codings
  that they know by default, and between processes of one device compressing costs more time than it
  saves.

Source:
    RFC 9110, section 8.4 (`deflate` is the zlib format); RFC 1950 and RFC 1952.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from agent.serve.frames import Reply
from agent.serve.http.request import RefusedRequestError

BLOCK_BYTES: Final = 256 * 1024
FAST: Final = 1
"""Compression level: a client on the same machine waits for it."""

_WINDOW_BITS: Final = {"gzip": 31, "x-gzip": 31, "deflate": 15}
"""The values for zlib: 31 is gzip's frame, 15 zlib's own."""


def expanded(
    body: memoryview, coding: str, *, limit_bytes: int, take: Callable[[int], None]
) -> memoryview:
    """Decompress the body of a request.

    Args:
        body: As received.
        coding: Value of `Content-Encoding`.
        limit_bytes: Longest decompressed body that is accepted.
        take: Called with a number of bytes before they are kept; may refuse the request.

    Returns:
        The content; the body itself if it is not compressed.

    Raises:
        RefusedRequestError: Its coding is unknown (415), it is malformed (400) or too long (413).
    """
    coding = coding.strip().lower()
    if coding == "identity" or not body:
        return body
    if coding not in _WINDOW_BITS:
        raise RefusedRequestError(
            415,
            "only the content codings gzip and deflate are supported",
            {"Accept-Encoding": "gzip, deflate"},
        )
    content = bytearray()
    for block in _blocks(body, coding):
        if len(content) + len(block) > limit_bytes:
            raise RefusedRequestError(413, f"the decompressed body is over {limit_bytes} bytes")
        take(len(block))
        content += block
    return memoryview(content)


def coding_asked(accept_encoding: str) -> str:
    """Return the coding that a client wants its answer in.

    Args:
        accept_encoding: The header's value; empty where there is none.

    Returns:
        `gzip` or `deflate` when it is the only one named, else `identity`.
    """
    coding = accept_encoding.strip().lower()
    return coding if coding in {"gzip", "deflate"} else "identity"


def compressed(reply: Reply, coding: str) -> Reply:
    """Compress an answer.

    Args:
        reply: The answer.
        coding: The result of `coding_asked`.

    Returns:
        The answer in that coding, or the unchanged answer if compressing makes it no shorter.
    """
    if coding == "identity":
        return reply
    stream = zlib.compressobj(FAST, wbits=_WINDOW_BITS[coding])
    content = stream.compress(reply.body) + stream.flush()
    if len(content) >= len(reply.body):
        return reply
    return msgspec.structs.replace(
        reply, headers=reply.headers | {"Content-Encoding": coding}, body=memoryview(content)
    )


def _blocks(body: memoryview, coding: str) -> Iterator[bytes]:
    """Decompress block by block.

    Raises:
        RefusedRequestError: It is malformed.
    """
    stream = zlib.decompressobj(wbits=_WINDOW_BITS[coding])
    after = RefusedRequestError(400, f"there are bytes after the end of the {coding} body")
    try:
        for start in range(0, len(body), BLOCK_BYTES):
            if stream.eof:
                raise after
            left: memoryview | bytes = body[start : start + BLOCK_BYTES]
            while left:
                yield stream.decompress(left, BLOCK_BYTES)
                left = stream.unconsumed_tail
        while not stream.eof:
            block = stream.decompress(b"", BLOCK_BYTES)
            if not block:
                raise RefusedRequestError(400, f"the {coding} body is incomplete")
            yield block
    except zlib.error as exc:
        raise RefusedRequestError(400, f"the body is not valid {coding}") from exc
    if stream.unused_data:
        raise after
