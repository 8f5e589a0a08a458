"""HTTP/1.1 for the inference endpoint: connections, their limit, requests and answers.

Rules:
- Every size and every wait has a bound: connections, header, body, bodies and answers at once, idle
  time.
- Who may not ask is told so before the body is read, and neither a request for the health nor
  feedback has a large one.
- A malformed request gets a 4xx and `{"error": ...}`, and the server closes the connection: it no
  longer knows where the next request begins.
- On a TLS endpoint, the server sends nothing unencrypted.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import ssl
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from agent.serve.frames import RETRY_AFTER, Reply
from agent.serve.http.connections import SMALL_BYTES, ConnectionLimit, RequestMemory, shut_down
from agent.serve.http.encodings import coding_asked, compressed, expanded
from agent.serve.http.request import Head, Incoming, RefusedRequestError
from agent.timed_socket import PolledSocket, TimedSocket, TimedStream

LINGER_S: Final = 1.0
"""How long a refused client may take to receive that, when it got no thread of its own."""

JOINED_BYTES: Final = 64 * 1024
"""Up to this size head and body are joined: a copy is cheaper than a second packet."""

HEALTH: Final = "/v2/health/"
"""Paths that a guest may ask for."""

FEEDBACK: Final = "/feedback"
"""How the path of feedback ends, which is small."""

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

SEND_BYTES: Final = 1024 * 1024
"""How much of an answer is sent before its progress is noted."""

_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}

Connection: TypeAlias = socket.socket | tuple[bytes, socket.socket]
"""The type that `socketserver` declares; here it is always a stream socket."""


Shared: TypeAlias = Callable[[Mapping[str, str]], Mapping[str, str]]
"""Returns further headers of an answer, from those of its request."""


class Api(Protocol):
    """What requests are for. Names of headers are in lower case."""

    def refusal(self, target: str, headers: Mapping[str, str]) -> RefusedRequestError | None:
        """Refuse a client that may not ask for this; None if it may."""
        ...

    def answer(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: memoryview,
        connection: socket.socket | None = None,
    ) -> Reply:
        """Answer a request of a client that may ask for it.

        The connection is for who has to know whose client that is.
        """
        ...


class HttpServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Serves each connection in a thread, up to a limit. `server_activate` starts to listen.

    Args:
        where: Host and port, or the path of a Unix socket.
        api: Answers requests.
        connections: Counts and bounds what clients take.
        tls: Encrypts, and asks for client certificates if it is set up so; None for plain HTTP.
        shared: Returns further headers of each answer, from those of its request.

    Raises:
        OSError: The address cannot be used.
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(
        self,
        where: tuple[str, int] | str,
        api: Api,
        connections: ConnectionLimit,
        tls: ssl.SSLContext | None = None,
        shared: Shared = lambda _: {},
    ) -> None:
        if isinstance(where, str):
            self.address_family = socket.AF_UNIX
        elif ":" in where[0]:
            self.address_family = socket.AF_INET6
        self.api = api
        self.connections = connections
        self.shared = shared
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
    _shared: Mapping[str, str] = {}
    _stream: TimedStream

    def handle(self) -> None:
        """Answer one request after another, until the client or the server ends the connection."""
        connections = self.server.connections
        if self.request.family != socket.AF_UNIX:
            self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):  # the client went away or was silent for too long
            if isinstance(self.request, ssl.SSLSocket):
                self.request.settimeout(connections.limits.head_timeout_s)
                self.request.do_handshake()
            is_tls = isinstance(self.request, ssl.SSLSocket)
            self._stream = (PolledSocket if is_tls else TimedSocket)(self.request)
            incoming = Incoming(self._stream, connections.clock)
            refusal = self._serve(incoming)
            if refusal is not None:
                self._send(refusal, closing=True)
                shut_down(self.request, socket.SHUT_WR)
                incoming.ignore(connections.patience(self.request).linger_s)

    def _serve(self, incoming: Incoming) -> Reply | None:
        """Answer requests; return the refusal after which the connection ends, if there is one.

        Raises:
            OSError: The client went away or was silent for too long.
        """
        connections = self.server.connections
        try:
            while incoming.waits_for_request(connections.patience(self.request).idle_s):
                connections.note(self.request, "reading")
                if not self._answer(incoming):
                    break
                connections.note(self.request, "idle")
        except RefusedRequestError as exc:
            if connections.is_closing:  # then the client did not cause the error
                return Reply.refusal(503, "the endpoint is stopping", RETRY_AFTER)
            if connections.has_lost_place(self.request):
                return Reply.refusal(503, "other requests need the memory", RETRY_AFTER)
            return reply_of(exc)
        return None

    def _answer(self, incoming: Incoming) -> bool:
        """Answer the next request; tell whether another one may follow.

        Raises:
            RefusedRequestError: The request is refused.
            OSError: The client went away.
        """
        connections = self.server.connections
        head_s = connections.patience(self.request).head_s
        self._shared = {}  # of the request before
        head = incoming.request(head_s, connections.limits.body_bytes)
        self._shared = self.server.shared(head.headers)
        if not head.target.startswith(HEALTH) and not connections.has_place(self.request):
            raise RefusedRequestError(503, "too many connections", RETRY_AFTER)
        refusal = self.server.api.refusal(head.target, head.headers)
        if refusal is not None and head.length != 0:
            raise refusal
        with RequestMemory(connections, self.request, head.length) as memory:
            reply = reply_of(refusal) if refusal else self._reply(head, incoming, memory)
            closing = connections.is_closing or not head.keeps_alive
            if not memory.has_room_for_answer(len(reply.body)):
                reply = Reply.refusal(503, "too many large answers at once", RETRY_AFTER)
            self._send(reply, closing=closing, bodiless=head.method == "HEAD")
        return not closing

    def _reply(self, head: Head, incoming: Incoming, memory: RequestMemory) -> Reply:
        """Read the body of a request and return the answer, which keeps no other memory.

        Raises:
            RefusedRequestError: The request is refused.
            OSError: The client went away.
        """
        limits = self.server.connections.limits
        path = head.target.partition("?")[0]
        is_small = path.startswith(HEALTH) or path.endswith(FEEDBACK)
        limit_bytes = min(SMALL_BYTES, limits.body_bytes) if is_small else limits.body_bytes
        if head.length is not None and head.length > limit_bytes:
            raise RefusedRequestError(413, f"the body is over {limit_bytes} bytes")
        if head.waits:
            self._stream.send(memoryview(CONTINUE), limits.body_timeout_s)
        if head.length is None:
            body = incoming.chunked_body(limit_bytes, limits.body_timeout_s, memory.take)
        else:
            body = incoming.body(head.length, limits.body_timeout_s, memory.take)
        coding = head.headers.get("content-encoding")
        if coding is not None:
            body = expanded(body, coding, limit_bytes=limit_bytes, take=memory.take)
        self.server.connections.note(self.request, "answering")
        reply = self._ask(head, body)
        asked = head.headers.get("accept-encoding")
        if asked and head.method == "POST" and reply.status == HTTPStatus.OK:
            reply = compressed(reply, coding_asked(asked))
        return alone(reply)

    def _ask(self, head: Head, body: memoryview) -> Reply:
        try:
            api = self.server.api
            return api.answer(head.method, head.target, head.headers, body, self.request)
        except Exception as exc:  # noqa: BLE001 - a client must hear of a fault of ours
            return Reply.refusal(500, f"the endpoint failed: {type(exc).__name__}")

    def _send(self, reply: Reply, *, closing: bool, bodiless: bool = False) -> None:
        connections = self.server.connections
        head = head_of(reply, closing=closing, more=self._shared)
        body = b"" if bodiless else reply.body
        connections.note(self.request, "sending")
        deadline_s = connections.clock.monotonic_s() + connections.limits.body_timeout_s
        if len(body) <= JOINED_BYTES:
            self._send_all(memoryview(head + body), deadline_s)
        else:
            self._send_all(memoryview(head), deadline_s)
            self._send_all(memoryview(body), deadline_s)

    def _send_all(self, content: memoryview, deadline_s: float) -> None:
        """Send a part of an answer, and note how the client reads it.

        Raises:
            TimeoutError: The client did not read it in time.
            OSError: The client went away, or lost its place.
        """
        connections, size = self.server.connections, len(content)
        while content:
            left_s = deadline_s - connections.clock.monotonic_s()
            if left_s <= 0:
                raise TimeoutError
            sent = self._stream.send(content[:SEND_BYTES], left_s)
            content = content[sent:]
            if content:
                connections.moved(self.request, sent / size)


def reply_of(refusal: RefusedRequestError) -> Reply:
    """Return the answer that a refused client gets."""
    return Reply.refusal(refusal.status, refusal.message, refusal.headers)


def alone(reply: Reply) -> Reply:
    """Return an answer that keeps no other memory, such as those that came in one frame with it."""
    body = reply.body
    whole: Any = body.obj
    if len(whole) - len(body) <= SMALL_BYTES:
        return reply
    return msgspec.structs.replace(reply, body=memoryview(bytes(body)))


def head_of(reply: Reply, *, closing: bool, more: Mapping[str, str] = {}) -> bytes:
    """Return the status line and the header of an answer."""
    fields = [*reply.headers.items(), *more.items()]
    further = "".join([f"{name}: {value}\r\n" for name, value in fields])
    head = (
        f"HTTP/1.1 {reply.status} {_PHRASES[reply.status]}\r\nContent-Length: {len(reply.body)}\r\n"
        f"Connection: {'close' if closing else 'keep-alive'}\r\n{further}\r\n"
    )
    return head.encode("latin-1", errors="replace")
