"""Which connections an HTTP server keeps: so many from one client, and so many in all.

A connection that would be one too many takes the place of one that waits: for a request, for the
rest of its header, or for an answer that needs no token.

Rules:
- If one client has too many connections, one of its own ends; another client loses none.
- If there are too many in all, one of the client with the most ends.
- The connection that has waited for longest ends first. One whose request showed the token keeps
  its place until the answer has been sent; if all do, the new connection ends.
- A connection that has shown no token has waited since it was opened, whatever it asks for. So
  nobody without the token keeps out who has it.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

NETWORK_BITS: Final = 64
"""One machine usually has all addresses of such an IPv6 network."""

KEEP: Final = "keep_place"
"""Under this name the server leaves in the state of each request what keeps its place."""

END: Final = "end_connection"
"""Under this name, what ends it at once."""

C = TypeVar("C")


class Places(Generic[C]):
    """The places of connections.

    Args:
        total: How many connections there may be.
        per_client: How many of them one client may have.
    """

    def __init__(self, total: int, per_client: int) -> None:
        self._total = total
        self._per_client = per_client
        self._clients: dict[C, str] = {}
        self._waiting: dict[C, None] = {}
        """In the order in which they began to wait."""

    def take(self, connection: C, client: str) -> C | None:
        """Give a place to a new connection, which waits for a request.

        Args:
            connection: The connection.
            client: Who opened it, as `client_of` names it.

        Returns:
            The connection that has lost its place, perhaps the new one; None if there was room.
        """
        self._clients[connection] = client
        self._waiting[connection] = None
        counts = Counter(self._clients.values())
        if counts[client] > self._per_client:
            crowd = [other for other in self._waiting if self._clients[other] == client]
        elif len(self._clients) > self._total:
            crowd = list(self._waiting)
        else:
            return None
        loser = max(crowd, key=lambda other: counts[self._clients[other]])
        self.leave(loser)
        return loser

    def work(self, connection: C) -> None:
        """Note that a request with the token is being answered."""
        self._waiting.pop(connection, None)

    def wait(self, connection: C) -> None:
        """Note that a connection waits for its next request; one that waits keeps its rank."""
        if connection in self._clients:
            self._waiting.setdefault(connection)

    def leave(self, connection: C) -> None:
        """Forget a connection."""
        self._clients.pop(connection, None)
        self._waiting.pop(connection, None)


def keep_place(scope: Mapping[str, Any]) -> None:
    """Keep the place of a connection until its request has been answered.

    Args:
        scope: The ASGI scope of a request that showed the token. Under another server than ours
            this has no effect.
    """
    keep: Callable[[], None] | None = scope.get("state", {}).get(KEEP)
    if keep is not None:
        keep()


def end_connection(scope: Mapping[str, Any]) -> None:
    """End the connection of a request at once: what was begun cannot be completed.

    Args:
        scope: The ASGI scope of the request. Under another server than ours this has no effect.
    """
    end: Callable[[], None] | None = scope.get("state", {}).get(END)
    if end is not None:
        end()


def client_of(address: str) -> str:
    """Return the name under which the connections of an address are counted.

    Args:
        address: The address of the other side; empty if it is not known.

    Returns:
        The address; for IPv6 its network, because one machine has many addresses there.
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, NETWORK_BITS), strict=False))
