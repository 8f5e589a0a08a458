"""What others may take of this device: connections, and downloads at the same time.

Rules:
- Nobody takes more than a share: so many connections for one address, one download for one device.
- A device that asks again while it is being served has lost its connection: the new one counts.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from typing import Final

import msgspec

BLOCK_BYTES: Final = 256 * 1024
"""What is sent between two looks at the link and the pace."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds."""

    at_once: int
    """Downloads at the same time."""

    bytes_per_s: int
    """All downloads together."""

    connections: int = 64
    """Beside those that are served: each takes a thread and up to 100 KiB."""

    connections_of_address: int = 20
    """Many devices may stand behind one address: containers of a host, or a router's network."""

    request_bytes: int = 32 * 1024
    """What each request counts for at least, of `bytes_per_s`."""

    requests_per_s: int = 256
    """Of all devices together, in turns like what is sent."""

    head_bytes: int = 4096
    """Of a request, which has no body."""

    head_s: float = 5.0
    """How long the head of a request may take to come."""

    idle_s: float = 10.0
    """How long a connection may be silent between two requests."""

    block_s: float = 20.0
    """In which a client has to take a block: 13 KB/s."""

    refusal_s: float = 0.5
    """How long who shows no valid link waits for the refusal: so guessing costs this device little,
    however fast it goes."""

    busy_s: float = 0.1
    """How long who shows a valid link waits for a refusal, for the same reason."""

    @property
    def least_bytes(self) -> int:
        """What each request counts for at least."""
        return max(self.request_bytes, self.bytes_per_s // self.requests_per_s)


class Visitors:
    """Counts connections and downloads. For any thread.

    Args:
        limits: The bounds.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, str] = {}
        self._served: dict[str, socket.socket] = {}
        """By device: the connection on which it is served."""

    def admit(self, connection: socket.socket, address: str) -> bool:
        """Count a new connection; return False if there are too many."""
        limits = self._limits
        with self._lock:
            of_address = Counter(self._connections.values())[address]
            if of_address >= limits.connections_of_address:
                return False
            if len(self._connections) >= limits.connections + limits.at_once:
                return False
            self._connections[connection] = address
            return True

    def leave(self, connection: socket.socket) -> None:
        """Forget a connection."""
        with self._lock:
            self._connections.pop(connection, None)

    def begin(self, device: str, connection: socket.socket) -> bool:
        """Begin to serve a device; return False if too many are being served."""
        with self._lock:
            before = self._served.get(device)
            if before is None and len(self._served) >= self._limits.at_once:
                return False
            self._served[device] = connection
            if before is not None and before is not connection:
                _shut_down(before)
            return True

    def is_present(self, device: str, connection: socket.socket) -> bool:
        """Tell whether a device is served on this connection, and not on a newer one."""
        with self._lock:
            return self._served.get(device) is connection

    def end(self, device: str, connection: socket.socket) -> None:
        """Note that a device has been served, unless it has come back on another connection."""
        with self._lock:
            if self._served.get(device) is connection:
                del self._served[device]

    def end_all(self) -> None:
        """End all connections."""
        with self._lock:
            for connection in self._connections:
                _shut_down(connection)


def _shut_down(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
