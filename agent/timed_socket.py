"""Sockets whose receives and sends end after a time, with one system call for each.

The time limit of Python's own sockets costs three calls: it makes the socket non-blocking and polls
it before each receive and send. Here the kernel keeps the limit of receives, which it hears of only
when it changes, and a send waits only if there is no room.

Rules:
- A limit is for one call; who needs a deadline for several says how much time is left.
- TLS needs Python's own limit, because one receive may have to read several records.
"""

from __future__ import annotations

import math
import select
import socket
import struct
from typing import Final, Protocol

_TIMEVAL: Final = struct.Struct("@ll")
"""Seconds and microseconds, as the kernel takes a limit; all zero is no limit."""

_LEAST_S: Final = 1e-6
_MOST_S: Final = 1e8
"""Over three years. The kernel refuses a limit that it cannot count."""

US_PER_S: Final = 1_000_000
MS_PER_S: Final = 1000


class TimedStream(Protocol):
    """A connection that is read and written within time limits. One thread at a time reads."""

    def receive(self, count: int, timeout_s: float | None) -> bytes:
        """Receive some bytes, at most `count`; none at the end of the stream.

        Raises:
            TimeoutError: Nothing came in time.
            OSError: The connection failed.
        """
        ...

    def send(self, content: memoryview, timeout_s: float | None) -> int:
        """Send some of the content; return how many bytes.

        Raises:
            TimeoutError: The other end took nothing in time.
            OSError: The connection failed.
        """
        ...


class TimedSocket:
    """A plain stream socket, from now on a blocking one.

    Args:
        sock: The socket. Others may shut it down or close it, but not set its time limit.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._receive_s: float | None = None
        sock.settimeout(None)

    def receive(self, count: int, timeout_s: float | None) -> bytes:
        """Receive some bytes, at most `count`; none at the end of the stream.

        Args:
            count: The most to receive.
            timeout_s: How long to wait for the first; None for no limit.

        Returns:
            The bytes.

        Raises:
            TimeoutError: Nothing came in time.
            OSError: The connection failed.
        """
        if timeout_s != self._receive_s:
            self._limit_receive(timeout_s)
        try:
            return self._socket.recv(count)
        except BlockingIOError:
            raise TimeoutError from None

    def receive_into(self, view: memoryview, timeout_s: float | None) -> int:
        """Receive some bytes into memory.

        Args:
            view: The memory, not empty.
            timeout_s: How long to wait for the first; None for no limit.

        Returns:
            How many; 0 at the end of the stream.

        Raises:
            TimeoutError: Nothing came in time.
            OSError: The connection failed.
        """
        if timeout_s != self._receive_s:
            self._limit_receive(timeout_s)
        try:
            return self._socket.recv_into(view)
        except BlockingIOError:
            raise TimeoutError from None

    def send(self, content: memoryview, timeout_s: float | None) -> int:
        """Send some of the content.

        Args:
            content: What to send.
            timeout_s: How long the other end may take nothing; None for no limit.

        Returns:
            How many bytes it took at once.

        Raises:
            TimeoutError: It took nothing in time.
            OSError: The connection failed.
        """
        while True:
            try:
                return self._socket.send(content, socket.MSG_DONTWAIT)
            except BlockingIOError:
                self._wait_for_room(timeout_s)

    def _wait_for_room(self, timeout_s: float | None) -> None:
        """Wait until the kernel takes more.

        Raises:
            TimeoutError: That took too long.
        """
        room = select.poll()
        room.register(self._socket, select.POLLOUT)
        if not room.poll(None if timeout_s is None else math.ceil(timeout_s * MS_PER_S)):
            raise TimeoutError

    def _limit_receive(self, timeout_s: float | None) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(timeout_s))
        self._receive_s = timeout_s


class PolledSocket:
    """A socket with Python's own time limit: for TLS, and for who sets limits beside this.

    Args:
        sock: The socket.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def receive(self, count: int, timeout_s: float | None) -> bytes:
        """Receive as `TimedSocket` does."""
        self._socket.settimeout(timeout_s)
        return self._socket.recv(count)

    def send(self, content: memoryview, timeout_s: float | None) -> int:
        """Send as `TimedSocket` does."""
        self._socket.settimeout(timeout_s)
        return self._socket.send(content)


def _timeval(timeout_s: float | None) -> bytes:
    if timeout_s is None:
        return _TIMEVAL.pack(0, 0)
    whole_us = round(min(max(timeout_s, _LEAST_S), _MOST_S) * US_PER_S)
    return _TIMEVAL.pack(*divmod(whole_us, US_PER_S))
