"""Which connections the endpoint keeps, and how much memory their bodies and answers may take.

A new connection that would be one too many takes the place of another one that can be spared. When
none can, some connections more are admitted as guests: they may only ask for the health, within a
short time, until there is a place.

A large body counts from its first bytes on, and a large answer until it has been sent. When there
is not enough memory, the connections end whose client has neither sent nor read for longest.

Rules:
- A connection whose request is being worked on keeps its place and its memory.
- One whose request has been coming for some seconds goes first, or whose client has not read its
  answer for so long; then the one that has been idle for longest; then a slow one.
- A client that sends or reads steadily, as fast as it must to end in time, keeps its memory, and
  its place while it reads.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Final, Literal, NamedTuple, Self, TypeAlias

import msgspec

from agent.serve.frames import MAX_FRAME_BYTES, RETRY_AFTER
from agent.serve.http.request import RefusedRequestError
from agent.serve.settings import CONNECTIONS
from wire.clock import Clock

MAX_BODY_BYTES: Final = MAX_FRAME_BYTES - 64 * 1024
"""The longest body that fits into a frame to a worker."""

SMALL_BYTES: Final = 64 * 1024
"""Up to this size a body or an answer is not counted: the limit of connections bounds those, and
large ones never keep them out."""

GUESTS: Final = 32
LATE_S: Final = 5.0
"""A request that has been coming for longer, or an answer that has not been read for longer, loses
its place before any connection that is idle."""

SLOW_S: Final = 1.0
"""After this time a slow request or an unread answer may lose its place to a new connection, and
its memory to another request."""

LEAVE_S: Final = 1.0
"""How long a request waits for the memory of those that lost theirs: their threads give it back at
once."""

Stage: TypeAlias = Literal["idle", "reading", "answering", "sending"]
"""What a connection is doing: waiting for a request, receiving it, letting a worker answer it, or
sending the answer."""


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
    """Limit for all large bodies and large answers together, from the first byte that is read to
    the last that is sent. One request alone may take more: each is bounded by itself."""

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
        for_s: For how long; while it sends, for how long its client has not read.

    Returns:
        Its rank; None if it keeps its place. Of one rank the longest goes first.
    """
    if stage == "idle":
        return 1
    if stage == "answering" or for_s < SLOW_S:
        return None
    return 0 if for_s >= LATE_S else 2


class _Place(msgspec.Struct):
    """What an admitted connection is doing."""

    stage: Stage
    since_s: float
    moved_s: float
    """Up to when its client has kept pace: a client that stops sending or reading falls behind from
    then on."""


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

        self._patience = Patience(idle_s=limits.idle_s, head_s=limits.head_timeout_s)
        self._changed = threading.Condition()
        self._connections: dict[socket.socket, _Place] = {}
        self._leaving: set[socket.socket] = set()
        """Connections that lost their place or their memory; their threads end soon."""

        self._guests: set[socket.socket] = set()
        self._memories: dict[socket.socket, RequestMemory] = {}
        """Those that hold some."""

        self._held_bytes = 0

    def admit(self, connection: socket.socket) -> bool:
        """Count a new connection; return False if there are too many."""
        with self._changed:
            if len(self._connections) >= self.limits.connections and not self._make_room():
                if len(self._guests) >= GUESTS:
                    return False
                self._guests.add(connection)
            now_s = self.clock.monotonic_s()
            self._connections[connection] = _Place("idle", now_s, now_s)
            return True

    def patience(self, connection: socket.socket) -> Patience:
        """Return how long to wait for a client."""
        return GUEST_PATIENCE if connection in self._guests else self._patience

    def has_place(self, connection: socket.socket) -> bool:
        """Tell whether a connection may ask for anything. A guest gets a place that is free now."""
        if connection not in self._guests:
            return True
        with self._changed:
            while len(self._connections) - len(self._guests) >= self.limits.connections:
                if not self._make_room():
                    return False
            self._guests.discard(connection)
            return True

    def has_lost_place(self, connection: socket.socket) -> bool:
        """Tell whether a connection had to end, for another connection or for memory."""
        with self._changed:
            return connection in self._leaving

    def note(self, connection: socket.socket, stage: Stage) -> None:
        """Note what a connection is doing from now on; only its own thread may."""
        # Without the lock: who looks meanwhile finds it busy for too short, which spares it.
        place = self._connections.get(connection)
        if place is not None:
            place.since_s = place.moved_s = self.clock.monotonic_s()
            place.stage = stage

    def moved(self, connection: socket.socket, share: float) -> None:
        """Note that a client has sent or read something.

        Args:
            connection: Its connection.
            share: Which part of its request or answer that was. All of it may take
                `body_timeout_s`, and who needs no longer keeps pace.
        """
        with self._changed:
            self._move(connection, share)

    def _move(self, connection: socket.socket, share: float) -> None:
        place = self._connections.get(connection)
        if place is not None:
            moved_s = place.moved_s + share * self.limits.body_timeout_s
            place.moved_s = min(self.clock.monotonic_s(), moved_s)

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
            for connection, place in self._connections.items()
            for since_s in [place.moved_s if place.stage == "sending" else place.since_s]
            if (rank := spared_first(place.stage, now_s - since_s)) is not None
        ]
        if not ranked:
            return False
        _, _, spared = min(ranked, key=lambda found: found[:2])
        self._end(spared, socket.SHUT_RDWR)
        return True

    def _end(self, connection: socket.socket, how: int) -> None:
        """Take a connection's place, and let its thread end."""
        del self._connections[connection]
        self._guests.discard(connection)
        self._leaving.add(connection)
        with contextlib.suppress(OSError):
            shut_down(connection, how)

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

    def hold(self, memory: RequestMemory, size_bytes: int, share: float = 0.0) -> bool:
        """Let a request hold so many bytes from now on.

        Args:
            memory: That of the request.
            size_bytes: How much it holds now, more or less than before.
            share: Which part of the request has come by that.

        Returns:
            Whether there is so much; nothing changes if not.
        """
        connection, more = memory.connection, size_bytes - memory.held_bytes
        with self._changed:
            if more > 0 and not self._has_room(memory, more):
                return False
            self._move(connection, share if memory.held_bytes else 1.0)
            memory.held_bytes = size_bytes
            self._held_bytes += more
            if size_bytes:
                self._memories[connection] = memory
            else:
                self._memories.pop(connection, None)
            if more < 0:
                self._changed.notify_all()
        return True

    def _has_room(self, memory: RequestMemory, more: int) -> bool:
        """Tell whether a request may hold more; for that, end who has stopped sending or reading.

        Nobody has to end if that would not be enough.
        """

        def missing() -> int:
            is_alone = self._held_bytes == memory.held_bytes
            return 0 if is_alone else self._held_bytes + more - self.limits.bodies_bytes

        wanted = missing()
        if wanted <= 0:
            return True
        wanted -= sum(other.held_bytes for c, other in self._memories.items() if c in self._leaving)
        chosen = list[tuple[socket.socket, Stage]]()
        for connection, stage in self._stalled():
            if wanted > 0 and connection is not memory.connection:
                chosen.append((connection, stage))
                wanted -= self._memories[connection].held_bytes
        if wanted > 0:
            return False
        for connection, stage in chosen:  # who still sends can be told why
            self._end(connection, socket.SHUT_RD if stage == "reading" else socket.SHUT_RDWR)
        return self._changed.wait_for(lambda: missing() <= 0, timeout=LEAVE_S)

    def _stalled(self) -> list[tuple[socket.socket, Stage]]:
        """Return whose memory can be spared, the longest first."""
        before_s = self.clock.monotonic_s() - SLOW_S
        stalled = [
            (place.moved_s, connection, place.stage)
            for connection in self._memories
            if (place := self._connections.get(connection)) is not None
            and place.stage != "answering"
            and place.moved_s <= before_s
        ]
        stalled.sort(key=lambda found: found[0])
        return [(connection, stage) for _, connection, stage in stalled]


class RequestMemory:
    """The memory that a request takes: that of its body, then that of its answer.

    It is a context manager, which gives the memory back.

    Args:
        limit: Bounds the memory of all requests.
        connection: Where the request comes from.
        length: Length of its body; None if the client does not say.
    """

    def __init__(
        self, limit: ConnectionLimit, connection: socket.socket, length: int | None
    ) -> None:
        self.connection = connection
        self.held_bytes = 0
        """How much of it is counted."""

        self._limit = limit
        self._length = limit.limits.body_bytes if length is None else length
        self._taken_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.held_bytes:
            self._limit.hold(self, 0)

    def take(self, count: int) -> None:
        """Count bytes of the body that are kept from now on.

        Args:
            count: How many.

        Raises:
            RefusedRequestError: There is no memory for them.
        """
        self._taken_bytes += count
        if self._taken_bytes <= SMALL_BYTES:
            return
        if not self._limit.hold(self, self._taken_bytes, count / max(self._length, 1)):
            raise RefusedRequestError(503, "too many large requests at once", RETRY_AFTER)

    def has_room_for_answer(self, size_bytes: int) -> bool:
        """Count the answer instead of the body; False if there is no memory for it.

        Args:
            size_bytes: How long it is.
        """
        counted = size_bytes if size_bytes > SMALL_BYTES else 0
        return counted == self.held_bytes or self._limit.hold(self, counted)


def shut_down(connection: socket.socket, how: int) -> None:
    """Shut a connection down, below TLS.

    `SSLSocket.shutdown` drops the keys: a thread that still answers would go on unencrypted.
    """
    socket.socket.shutdown(connection, how)
