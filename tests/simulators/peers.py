"""A device that serves others of its site, on loopback: its storage and its sockets are real."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from agent.install.fetch.sources import Coming
from agent.install.slots import Slots
from agent.peers.held import HeldBlobs
from agent.peers.limits import Limits
from agent.peers.server import PeerServer, Rights
from agent.peers.settings import Address
from tests.simulators.packages import DIRECTOR_KEY, TRUST, SignedPackage
from tests.simulators.patience import PATIENCE_S, until
from wire.clock import Clock, SystemClock
from wire.trust.envelope import SigningKey
from wire.trust.peer_links import peer_path

HOST = "127.0.0.1"
FAST = Limits(at_once=2, bytes_per_s=2**40, refusal_s=0.0, busy_s=0.0)


class Neighbour:
    """One device that serves.

    Args:
        directory: Its state directory.
        device: Its name.
        limits: What others may take.
        clock: Its clock.
    """

    def __init__(
        self,
        directory: Path,
        device: str = "cam-1",
        limits: Limits = FAST,
        clock: Clock | None = None,
    ) -> None:
        self.device = device
        self.clock = clock or SystemClock()
        self.slots = Slots(directory)
        self.coming = Coming()
        self.why_tired = ""
        self.sent_bytes = 0
        self.failures: list[str] = []
        self.rights = Rights(
            device=device,
            trust=TRUST,
            blobs=HeldBlobs(self.slots, TRUST),
            is_coming=lambda sha256: sha256 == self.coming.sha256,
            tired=self._tired,
            sent=self._sent,
            failed=self.failures.append,
        )
        self.server = PeerServer(Address(HOST, 0), self.rights, limits, self.clock)

    def _tired(self) -> str:
        if self.why_tired == "broken":
            raise LookupError(self.why_tired)
        return self.why_tired

    def _sent(self, size_bytes: int) -> None:
        self.sent_bytes += size_bytes

    def has_sent(self, size_bytes: int) -> None:
        """Wait until so much was counted: who receives it may know it before."""
        until(lambda: self.sent_bytes >= size_bytes, f"{size_bytes} bytes")
        assert self.sent_bytes == size_bytes

    @contextmanager
    def running(self) -> Iterator[Neighbour]:
        """Serve as long as the block."""
        self.server.start()
        try:
            yield self
        finally:
            self.server.stop()

    @property
    def port(self) -> int:
        """Where it listens."""
        address = self.server.address
        assert address is not None
        return address.port

    def put(self, made: SignedPackage) -> Path:
        """Have a whole package; return its directory."""
        directory = self.slots.directory(made.digest).parent.parent / "packages" / made.digest
        made.write_to(directory)
        return directory

    def path(
        self,
        sha256: str,
        *,
        device: str = "dev-1",
        key: SigningKey = DIRECTOR_KEY,
        for_s: float = 600.0,
    ) -> str:
        """Return the path and the query of a link."""
        until_s = int(self.clock.now_s() + for_s)
        return peer_path(key, device=device, peer=self.device, sha256=sha256, until_s=until_s)

    def url(self, sha256: str, device: str = "dev-1") -> str:
        """Return a link."""
        return f"http://{HOST}:{self.port}{self.path(sha256, device=device)}"

    def connect(self, receive_bytes: int | None = None) -> socket.socket:
        """Return a connection to it, perhaps with little room for what has not been read."""
        sock = socket.socket()
        if receive_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.settimeout(PATIENCE_S)
        sock.connect((HOST, self.port))
        return sock

    def say(self, request: bytes) -> bytes:
        """Send bytes on a connection of their own, and return all that comes."""
        with self.connect() as sock:
            sock.sendall(request)
            return read_all(sock)


def get(target: str, *fields: str, method: str = "GET") -> bytes:
    """Return a request."""
    lines = [f"{method} {target} HTTP/1.1", "Host: x", *fields, "", ""]
    return "\r\n".join(lines).encode()


def read_all(sock: socket.socket) -> bytes:
    """Return what comes until the other side ends the connection."""
    content = bytearray()
    try:
        while block := sock.recv(256 * 1024):
            content += block
    except ConnectionResetError:
        pass
    return bytes(content)


def fault_of(answer: bytes) -> tuple[int, dict[str, str], dict[str, str]]:
    """Return the status, the fields and the fault of an answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    fields = dict(line.split(": ", 1) for line in lines)
    status = int(first.split()[1])
    return status, fields, msgspec.json.decode(body) if status >= 400 and body else {}
