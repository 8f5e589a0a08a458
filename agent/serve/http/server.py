"""HTTP/1.1 for the inference endpoint: connections, their limit, requests and answers.

Rules:
- Every size and every wait has a bound: connections, header, body, bodies at once, idle time.
- A malformed request gets a 4xx and `{"error": ...}`, and the server closes the connection: it no
  longer knows where the next request begins.
- On a TLS endpoint, the server sends nothing unencrypted.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final, Literal, TypeAlias

import msgspec

from agent.serve.frames import MAX_FRAME_BYTES, RETRY_AFTER, Reply
from agent.serve.http.encodings import coding_asked, compressed, expanded
from agent.serve.http.request import Head, Incoming, RefusedRequestError, head_of_request
from agent.serve.settings import CONNECTIONS
from wire.clock import Clock

MAX_BODY_BYTES: Final = MAX_FRAME_BYTES - 64 * 1024
"""The longest body that fits into a frame to a worker."""

LINGER_S: Final = 1.0
GUEST_LINGER_S: Final = 0.1
"""How long to read on after an early answer, so that a client that still sends can receive it."""

JOINED_BYTES: Final = 64 * 1024
"""Up to this size head and body are joined: a copy is cheaper than a second packet."""

SMALL_BYTES: Final = 64 * 1024
"""Up to this size a body is not counted: the limit of connections bounds such bodies, and large
bodies never keep them out."""

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

Answer: TypeAlias = Callable[[str, str, Mapping[str, str], memoryview], Reply]
"""Answers a request: method, target, headers (names in lower case) and body."""

Connection: TypeAlias = socket.socket | tuple[bytes, socket.socket]
"""The type that `socketserver` declares; here it is always a stream socket."""


Stage: TypeAlias = Literal["idle", "reading", "answering"]
"""What a connection is doing: waiting for a request, receiving it, or answering it."""

GUESTS: Final = 32
GUEST_HEAD_S: Final = 1.0
"""How long a guest may take for its header."""

LATE_S: Final = 5.0
"""A request that has been coming for longer loses its place before any connection that is idle."""

HEALTH: Final = "/v2/health/"
SLOW_S: Final = 1.0
"""A request that has been coming for longer may lose its place to a new connection."""


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


class ConnectionLimit:
    """Limits the open connections and the memory for their bodies.

    A new connection that would be one too many takes the place of one whose request has been coming
    for some seconds, or else of the one that has been idle for longest, or else of one whose
    request is slow. A connection whose request is being answered keeps its place. When all places
    are taken by those, some connections more are admitted as guests, who may only ask for the
    health until there is a place.
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

    def is_guest(self, connection: socket.socket) -> bool:
        """Tell whether a connection may only ask for the health."""
        return connection in self._guests

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
        spare: tuple[tuple[int, float], socket.socket] | None = None
        for connection, (stage, since_s) in self._connections.items():
            if stage == "answering" or (stage == "reading" and now_s - since_s < SLOW_S):
                continue
            late = stage == "reading" and now_s - since_s >= LATE_S
            rank = (0 if late else 1 if stage == "idle" else 2, since_s)
            if spare is None or rank < spare[0]:
                spare = (rank, connection)
        if spare is None:
            return False
        del self._connections[spare[1]]
        self._guests.discard(spare[1])
        self._leaving.add(spare[1])
        with contextlib.suppress(OSError):
            _shut_down(spare[1], socket.SHUT_RDWR)
        return True

    def close_all(self, grace_s: float) -> None:
        """End all connections: idle ones now, busy ones when they have been answered."""
        self.is_closing = True
        for how, wait_s in ((socket.SHUT_RD, grace_s), (socket.SHUT_RDWR, 1.0)):
            with self._changed:
                for connection in (*self._connections, *self._leaving):
                    with contextlib.suppress(OSError):
                        _shut_down(connection, how)
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


class HttpServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Serves each connection in a thread, up to a limit. `server_activate` starts to listen.

    Args:
        where: Host and port, or the path of a Unix socket.
        answer: Answers requests.
        connections: Counts and bounds what clients take.
        tls: Encrypts, and asks for client certificates if it is set up so; None for plain HTTP.

    Raises:
        OSError: The address cannot be used.
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(
        self,
        where: tuple[str, int] | str,
        answer: Answer,
        connections: ConnectionLimit,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if isinstance(where, str):
            self.address_family = socket.AF_UNIX
        elif ":" in where[0]:
            self.address_family = socket.AF_INET6
        self.answer = answer
        self.connections = connections
        self._tls = tls
        super().__init__(where, _Handler, bind_and_activate=False)  # type: ignore[arg-type]  # paths are addresses too
        try:
            self.server_bind()
        except BaseException:
            self.server_close()
            raise

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; TLS begins in the connection's own thread."""
        connection, address = super().get_request()
        if self._tls is not None:
            connection = self._tls.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        return connection, address

    def verify_request(
        self,
        request: Connection,
        client_address: object,  # noqa: ARG002 - the base class's signature
    ) -> bool:
        """Accept a connection, or refuse it if there are too many."""
        if not isinstance(request, socket.socket) or self.connections.admit(request):
            return True
        if self._tls is None:
            reply = Reply.refusal(503, "too many connections", RETRY_AFTER)
            with contextlib.suppress(OSError):
                request.settimeout(LINGER_S)
                request.sendall(head_of(reply, closing=True) + reply.body)
        return False

    def shutdown_request(self, request: Connection) -> None:
        """Close a connection."""
        super().shutdown_request(request)
        if isinstance(request, socket.socket):
            self.connections.release(request)

    def handle_error(self, request: Connection, client_address: object) -> None:
        """Log nothing: the client went away, or it got a 500 for any other failure."""


class _Handler(socketserver.BaseRequestHandler):
    """One connection."""

    request: socket.socket
    server: HttpServer

    def handle(self) -> None:
        """Answer one request after another, until the client or the server ends the connection."""
        connections = self.server.connections
        if self.request.family != socket.AF_UNIX:
            self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):  # the client went away or was silent for too long
            if isinstance(self.request, ssl.SSLSocket):
                self.request.settimeout(connections.limits.head_timeout_s)
                self.request.do_handshake()
            incoming = Incoming(self.request, connections.clock)
            try:
                while incoming.waits_for_request(self._idle_s()):
                    connections.note(self.request, "reading")
                    if not self._answer(incoming):
                        break
                    connections.note(self.request, "idle")
            except RefusedRequestError as exc:
                reply = Reply.refusal(exc.status, exc.message, exc.headers)
                if connections.is_closing:  # then the client did not cause the error
                    reply = Reply.refusal(503, "the endpoint is stopping", RETRY_AFTER)
                self._send(reply, closing=True)
                _shut_down(self.request, socket.SHUT_WR)
                incoming.ignore(GUEST_LINGER_S if connections.is_guest(self.request) else LINGER_S)

    def _idle_s(self) -> float:
        connections = self.server.connections
        return GUEST_HEAD_S if connections.is_guest(self.request) else connections.limits.idle_s

    def _answer(self, incoming: Incoming) -> bool:
        """Answer the next request; tell whether another one may follow.

        Raises:
            RefusedRequestError: The request is refused.
            OSError: The client went away.
        """
        connections = self.server.connections
        limits = connections.limits
        is_guest = connections.is_guest(self.request)
        head_s = min(GUEST_HEAD_S, limits.head_timeout_s) if is_guest else limits.head_timeout_s
        head = head_of_request(incoming.head(head_s), limits.body_bytes)
        if not head.target.startswith(HEALTH) and not connections.has_place(self.request):
            raise RefusedRequestError(503, "too many connections", RETRY_AFTER)
        if head.waits:
            self.request.sendall(CONTINUE)
        with connections.body_memory() as take:
            if head.length is None:
                body = incoming.chunked_body(limits.body_bytes, limits.body_timeout_s, take)
            else:
                body = incoming.body(head.length, limits.body_timeout_s, take)
            coding = head.headers.pop("content-encoding", None)
            if coding is not None:
                body = expanded(body, coding, limit_bytes=limits.body_bytes, take=take)
            connections.note(self.request, "answering")
            reply = self._ask(head, body)
            asked = head.headers.get("accept-encoding")
            if asked and head.method == "POST" and reply.status == HTTPStatus.OK:
                reply = compressed(reply, coding_asked(asked))
            closing = connections.is_closing or not head.keeps_alive
            self._send(reply, closing=closing, bodiless=head.method == "HEAD")
        return not closing

    def _ask(self, head: Head, body: memoryview) -> Reply:
        try:
            return self.server.answer(head.method, head.target, head.headers, body)
        except Exception as exc:  # noqa: BLE001 - a client must hear of a fault of ours
            return Reply.refusal(500, f"the endpoint failed: {type(exc).__name__}")

    def _send(self, reply: Reply, *, closing: bool, bodiless: bool = False) -> None:
        self.request.settimeout(self.server.connections.limits.body_timeout_s)
        head = head_of(reply, closing=closing)
        body = b"" if bodiless else reply.body
        if len(body) <= JOINED_BYTES:
            self.request.sendall(head + body)
        else:
            self.request.sendall(head)
            self.request.sendall(body)


def head_of(reply: Reply, *, closing: bool) -> bytes:
    """Return the status line and the header of an answer."""
    lines = [
        f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}",
        f"Content-Length: {len(reply.body)}",
        f"Connection: {'close' if closing else 'keep-alive'}",
        *(f"{name}: {value}" for name, value in reply.headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", errors="replace")


def _shut_down(connection: socket.socket, how: int) -> None:
    """Shut a connection down, below TLS.

    `SSLSocket.shutdown` drops the keys: a thread that still answers would go on unencrypted.
    """
    socket.socket.shutdown(connection, how)
