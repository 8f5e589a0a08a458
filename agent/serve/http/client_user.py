"""Which user runs the client at the other end of a connection, as the kernel knows it.

On a Unix socket the kernel tells who connected. On loopback it lists whose each TCP socket is.

Rules:
- A user that cannot be told for certain is None, never a guess.
- The sockets of both ends must be connected when the list is read: of a closed one the kernel
  names root, and its number may be another client's by then.
- Users that this process cannot tell apart, as under systemd's `PrivateUsers`, are nobody's.

Source:
    unix(7), SO_PEERCRED; proc(5), /proc/net/tcp; user_namespaces(7), overflowuid.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
OVERFLOW: Final = Path("/proc/sys/kernel/overflowuid")
TRIES: Final = 3
"""The kernel may leave a line out when other sockets close while the list is read."""

_ESTABLISHED: Final = 1
_CREDENTIALS: Final = struct.Struct("3i")
_MAPPED: Final = "::ffff:"


def user_of(connection: socket.socket) -> int | None:
    """Return the user that runs a client on this machine.

    Args:
        connection: A connection that was accepted, with TLS or without.

    Returns:
        The number of the user; None if it cannot be told.
    """
    try:
        if connection.family == socket.AF_UNIX:
            told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            user = _CREDENTIALS.unpack(told)[1]
        else:
            user = _owner(connection)
        return None if user == int(OVERFLOW.read_text()) else user
    except (OSError, ValueError):
        return None


def _owner(connection: socket.socket) -> int | None:
    """Return the user whose socket is connected with ours; None if there is none."""
    ours, theirs = connection.getsockname(), connection.getpeername()
    ends = {
        (_written(*theirs[:2], mapped=mapped), _written(*ours[:2], mapped=mapped))
        for mapped in (False, True)
    }
    for _ in range(TRIES):
        users = {user for local, remote, user in _connected() if (local, remote) in ends}
        if users:
            state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
            return users.pop() if len(users) == 1 and state == _ESTABLISHED else None
    return None


def _connected() -> Iterator[tuple[str, str, int]]:
    """Yield both ends of each socket that is connected, and its user."""
    for table in TABLES:
        with contextlib.suppress(OSError), table.open() as lines:  # without IPv6 one is missing
            for line in lines:
                fields = line.split()
                if fields[3] == f"{_ESTABLISHED:02X}":
                    yield fields[1], fields[2], int(fields[7])


def _written(host: str, port: int, *, mapped: bool) -> str:
    """Return an address as the tables have it: 32 bits at a time, in the machine's order."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if mapped and isinstance(address, ipaddress.IPv4Address):  # the client speaks IPv6
        address = ipaddress.ip_address(f"{_MAPPED}{address}")
    packed = address.packed
    words = [packed[at : at + 4] for at in range(0, len(packed), 4)]
    order = [word[::-1] if sys.byteorder == "little" else word for word in words]
    return f"{b''.join(order).hex().upper()}:{port:04X}"
