"""A TCP link to the broker that is slow and that can be cut.

Rules:
- It listens on loopback and forwards to one port on loopback; it reads no byte of what it forwards.
- Each connection has the rate in each direction. A cut closes every connection at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Self

PIECE_BYTES = 16 * 1024


class SlowLink:
    """A link.

    Args:
        target_port: Where it leads to, on 127.0.0.1.
        bytes_per_s: Its rate in each direction.
    """

    def __init__(self, target_port: int, bytes_per_s: float) -> None:
        self._target_port = target_port
        self._bytes_per_s = bytes_per_s
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None
        self.port = 0

    def start(self) -> Self:
        """Begin to listen."""
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop
        ).result()
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def cut(self) -> None:
        """Break every connection, as a modem does that loses its network."""
        self._loop.call_soon_threadsafe(self._abort)

    def stop(self) -> None:
        """Break every connection and listen no more."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        if self._server is not None:
            self._server.close()
        self._abort()
        # Each connection that is broken ends its own task.
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})

    def _abort(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:  # the broker is down, as it often is here
            writer.transport.abort()
            return
        ends = (writer, back)
        self._open.update(ends)
        try:
            await asyncio.wait(
                [
                    asyncio.create_task(self._pump(reader, back)),
                    asyncio.create_task(self._pump(there, writer)),
                ],
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            for end in ends:
                end.transport.abort()
                self._open.discard(end)
                with contextlib.suppress(OSError):
                    await end.wait_closed()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(PIECE_BYTES):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(len(piece) / self._bytes_per_s)
