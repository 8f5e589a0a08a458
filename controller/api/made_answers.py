"""An answer that is made while it is sent, a part at a time.

Rules:
- So many of a kind are made at one time (`Running`); one more is refused, and the client told to
  come again.
- The next part is made, on a thread, when the client has taken the last one.
- A client that takes a block too slowly loses its connection. When a client is gone, nothing more
  is made; what makes the parts is closed and its place is free at once, whatever the garbage
  collector does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Final

from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from controller.api.places import end_connection
from controller.errors import BusyError

BLOCK_BYTES: Final = 256 * 1024
BLOCK_S: Final = 60.0
"""In which a client has to take a block: 4 KB/s."""


class Running:
    """Counts what is being made at one time. Only the event loop touches it.

    Args:
        most: How many there may be.
        what: What they are, for the refusal: "exports".
    """

    def __init__(self, most: int, what: str) -> None:
        self._most = most
        self._what = what
        self.count = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count one more.

        Raises:
            BusyError: There are as many as there may be.
        """
        if self.count >= self._most:
            raise BusyError(
                f"{self.count} {self._what} are being made, as many as there may be at one time",
                remedy="try again when one of them has ended",
            )
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1


class MadeAnswer(StreamingResponse):
    """An answer whose parts are made one after another.

    Args:
        parts: Makes them; closed when no more are wanted.
        running: Counts it; None if there may be any number.
        media_type: What the answer is.
        headers: What else its header has.
        block_s: In which a client has to take a block.
    """

    def __init__(
        self,
        parts: Generator[bytes],
        running: Running | None = None,
        *,
        media_type: str,
        headers: Mapping[str, str] | None = None,
        block_s: float = BLOCK_S,
    ) -> None:
        super().__init__((), headers=headers, media_type=media_type)
        self._parts = parts
        self._running = running
        self._block_s = block_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        try:
            with nullcontext() if self._running is None else self._running.one():
                await self._send_all(scope, receive, send)
        finally:
            with suppress(ValueError):  # a thread is in it, because the server stops
                self._parts.close()

    async def _send_all(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({
            "type": "http.response.start", "status": self.status_code, "headers": self.raw_headers,
        })  # fmt: skip
        gone = asyncio.ensure_future(until_gone(receive))
        try:
            while (part := await run_in_threadpool(next, self._parts, None)) is not None:
                for at in range(0, len(part), BLOCK_BYTES):
                    block = part[at : at + BLOCK_BYTES]
                    async with asyncio.timeout(self._block_s):
                        await send({"type": "http.response.body", "body": block, "more_body": True})
                    await asyncio.sleep(0)  # what is sent at once leaves others no turn
                    if gone.done():
                        return
            await send({"type": "http.response.body"})
        except TimeoutError:
            end_connection(scope)
            await gone
        finally:
            gone.cancel()


async def until_gone(receive: Receive) -> None:
    """Wait until the client has gone, or its answer has been sent.

    Args:
        receive: What the client sends.
    """
    while (await receive())["type"] != "http.disconnect":
        pass
