"""The download listener: gives blobs to devices by links, and checks links for other servers.

```
GET /blobs/{sha256}?{link}    the blob, or the part that `Range` names
GET /check/{sha256}?{link}    204 if the link is valid: nginx asks this (docs/downloads.md)
```

Rules:
- A path counts only as it is written here: nothing in it is decoded or leads anywhere else.
- The link is checked before anything else is looked at; so nobody without one learns which blobs
  there are.
- A file is read in blocks, and the next one when the client has taken the last. A client that takes
  a block too slowly loses its connection, and so does one whose link expires meanwhile.
- A device gets so many blobs at the same time, whatever the addresses that it comes from, and fewer
  where others have none (`controller.api.download_places`). So no device keeps others out.
- What the disk has to be asked for is read on a thread, so that others do not wait for it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import BinaryIO, Final

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from controller.api import faults as api_faults
from controller.api.download_places import DownloadPlaces
from controller.api.made_answers import until_gone
from controller.api.places import client_of, end_connection, keep_place
from controller.api.protocol import ConnectionLimits
from controller.delivery.links import AGAIN, Link, Links
from controller.errors import InvalidRequestError, UnknownError
from controller.schemas import Fault
from wire.byte_ranges import Part, RangeNotSatisfiableError, wanted_part
from wire.clock import Clock
from wire.errors import FleetError

BLOCK_BYTES: Final = 256 * 1024
BLOCK_S: Final = 120.0
"""In which a client has to take a block: 2 KB/s. The slowest links of devices have 16."""

NOT_IN_MEMORY: Final = frozenset({errno.EAGAIN, errno.EOPNOTSUPP, errno.ENOSYS})
"""How `preadv2` says that the file system would have to wait, or cannot tell."""

_PATH: Final = re.compile(rb"/(blobs|check)/([0-9a-f]{64})")
_log = logging.getLogger(__name__)


class _Transfer:
    """A blob that a device gets."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope


class Downloads:
    """The ASGI application.

    Args:
        open_blob: Opens a blob, or raises a fault.
        links: Checks links.
        clock: Wall time.
        limits: What the server lets clients hold.
        block_s: In which a client has to take a block.
    """

    def __init__(
        self,
        open_blob: Callable[[str], BinaryIO],
        links: Links,
        clock: Clock,
        *,
        limits: ConnectionLimits | None = None,
        block_s: float = BLOCK_S,
    ) -> None:
        self._open_blob = open_blob
        self._links = links
        self._clock = clock
        self._block_s = block_s
        limits = limits or ConnectionLimits()
        self._places = DownloadPlaces[_Transfer](limits.total, limits.per_client)
        """Only the event loop touches it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            await self._answer(scope, receive, send)
        except FleetError as exc:
            await api_faults.answer(exc)(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request.

        Raises:
            FleetError: It has no answer.
            UnknownError: There is nothing at its address.
        """
        if scope["method"] not in {"GET", "HEAD"}:
            await _refusal(405, "the method is not GET or HEAD", Allow="GET, HEAD")(
                scope, receive, send
            )
            return
        found = _PATH.fullmatch(scope["raw_path"])
        if found is None:
            raise UnknownError("there is nothing at this address", remedy=AGAIN)
        sha256 = found[2].decode()
        link = self._links.check(sha256, scope["query_string"], self._clock.now_s())
        if found[1] == b"check":
            keep_place(scope)
            await Response(status_code=204)(scope, receive, send)
            return
        _check_no_body(scope)
        with self._counted(link.device, scope):
            keep_place(scope)
            file = await asyncio.to_thread(self._open_blob, sha256)
            try:
                await self._give(file, sha256, link, scope, receive, send)
            finally:
                file.close()

    @contextmanager
    def _counted(self, device: str, scope: Scope) -> Iterator[None]:
        """Count what a device gets; if that leaves no room, end what another gets.

        Raises:
            BusyError: It gets as much as it may already.
        """
        transfer = _Transfer(scope)
        client = scope.get("client")
        loser = self._places.begin(transfer, device, client_of(client[0] if client else ""))
        if loser is not None:
            end_connection(loser.scope)
        try:
            yield
        finally:
            self._places.end(transfer)

    async def _give(
        self, file: BinaryIO, sha256: str, link: Link, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Send a file, or what is asked for of it."""
        size_bytes = os.fstat(file.fileno()).st_size
        etag = f'"{sha256}"'
        is_get = scope["method"] == "GET"  # a Range says nothing in a HEAD
        ranges = [value for name, value in scope["headers"] if is_get and name == b"range"]
        if_range = dict(scope["headers"]).get(b"if-range")
        try:
            part = wanted_part(ranges, if_range, size_bytes=size_bytes, etag=etag.encode())
        except RangeNotSatisfiableError:
            message = f"not one range of the {size_bytes} bytes of this blob"
            headers = {"Content-Range": f"bytes */{size_bytes}", "ETag": etag}
            await _refusal(416, message, **headers)(scope, receive, send)
            return
        first, end = part or Part(0, size_bytes)
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(end - first),
            "Accept-Ranges": "bytes",
            "ETag": etag,
        }
        if part is not None:
            headers["Content-Range"] = f"bytes {first}-{end - 1}/{size_bytes}"
        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        status = 200 if part is None else 206
        await send({"type": "http.response.start", "status": status, "headers": raw})
        if is_get:
            part = Part(first, end)
            await self._send_part(file.fileno(), part, link, scope, receive, send)
        else:
            await send({"type": "http.response.body"})

    async def _send_part(
        self, descriptor: int, part: Part, link: Link, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Send bytes of a file as a body; if that fails, end the connection."""
        gone = asyncio.ensure_future(until_gone(receive))
        offset, end = part
        try:
            while offset < end and not gone.done():
                if self._clock.now_s() >= link.until_s:
                    end_connection(scope)  # the device goes on from here with a new link
                    await gone
                    break
                block = await _block(descriptor, offset, min(BLOCK_BYTES, end - offset))
                offset += len(block)
                async with asyncio.timeout(self._block_s):
                    await send({"type": "http.response.body", "body": block, "more_body": True})
                await asyncio.sleep(0)  # what is sent at once leaves others no turn, nor the end
            await send({"type": "http.response.body"})
        except TimeoutError:
            end_connection(scope)
            await gone
        except OSError as exc:
            _log.warning("a blob cannot be read to its end: %s", exc.strerror)
            end_connection(scope)
            await gone
        finally:
            gone.cancel()


async def _block(descriptor: int, offset: int, length: int) -> bytes:
    """Read a part of a file; not more than is asked for, and at least one byte.

    Raises:
        OSError: It cannot be read, or has become shorter.
    """
    try:
        buffer = bytearray(length)
        count = os.preadv(descriptor, [buffer], offset, os.RWF_NOWAIT)
        block = bytes(memoryview(buffer)[:count])
    except OSError as exc:
        if exc.errno not in NOT_IN_MEMORY:
            raise
        block = await asyncio.to_thread(os.pread, descriptor, length, offset)
    if not block:
        raise OSError(errno.ENODATA, "it became shorter while it was read")
    return block


def _check_no_body(scope: Scope) -> None:
    """Refuse a request that has a body: somebody would have to read it.

    Raises:
        InvalidRequestError: It has one.
    """
    headers = dict(scope["headers"])
    if b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0":
        raise InvalidRequestError("a request for a blob has no body")


def _refusal(status: int, message: str, **headers: str) -> Response:
    fault = Fault(code="controller.http", message=message)
    return JSONResponse(asdict(fault), status_code=status, headers=headers)
