"""Gives blobs to other devices of the site, in threads of the supervisor.

```
GET /blobs/{sha256}?{link}    the blob, or the part that `Range` names
```

Rules:
- The link is checked before any file is looked at: nobody without one learns which blobs are here.
- The kernel moves the bytes (`sendfile`), a block at a time and no faster than the settings allow:
  this process has next to nothing to do, and inference does not wait for it.
- A device that takes a block too slowly loses its connection, and so does one whose link expires.
- A file that is removed is not sent any further: as long as it is open it takes its storage.
- Each request counts like some KiB at least, in turns: thousands of small ones cost little.
- No link is written down anywhere.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import socketserver
import sys
import threading
from collections.abc import Callable
from typing import Final

import msgspec

from agent import socket_server
from agent.errors import PeersError
from agent.peers.held import Held, HeldBlobs
from agent.peers.limits import BLOCK_BYTES, Limits, Visitors
from agent.peers.links import CheckedLinks
from agent.peers.pace import Pace
from agent.peers.requests import RETRY_AFTER, Asked, asked_for, part_of, read_head, refused
from agent.peers.settings import Address
from agent.serve.http.request import Head, Incoming, RefusedRequestError
from agent.timed_socket import PolledSocket
from wire.byte_ranges import Part
from wire.clock import Clock
from wire.errors import SignatureError
from wire.trust.peer_links import PeerLink
from wire.trust.root import Trust

LINGER_S: Final = 1.0
"""After a refusal, so that a client that still sends can receive it."""

CROWD_S: Final = 0.01
"""Rest after a connection that is one too many: whoever opens thousands costs little time."""

CROWDED: Final = refused(RefusedRequestError(503, "too many connections", RETRY_AFTER))
"""For a connection that is one too many: without an answer its device would be taken for dead."""


class Rights(msgspec.Struct, frozen=True, kw_only=True):
    """What decides whether a request is answered with a blob."""

    device: str
    """This device."""

    trust: Trust
    """Who may sign links."""

    blobs: HeldBlobs
    is_coming: Callable[[str], bool] = lambda _sha256: False
    """Tells whether a blob is being fetched, and not from devices that wait themselves."""

    tired: Callable[[], str] = lambda: ""
    """Returns why the device should not be loaded now; empty if it may be."""

    sent: Callable[[int], None] = lambda _size: None
    """Takes how much was sent."""

    failed: Callable[[str], None] = lambda _kind: None
    """Takes the kind of a fault of ours that nobody foresaw."""


class PeerServer:
    """Listens, and serves each connection in a thread, up to a limit.

    Args:
        where: IP address and port; 0 takes a free port.
        rights: What decides.
        limits: The bounds.
        clock: For deadlines and links.
    """

    def __init__(self, where: Address, rights: Rights, limits: Limits, clock: Clock) -> None:
        self._where = where
        self._rights = rights
        self._limits = limits
        self._clock = clock
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> Address | None:
        """Where it listens; None while it does not."""
        if self._server is None:
            return None
        host, port = self._server.server_address[:2]
        return Address(str(host), port)

    def start(self) -> None:
        """Listen and serve.

        Raises:
            PeersError: The address cannot be used.
        """
        try:
            self._server = _Server(self._where, self._rights, self._limits, self._clock)
        except OSError as exc:
            reason = (exc.strerror or str(exc)).lower()
            raise PeersError(
                f"cannot listen for other devices on {self._where}: {reason}",
                remedy="set an address of this device and a free port as peers.listen",
            ) from exc
        self._thread = socket_server.serve(self._server, "peers")

    def stop(self) -> None:
        """Stop listening and end all connections. Calling it twice is safe."""
        server, self._server = self._server, None
        if server is not None and self._thread is not None:
            server.stopping.set()
            server.pace.end()
            server.visitors.end_all()
            socket_server.end(server, self._thread)


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 16

    def __init__(self, where: Address, rights: Rights, limits: Limits, clock: Clock) -> None:
        self.rights = rights
        self.limits = limits
        self.clock = clock
        self.visitors = Visitors(limits)
        self.pace = Pace(limits.bytes_per_s, clock)
        self.links = CheckedLinks(rights.trust, rights.device)
        self.stopping = threading.Event()
        if ":" in where.host:
            self.address_family = socket.AF_INET6
        super().__init__((where.host, where.port), _Handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:  # [::] is all addresses, also those of IPv4
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def verify_request(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> bool:
        address = client_address[0] if isinstance(client_address, tuple) else ""
        if isinstance(request, socket.socket):
            if self.visitors.admit(request, str(address)):
                return True
            with contextlib.suppress(OSError):  # whoever does not take it at once gets none
                request.settimeout(0)
                request.send(CROWDED)
                request.recv(self.limits.head_bytes)  # else the end of the connection is a reset
        self.stopping.wait(CROWD_S)
        return False

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        if isinstance(request, socket.socket):  # before its number can be another connection's
            self.visitors.leave(request)
        super().shutdown_request(request)

    def handle_error(
        self,
        request: object,  # noqa: ARG002 - the base class's signature
        client_address: object,  # noqa: ARG002 - as above
    ) -> None:
        """Tell of a fault of ours by its name alone: its text might hold a link."""
        self.rights.failed(type(sys.exception()).__name__)


class _Handler(socketserver.BaseRequestHandler):
    """One connection."""

    request: socket.socket
    server: _Server

    def setup(self) -> None:
        self._method = ""
        self._has_link = False
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def handle(self) -> None:
        """Answer one request after another, until one is refused or the connection ends."""
        limits = self.server.limits
        incoming = Incoming(PolledSocket(self.request), self.server.clock)
        with contextlib.suppress(OSError):  # the client went away, or was silent for too long
            try:
                while incoming.waits_for_request(limits.idle_s):
                    if not self._answer(incoming):
                        return
            except RefusedRequestError as exc:
                self.server.stopping.wait(limits.busy_s if self._has_link else limits.refusal_s)
                self.request.settimeout(LINGER_S)
                self.request.sendall(refused(exc, bodiless=self._method == "HEAD"))
                self.request.shutdown(socket.SHUT_WR)
                incoming.ignore(LINGER_S)

    def _answer(self, incoming: Incoming) -> bool:
        """Answer the next request; tell whether another one may follow.

        Raises:
            RefusedRequestError: It is refused.
            OSError: The client went away.
        """
        server = self.server
        self._method, self._has_link = "", False
        head = read_head(incoming, server.limits.head_s, server.limits.head_bytes)
        self._method = head.method
        asked = asked_for(head)
        link = self._link(asked)
        self._has_link = True
        if why := server.rights.tired():
            raise RefusedRequestError(503, why)
        with server.rights.blobs.opened(asked.sha256) as held:
            if held is not None:
                return self._serve(held, asked, head, link)
        if server.rights.is_coming(asked.sha256):
            raise RefusedRequestError(503, "this blob is coming", RETRY_AFTER)
        raise RefusedRequestError(404, "this device does not have this blob")

    def _link(self, asked: Asked) -> PeerLink:
        """Check the link of a request.

        Raises:
            RefusedRequestError: It is not valid.
        """
        try:
            return self.server.links.check(asked.query, asked.sha256, self.server.clock.now_s())
        except SignatureError as exc:
            raise RefusedRequestError(403, exc.message) from exc

    def _serve(self, held: Held, asked: Asked, head: Head, link: PeerLink) -> bool:
        """Send what is asked for of a blob; tell whether all of it was sent.

        Raises:
            RefusedRequestError: Too many devices are being served, or there is no such part.
            OSError: The client went away, or is too slow.
        """
        written, part = part_of(head, asked.sha256, held.size_bytes)
        if not self.server.visitors.begin(link.device, self.request):
            raise RefusedRequestError(503, "others are being served", RETRY_AFTER)
        self.server.pace.look_again()  # an older connection of this device gives up its turn
        try:
            self.request.settimeout(self.server.limits.block_s)
            self.request.sendall(written)
            is_whole = self._send(held.file.fileno(), part, link)
        finally:
            self.server.visitors.end(link.device, self.request)
        return is_whole and head.keeps_alive

    def _send(self, file: int, part: Part, link: PeerLink) -> bool:
        """Send a part of a file; tell whether all of it was sent.

        Raises:
            OSError: The client went away, or is too slow.
        """
        server = self.server
        first, least_bytes = part.first, server.limits.least_bytes
        while True:
            size_bytes = min(BLOCK_BYTES, part.end - first)
            if not server.pace.turn(
                link.device,
                max(size_bytes, least_bytes),
                lambda: server.visitors.is_present(link.device, self.request),
            ):
                return False
            if server.clock.now_s() >= link.until_s:
                return False  # the device goes on from here with a new link
            if os.fstat(file).st_nlink == 0:
                return False  # its package was removed
            self._send_block(file, first, size_bytes)
            server.rights.sent(size_bytes)
            first, least_bytes = first + size_bytes, 0
            if first >= part.end:
                return True

    def _send_block(self, file: int, offset: int, size_bytes: int) -> None:
        """Send a block.

        Raises:
            TimeoutError: The client is too slow.
            OSError: The client went away, or the file is too short.
        """
        clock = self.server.clock
        deadline_s = clock.monotonic_s() + self.server.limits.block_s
        ready = select.poll()
        ready.register(self.request, select.POLLOUT)
        while size_bytes:
            left_s = deadline_s - clock.monotonic_s()
            if left_s <= 0 or not ready.poll(left_s * 1000):
                raise TimeoutError
            try:
                sent = os.sendfile(self.request.fileno(), file, offset, size_bytes)
            except BlockingIOError:
                continue
            if sent == 0:
                raise OSError("the file has become shorter")
            offset += sent
            size_bytes -= sent
