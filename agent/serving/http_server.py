"""HTTP/1.1 for the inference endpoint: connections, framing, bounds.

Rules:
- Every size and every wait has a bound: connections, header, body, bodies at once, idle time.
- What is malformed is answered with a 4xx and `{"error": ...}`. When the end of the request cannot
  be known, the connection is closed after the answer.
- A body's length is announced; chunked bodies are refused (411).
"""

from __future__ import annotations

import contextlib
import re
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Final, TypeAlias

from agent.serving.frames import MAX_FRAME_BYTES, RETRY_AFTER, Reply
from wire.clock import Clock

MAX_BODY_BYTES: Final = MAX_FRAME_BYTES - 64 * 1024
"""What a frame to a worker has room for."""

MAX_LINE_BYTES: Final = 8 * 1024
READ_BYTES: Final = 1024 * 1024
LINGER_S: Final = 1.0
"""How long to read on after an early answer, so that a client which still sends can hear it."""

JOINED_BYTES: Final = 64 * 1024
"""Up to here head and body are joined: a copy is cheaper than a second packet."""

_DIGITS: Final = re.compile(r"[0-9]{1,15}")
_WITH_BODY: Final = ("POST", "PUT", "PATCH")
_AS_4XX: Final = {HTTPStatus.NOT_IMPLEMENTED: 405, HTTPStatus.HTTP_VERSION_NOT_SUPPORTED: 400}

Answer: TypeAlias = Callable[[str, str, Mapping[str, str], memoryview], Reply]
"""From method, target, headers (names in lower case) and body."""

Connection: TypeAlias = socket.socket | tuple[bytes, socket.socket]
"""As `socketserver` has it; always a stream socket here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointLimits:
    """Bounds on what clients may take."""

    body_bytes: int = 64 * 1024**2
    bodies_bytes: int = 128 * 1024**2
    """All bodies that are being read or answered, together."""

    body_timeout_s: float = 30.0
    """How long a client may take to send a body."""

    idle_s: float = 75.0
    """How long a connection may be silent."""

    connections: int = 64

    def __post_init__(self) -> None:
        if self.body_bytes > MAX_BODY_BYTES:
            raise ValueError(f"body_bytes is over {MAX_BODY_BYTES}")


class RefusedRequestError(Exception):
    """A request ends here. Never leaves this module.

    Args:
        reply: What the client hears before the connection is closed.
    """

    def __init__(self, reply: Reply) -> None:
        super().__init__()
        self.reply = reply


class Room:
    """What clients have taken of the limits."""

    def __init__(self, limits: EndpointLimits, clock: Clock) -> None:
        self.limits = limits
        self.clock = clock
        self._changed = threading.Condition()
        self._connections: set[socket.socket] = set()
        self._bodies_bytes = 0

    def admit(self, connection: socket.socket) -> bool:
        """Count a connection; False when there are too many."""
        with self._changed:
            if len(self._connections) >= self.limits.connections:
                return False
            self._connections.add(connection)
            return True

    def dismiss(self, connection: socket.socket) -> None:
        """Forget a connection."""
        with self._changed:
            self._connections.discard(connection)
            self._changed.notify_all()

    def empty(self, grace_s: float) -> None:
        """End all connections: idle ones now, busy ones when they have been answered."""
        for how, wait_s in ((socket.SHUT_RD, grace_s), (socket.SHUT_RDWR, 1.0)):
            with self._changed:
                for connection in self._connections:
                    with contextlib.suppress(OSError):
                        connection.shutdown(how)
                self._changed.wait_for(lambda: not self._connections, timeout=wait_s)

    @contextlib.contextmanager
    def body(self, length: int) -> Iterator[None]:
        """Hold room for a body.

        Raises:
            RefusedRequestError: There is none.
        """
        with self._changed:
            if self._bodies_bytes + length > self.limits.bodies_bytes:
                raise RefusedRequestError(
                    Reply.refusal(503, "too many large requests at once", RETRY_AFTER)
                )
            self._bodies_bytes += length
        try:
            yield
        finally:
            with self._changed:
                self._bodies_bytes -= length


class HttpServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """A thread per connection, up to a number.

    Args:
        where: Host and port, or the path of a Unix socket.
        answer: Answers requests.
        room: What clients may take.

    Raises:
        OSError: The address cannot be used.
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, where: tuple[str, int] | str, answer: Answer, room: Room) -> None:
        if isinstance(where, str):
            self.address_family = socket.AF_UNIX
        elif ":" in where[0]:
            self.address_family = socket.AF_INET6
        self.answer = answer
        self.room = room
        super().__init__(where, _Handler)  # type: ignore[arg-type]  # paths are addresses too

    def verify_request(
        self,
        request: Connection,
        client_address: object,  # noqa: ARG002 - the base class's signature
    ) -> bool:
        """Take a connection, or say that there are too many."""
        if not isinstance(request, socket.socket) or self.room.admit(request):
            return True
        reply = Reply.refusal(503, "too many connections", RETRY_AFTER)
        with contextlib.suppress(OSError):
            request.settimeout(LINGER_S)
            request.sendall(head_of(reply, closing=True) + reply.body)
        return False

    def shutdown_request(self, request: Connection) -> None:
        """Close a connection."""
        super().shutdown_request(request)
        if isinstance(request, socket.socket):
            self.room.dismiss(request)

    def handle_error(self, request: Connection, client_address: object) -> None:
        """Say nothing of clients that went away; whatever else fails was answered with a 500."""


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: HttpServer

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(self.server.room.limits.idle_s)
        if self.connection.family != socket.AF_UNIX:
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def handle_one_request(self) -> None:
        """Read one request and answer it, whatever its method."""
        try:
            self.raw_requestline = self.rfile.readline(MAX_LINE_BYTES + 1)
            if not self.raw_requestline:
                self.close_connection = True
            elif self.parse_request():
                self._answer()
        except OSError:  # the client went away or was silent for too long
            self.close_connection = True

    def parse_request(self) -> bool:
        """Read the request line and the header, also refusing what `http.server` lets pass."""
        self.command, self.requestline, self.close_connection = "", "", True
        if len(self.raw_requestline) > MAX_LINE_BYTES:
            self.send_error(HTTPStatus.REQUEST_URI_TOO_LONG)
            return False
        if not self.raw_requestline.strip():
            self.send_error(HTTPStatus.BAD_REQUEST, "an empty request line")
            return False
        if not super().parse_request():
            return False
        if self.request_version == "HTTP/0.9" or self.headers.defects:
            self.send_error(HTTPStatus.BAD_REQUEST, "a malformed request line or header")
            return False
        return True

    def send_error(self, code: int, message: str | None = None, *_: object) -> None:
        """Answer what `http.server` found malformed."""
        status = HTTPStatus(code)
        self._refuse(Reply.refusal(_AS_4XX.get(status, status), message or status.phrase))

    def handle_expect_100(self) -> bool:
        """Let a client send its body, or tell it before it does that it need not."""
        try:
            self._body_length()
        except RefusedRequestError as exc:
            self._refuse(exc.reply)
            return False
        return super().handle_expect_100()

    def _answer(self) -> None:
        room = self.server.room
        try:
            length = self._body_length()
            with room.body(length):
                body = self._read_body(length)
                headers = {name.lower(): value for name, value in self.headers.items()}
                self._send(self._ask(headers, body))
        except RefusedRequestError as exc:
            self._refuse(exc.reply)

    def _ask(self, headers: Mapping[str, str], body: memoryview) -> Reply:
        try:
            return self.server.answer(self.command, self.path, headers, body)
        except Exception as exc:  # noqa: BLE001 - a client must hear of a fault of ours
            return Reply.refusal(500, f"the endpoint failed: {type(exc).__name__}")

    def _body_length(self) -> int:
        """Return the length of the body as announced.

        Raises:
            RefusedRequestError: It is not announced as it must be, or is too long.
        """
        if "Transfer-Encoding" in self.headers:
            raise RefusedRequestError(
                Reply.refusal(411, "chunked bodies are not taken: announce the length")
            )
        lengths = self.headers.get_all("Content-Length", [])
        if not lengths and self.command in _WITH_BODY:
            raise RefusedRequestError(Reply.refusal(411, "Content-Length is missing"))
        if not lengths:
            return 0
        if len(lengths) > 1 or _DIGITS.fullmatch(lengths[0]) is None:
            raise RefusedRequestError(Reply.refusal(400, "Content-Length is not one number"))
        limit = self.server.room.limits.body_bytes
        if int(lengths[0]) > limit:
            raise RefusedRequestError(Reply.refusal(413, f"the body is over {limit} bytes"))
        return int(lengths[0])

    def _read_body(self, length: int) -> memoryview:
        """Read the body.

        Raises:
            RefusedRequestError: It did not come in time.
            ConnectionResetError: The client went away.
        """
        limits, clock = self.server.room.limits, self.server.room.clock
        deadline_s = clock.monotonic_s() + limits.body_timeout_s
        body = bytearray()
        try:
            while len(body) < length:
                self.connection.settimeout(max(deadline_s - clock.monotonic_s(), 0.001))
                block = self.rfile.read1(min(length - len(body), READ_BYTES))
                if not block:
                    raise ConnectionResetError
                body += block
        except TimeoutError:
            raise RefusedRequestError(
                Reply.refusal(408, f"the body did not come within {limits.body_timeout_s:g} s")
            ) from None
        self.connection.settimeout(limits.idle_s)
        return memoryview(body)

    def _send(self, reply: Reply) -> None:
        head = head_of(reply, closing=self.close_connection)
        body = b"" if self.command == "HEAD" else reply.body
        if len(body) <= JOINED_BYTES:
            self.wfile.write(head + body)
        else:
            self.wfile.write(head)
            self.wfile.write(body)

    def _refuse(self, reply: Reply) -> None:
        """Answer before the request was read to its end, and close."""
        self.close_connection = True
        self._send(reply)
        clock = self.server.room.clock
        deadline_s = clock.monotonic_s() + LINGER_S
        with contextlib.suppress(OSError, ValueError):
            self.connection.shutdown(socket.SHUT_WR)
            while (left_s := deadline_s - clock.monotonic_s()) > 0:
                self.connection.settimeout(left_s)
                if not self.connection.recv(READ_BYTES):
                    return


def head_of(reply: Reply, *, closing: bool) -> bytes:
    """Return the status line and the header of an answer."""
    lines = [
        f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}",
        f"Content-Length: {len(reply.body)}",
        f"Connection: {'close' if closing else 'keep-alive'}",
        *(f"{name}: {value}" for name, value in reply.headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", errors="replace")
