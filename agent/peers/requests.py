"""What another device asks for, and how it is answered: the little of HTTP/1.1 that this needs.

Rules:
- A path counts only as it is written here: nothing in it is decoded or leads anywhere else.
- After a refusal the connection ends. Each is one line of JSON, as from the controller's listener.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from http import HTTPStatus
from typing import Final, NamedTuple

from agent.errors import PeersError
from agent.serve.http.request import Head, Incoming, RefusedRequestError, head_of_request
from wire.byte_ranges import Part, RangeNotSatisfiableError, wanted_part
from wire.errors import FleetError

RETRY_AFTER: Final = {"Retry-After": "1"}
"""A blob that is coming, or a place that is taken: who asks again soon loses no time, and a request
costs this device no more than the check of a signature."""

_TARGET: Final = re.compile(r"/blobs/([0-9a-f]{64})(?:\?(.*))?")


class Asked(NamedTuple):
    """A blob, and the link by which it is asked for."""

    sha256: str
    query: str


def read_head(incoming: Incoming, timeout_s: float, limit_bytes: int) -> Head:
    """Read and check the head of a request.

    Args:
        incoming: The connection.
        timeout_s: How long it may take.
        limit_bytes: How long it may be.

    Returns:
        The head.

    Raises:
        RefusedRequestError: It is malformed, late or too long, or announces a body.
        OSError: The client went away.
    """

    def bounded() -> Iterator[bytes]:
        size_bytes = 0
        for line in incoming.head(timeout_s):
            size_bytes += len(line)
            if size_bytes > limit_bytes:
                raise RefusedRequestError(431, f"the header is over {limit_bytes} bytes")
            yield line

    return head_of_request(bounded(), 0)


def asked_for(head: Head) -> Asked:
    """Return what a request asks for.

    Raises:
        RefusedRequestError: It is no GET, has a body, or there is no such address.
    """
    if head.method != "GET":
        raise RefusedRequestError(405, "the method is not GET", {"Allow": "GET"})
    if head.length != 0 or head.waits:
        raise RefusedRequestError(413, "a request for a blob has no body")
    found = _TARGET.fullmatch(head.target)
    if found is None:
        raise RefusedRequestError(404, "there is nothing at this address")
    return Asked(found[1], found[2] or "")


def part_of(head: Head, sha256: str, size_bytes: int) -> tuple[bytes, Part]:
    """Return the head of the answer, and the part of a blob that comes after it.

    Args:
        head: The request.
        sha256: The blob.
        size_bytes: Its size.

    Returns:
        Both.

    Raises:
        RefusedRequestError: It asks for no part of it, or for several.
    """
    etag = f'"{sha256}"'
    asked, condition = head.headers.get("range"), head.headers.get("if-range")
    ranges = [asked.encode("latin-1")] if asked is not None else []
    if_range = condition.encode("latin-1") if condition is not None else None
    try:
        part = wanted_part(ranges, if_range, size_bytes=size_bytes, etag=etag.encode())
    except RangeNotSatisfiableError:
        message = f"not one range of the {size_bytes} bytes of this blob"
        headers = {"Content-Range": f"bytes */{size_bytes}", "ETag": etag}
        raise RefusedRequestError(416, message, headers) from None
    wanted = part or Part(0, size_bytes)
    fields = {
        "Content-Type": "application/octet-stream",
        "Content-Length": str(wanted.end - wanted.first),
        "Accept-Ranges": "bytes",
        "ETag": etag,
        "Connection": "keep-alive" if head.keeps_alive else "close",
    }
    if part is None:
        return _written(HTTPStatus.OK, fields), wanted
    fields["Content-Range"] = f"bytes {part.first}-{part.end - 1}/{size_bytes}"
    return _written(HTTPStatus.PARTIAL_CONTENT, fields), wanted


def refused(refusal: RefusedRequestError, *, bodiless: bool = False) -> bytes:
    """Return the answer that a refused client gets.

    Args:
        refusal: Why. If a fault caused it, the answer has the fault's code and remedy.
        bodiless: Whether the request was a HEAD.
    """
    cause = refusal.__cause__
    fault = cause if isinstance(cause, FleetError) else PeersError(refusal.message)
    content = {"code": fault.code, "message": fault.message, "remedy": fault.remedy}
    body = json.dumps(content).encode() + b"\n"
    fields = {
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
    }
    head = _written(HTTPStatus(refusal.status), fields | refusal.headers)
    return head if bodiless else head + body


def _written(status: HTTPStatus, fields: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status.value} {status.phrase}"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", errors="replace")
