"""Which connections the endpoint keeps, and how much memory their bodies may take.

A new connection that would be one too many takes the place of another one that can be spared. When
none can, some connections more are admitted as guests: they may only ask for the health, within a
short time, until there is a place.

Rules:
- A connection whose request is being answered keeps its place.
- One whose request has been coming for some seconds goes first, then the one that has been idle for
  longest, then one whose request is slow.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from agent.serve.frames import MAX_FRAME_BYTES, RETRY_AFTER
from agent.serve.http.request import RefusedRequestError
from agent.serve.settings import CONNECTIONS
from wire.clock import Clock

MAX_BODY_BYTES: Final = MAX_FRAME_BYTES - 64 * 1024
"""The longest body that fits into a frame to a worker."""

SMALL_BYTES: Final = 64 * 1024
"""Up to this size a body is not counted: the limit of connections bounds such bodies, and large
bodies never keep them out."""

GUESTS: Final = 32
LATE_S: Final = 5.0
"""A request that has been coming for longer loses its place before any connection that is idle."""

SLOW_S: Final = 1.0
"""A request that has been coming for longer may lose its place to a new connection."""

Stage: TypeAlias = Literal["idle", "reading", "answering"]
"""What a connection is doing: waiting for a request, receiving it, or answering it."""


class Patience(NamedTuple):
    """How long the endpoint waits for a client."""

    idle_s: float
    """For the beginning of a request."""

    head_s: float
    """For a whole header."""

    linger_s: float = 1.0
    """After an early answer, so that a client that still sends can receive it."""


GUEST_PATIENCE: Final = Patience(idle_s=1.0, head_s=1.0, linger_s=0.1)


class EndpointLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on what clients may take."""

    body_bytes: int = 64 * 1024**2
    bodies_bytes: int = 128 * 1024**2
    """Limit for all large bodies together that are being read or answered."""

    head_timeout_s: float = 10.0
    """How long a client may take to send a header, and for TLS to agree on keys."""

    body_timeout_s: float = 30.0
    """How long a client may take to send a body, and to read an answer."""

    idle_s: float = 75.0
    """How long a connection may be silent."""

    connections: int = CONNECTIONS
    """Open connections."""

    def __post_init__(self) -> None:
        if self.body_bytes > MAX_BODY_BYTES:
            raise ValueError(f"body_bytes is over {MAX_BODY_BYTES}")


def spared_first(stage: Stage, for_s: float) -> int | None:
    """Return how soon a connection gives its place to a new one: 0 for the first to go.

    Args:
        stage: What it is doing.
        for_s: For how long.

    Returns:
        Its rank; None if it keeps its place. Of one rank the longest goes first.
    """
    if stage == "reading" and for_s >= LATE_S:
        return 0
    if stage == "idle":
        return 1
    return 2 if stage == "reading" and for_s >= SLOW_S else None


class ConnectionLimit:
    """Limits the open connections and the memory for their bodies.

    Args:
        limits: The bounds.
        clock: For how long a connection has been doing something.
    """

    def __init__(self, limits: EndpointLimits, clock: Clock) -> None:
        self.limits = limits
        self.clock = clock
        self.is_closing = False
        """Whether all connections are about to end."""

        self._changed = threading.Condition()
        self._connections: dict[socket.socket, tuple[Stage, float]] = {}
        """What each connection is doing, and since when."""

        self._leaving: set[socket.socket] = set()
        """Connections that lost their place; their threads end soon."""

        self._guests: set[socket.socket] = set()

        self._bodies_bytes = 0

    def admit(self, connection: socket.socket) -> bool:
        """Count a new connection; return False if there are too many."""
        with self._changed:
            if len(self._connections) >= self.limits.connections and not self._make_room():
                if len(self._guests) >= GUESTS:
                    return False
                self._guests.add(connection)
            self._connections[connection] = ("idle", self.clock.monotonic_s())
            return True

    def patience(self, connection: socket.socket) -> Patience:
        """Return how long to wait for a client."""
        usual = Patience(idle_s=self.limits.idle_s, head_s=self.limits.head_timeout_s)
        return GUEST_PATIENCE if connection in self._guests else usual

    def has_place(self, connection: socket.socket) -> bool:
        """Tell whether a connection may ask for anything. A guest gets a place that is free now."""
        with self._changed:
            if connection not in self._guests:
                return True
            while len(self._connections) - len(self._guests) >= self.limits.connections:
                if not self._make_room():
                    return False
            self._guests.discard(connection)
            return True

    def note(self, connection: socket.socket, stage: Stage) -> None:
        """Note what a connection is doing from now on."""
        with self._changed:
            if connection in self._connections:
                self._connections[connection] = (stage, self.clock.monotonic_s())

    def release(self, connection: socket.socket) -> None:
        """Forget a connection."""
        with self._changed:
            self._connections.pop(connection, None)
            self._leaving.discard(connection)
            self._guests.discard(connection)
            self._changed.notify_all()

    def _make_room(self) -> bool:
        """End the connection that can best be spared; False if none can."""
        if len(self._leaving) >= self.limits.connections:
            return False
        now_s = self.clock.monotonic_s()
        ranked = [
            (rank, since_s, connection)
            for connection, (stage, since_s) in self._connections.items()
            if (rank := spared_first(stage, now_s - since_s)) is not None
        ]
        if not ranked:
            return False
        _, _, spared = min(ranked, key=lambda found: found[:2])
        del self._connections[spared]
        self._guests.discard(spared)
        self._leaving.add(spared)
        with contextlib.suppress(OSError):
            shut_down(spared, socket.SHUT_RDWR)
        return True

    def close_all(self, grace_s: float) -> None:
        """End all connections: idle ones now, busy ones when they have been answered."""
        self.is_closing = True
        for how, wait_s in ((socket.SHUT_RD, grace_s), (socket.SHUT_RDWR, 1.0)):
            with self._changed:
                for connection in (*self._connections, *self._leaving):
                    with contextlib.suppress(OSError):
                        shut_down(connection, how)
                self._changed.wait_for(
                    lambda: not self._connections and not self._leaving, timeout=wait_s
                )

    @contextlib.contextmanager
    def body_memory(self) -> Iterator[Callable[[int], None]]:
        """Reserve memory for a body while it is needed.

        Yields:
            A function that reserves more bytes; it raises RefusedRequestError if none are left.
        """
        asked = held = 0

        def take(count: int) -> None:
            nonlocal asked, held
            asked += count
            if asked <= SMALL_BYTES:
                return
            with self._changed:
                if self._bodies_bytes + asked - held > self.limits.bodies_bytes:
                    raise RefusedRequestError(503, "too many large requests at once", RETRY_AFTER)
                self._bodies_bytes += asked - held
                held = asked

        try:
            yield take
        finally:
            with self._changed:
                self._bodies_bytes -= held


def shut_down(connection: socket.socket, how: int) -> None:
    """Shut a connection down, below TLS.

    `SSLSocket.shutdown` drops the keys: a thread that still answers would go on unencrypted.
    """
    socket.socket.shutdown(connection, how)
