"""The way to the agent's own endpoint: HTTP/1.1 over its private Unix socket.

Rules:
- Connections are kept and used again; their number is bounded, and others wait.
- A kept connection that the endpoint has closed meanwhile is replaced: a request goes out again
  only if no byte of an answer has come. Inference has no side effects.
- Who gives a request up, such as a client that cancels, closes its connection.
- Raw tensors are sent from where they are, and an answer is read into the memory that it stays in.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from agent.grpc_endpoint.statuses import RefusedCallError

KEPT: Final = 8
"""Connections that stay open while nobody asks."""

HEAD_BYTES: Final = 64 * 1024
JOINED_BYTES: Final = 64 * 1024
"""Up to this size head and body are joined: a copy is cheaper than a second system call."""

_END: Final = b"\r\n\r\n"
_SILENT: Final = "the agent's endpoint does not answer"


class HttpReply(NamedTuple):
    """An answer of the endpoint."""

    status: int
    headers: dict[str, str]
    """Names in lower case."""

    body: memoryview


class _StaleError(Exception):
    """A connection ended before any byte of an answer came."""


class Backend:
    """Asks the endpoint.

    Args:
        path: Its private socket.
        connections: How many may be open.
    """

    def __init__(self, path: str, connections: int) -> None:
        self._path = path
        self._places = asyncio.Semaphore(connections)
        self._idle: list[socket.socket] = []

    async def ask(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: Sequence[bytes] = (),
    ) -> HttpReply:
        """Send a request and wait for its answer.

        Args:
            method: HTTP method.
            target: Path.
            headers: Further headers.
            body: Its parts.

        Returns:
            The answer, whatever its status.

        Raises:
            RefusedCallError: The endpoint cannot be reached, or went away.
        """
        lines = [f"{method} {target} HTTP/1.1", "Host: edgefleet"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines.append(f"Content-Length: {sum(map(len, body))}")
        parts = ["\r\n".join([*lines, "", ""]).encode("latin-1", errors="replace"), *body]
        async with self._places:
            while self._idle:
                with contextlib.suppress(_StaleError):
                    return await self._exchange(self._idle.pop(), parts)
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(0)  # asyncio waits for it
            try:
                await asyncio.get_running_loop().sock_connect(connection, self._path)
            except OSError as exc:
                connection.close()
                raise RefusedCallError("UNAVAILABLE", _SILENT) from exc
            try:
                return await self._exchange(connection, parts)
            except _StaleError as exc:
                raise RefusedCallError("UNAVAILABLE", _SILENT) from exc

    def close(self) -> None:
        """Close the connections that nobody uses."""
        while self._idle:
            self._idle.pop().close()

    async def _exchange(self, connection: socket.socket, parts: Sequence[bytes]) -> HttpReply:
        """Send a request on a connection, and keep it if that is possible.

        Raises:
            _StaleError: No byte of an answer came.
            RefusedCallError: The answer broke off.
        """
        try:
            with contextlib.suppress(ConnectionError):  # it may have answered before it hung up
                await _send(connection, parts)
            reply = await _receive(connection)
        except BaseException:
            connection.close()
            raise
        if reply.headers.get("connection") == "close" or len(self._idle) >= KEPT:
            connection.close()
        else:
            self._idle.append(connection)
        return reply


async def _send(connection: socket.socket, parts: Sequence[bytes]) -> None:
    """Send parts, small ones together.

    Raises:
        OSError: The other end is gone.
    """
    loop, joined = asyncio.get_running_loop(), bytearray()
    for part in parts:
        if len(joined) + len(part) <= JOINED_BYTES:
            joined += part
            continue
        if joined:
            await loop.sock_sendall(connection, joined)
            joined = bytearray()
        await loop.sock_sendall(connection, part)
    if joined:
        await loop.sock_sendall(connection, joined)


async def _receive(connection: socket.socket) -> HttpReply:
    """Read an answer.

    Raises:
        _StaleError: The other end is gone and has sent nothing.
        RefusedCallError: The answer broke off, or is none.
    """
    loop, head, broken = asyncio.get_running_loop(), b"", RefusedCallError("UNAVAILABLE", _SILENT)
    try:
        while _END not in head:
            block = await loop.sock_recv(connection, HEAD_BYTES)
            if not block and not head:
                raise _StaleError
            if not block or len(head) > HEAD_BYTES:
                raise broken
            head += block
        text, _, begun = head.partition(_END)
        status, headers = _head(text.decode("latin-1"))
        body = memoryview(bytearray(int(headers["content-length"])))
        body[: len(begun)] = begun
        left = body[len(begun) :]
        while left:
            count = await loop.sock_recv_into(connection, left)
            if not count:
                raise broken
            left = left[count:]
    except ConnectionError as exc:
        raise broken if head else _StaleError from exc
    except (ValueError, IndexError, KeyError) as exc:
        raise RefusedCallError("INTERNAL", "the endpoint's answer is malformed") from exc
    return HttpReply(status, headers, body)


def _head(text: str) -> tuple[int, dict[str, str]]:
    first, *lines = text.split("\r\n")
    fields = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in fields}
    return int(first.split(" ")[1]), headers
