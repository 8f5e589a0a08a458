"""A link of a given rate between a device and a server on loopback.

Rules:
- It holds few bytes, and asks the kernel for small buffers: what the far end sends waits there, as
  it would at a slow network.
- It can be cut: both sides see the connection end, and may connect again.
- Shared, all its connections together have the rate, as those of a site behind one uplink.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Self

from benchmarks.transfers.pace import LinkShape, Pace

SOCKET_BUFFER_BYTES: Final = 16 * 1024
CONNECT_S: Final = 10.0


class Link:
    """A relay on loopback for the length of a `with` block.

    Args:
        target: The server's port.
        shape: What the link is like.
        cut_at_bytes: It is cut once, after so many bytes to the device.
        is_shared: Whether all connections together have the rate, and not each.
    """

    def __init__(
        self,
        target: int,
        shape: LinkShape,
        *,
        cut_at_bytes: int | None = None,
        is_shared: bool = False,
    ) -> None:
        self._target = target
        self._shape = shape
        self._cut_at_bytes = cut_at_bytes
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.down_bytes = 0
        """What has left towards the device."""

        self.cuts = 0
        self._counting = threading.Lock()
        self._shared = (_Line(shape), _Line(shape)) if is_shared else None
        self._open: list[_Direction] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()
        for direction in self._open:
            direction.cut()
        for direction in self._open:
            direction.join()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            far = socket.socket()
            _be_small(far, socket.SO_RCVBUF)
            _be_small(near, socket.SO_SNDBUF)
            try:
                far.settimeout(CONNECT_S)
                far.connect(("127.0.0.1", self._target))
                far.settimeout(None)
            except OSError:
                near.close()
                far.close()
                continue
            up, down = self._shared or (_Line(self._shape), _Line(self._shape))
            self._open += [
                _Direction(near, far, up, lambda _size: False),
                _Direction(far, near, down, self._count),
            ]

    def _count(self, size_bytes: int) -> bool:
        """Count what has left towards the device, and tell whether to cut now."""
        with self._counting:
            self.down_bytes += size_bytes
            if self._cut_at_bytes is None or self.down_bytes < self._cut_at_bytes:
                return False
            self._cut_at_bytes = None
            self.cuts += 1
            return True


class _Line:
    """One way of one link, for the threads of its connections."""

    def __init__(self, shape: LinkShape) -> None:
        self.shape = shape
        self._pace = Pace(shape)
        self._lock = threading.Lock()

    def leaves_s(self, size_bytes: int) -> float:
        """Return when a block has left that comes now."""
        with self._lock:
            return self._pace.leaves_s(time.monotonic(), size_bytes)


class _Direction:
    """One way of one connection: a thread reads, another one writes when it is time.

    `left` takes the size of each block that has left, and tells whether to cut now.
    """

    def __init__(
        self,
        source: socket.socket,
        sink: socket.socket,
        line: _Line,
        left: Callable[[int], bool],
    ) -> None:
        self._source, self._sink, self._line, self._left = source, sink, line, left
        self._shape = line.shape
        self._blocks: deque[tuple[float, bytes]] = deque()
        self._held_bytes = 0
        self._ended = False
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=each, daemon=True) for each in (self._read, self._write)
        ]
        for thread in self._threads:
            thread.start()

    def cut(self) -> None:
        """End the connection, with what is on its way."""
        with self._changed:
            self._ended = True
            self._blocks.clear()
            self._changed.notify_all()
        for sock in (self._source, self._sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def join(self) -> None:
        """Wait until both threads have ended, and close."""
        for thread in self._threads:
            thread.join()
        self._source.close()
        self._sink.close()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while block := self._source.recv(self._shape.block_bytes):
                with self._changed:
                    self._changed.wait_for(
                        lambda: self._ended or self._held_bytes < self._shape.buffer_bytes
                    )
                    if self._ended:
                        return
                    leaves_s = self._line.leaves_s(len(block))
                    self._blocks.append((leaves_s, block))
                    self._held_bytes += len(block)
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _write(self) -> None:
        with contextlib.suppress(OSError):
            while (block := self._next()) is not None:
                self._sink.sendall(block)
                with self._changed:
                    self._held_bytes -= len(block)
                    self._changed.notify_all()
                if self._left(len(block)):
                    self.cut()
        with contextlib.suppress(OSError):
            self._sink.shutdown(socket.SHUT_WR)

    def _next(self) -> bytes | None:
        """Wait for the time of the next block; None at the end."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._ended or self._blocks)
                if not self._blocks:
                    return None
                wait_s = self._blocks[0][0] - time.monotonic()
                if wait_s <= 0:
                    return self._blocks.popleft()[1]
                self._changed.wait(wait_s)


def _be_small(sock: socket.socket, which: int) -> None:
    sock.setsockopt(socket.SOL_SOCKET, which, SOCKET_BUFFER_BYTES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
