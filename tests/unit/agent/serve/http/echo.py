"""An endpoint without a worker behind, and clients that speak to it in bytes."""

from __future__ import annotations

import json
import socket
import threading
from typing import Final, Self

from agent.serve.answered import Listener
from agent.serve.frames import Reply
from agent.serve.http.endpoint import Endpoint
from agent.serve.pool import Prepared
from agent.serve.routes import InferenceCall
from tests.simulators.patience import PATIENCE_S

INFER: Final = "/v2/models/digits/infer"
HOST: Final = b"Host: x\r\n"
INDEX_REQUEST: Final = b"GET /v2 HTTP/1.1\r\n" + HOST + b"\r\n"


class Echo:
    """Answers with the body that it was asked."""

    active: Prepared | None = None
    kept: Prepared | None = None
    is_idle = True
    is_ready = True

    def __init__(self) -> None:
        self.calls: list[InferenceCall] = []
        self.gate = threading.Event()
        self.gate.set()
        self.fault: Exception | None = None

    def listen(self, listener: Listener) -> None:
        """Tell nobody: nothing is counted."""

    def handle(self, call: InferenceCall) -> Reply:
        self.calls.append(call)
        self.gate.wait(PATIENCE_S)
        if self.fault is not None:
            raise self.fault
        return Reply(status=200, headers={"Content-Type": "text/plain"}, body=call.body)


def port_of(endpoint: Endpoint) -> int:
    return int(endpoint.address.rpartition(":")[2])


def send(endpoint: Endpoint, data: bytes, *, hang_up: bool = True) -> bytes:
    """Send bytes; return what comes until the other side closes."""
    with socket.create_connection(("127.0.0.1", port_of(endpoint)), timeout=PATIENCE_S) as sock:
        sock.sendall(data)
        if hang_up:
            sock.shutdown(socket.SHUT_WR)
        answer = b""
        while block := sock.recv(65536):
            answer += block
        return answer


def post(body: bytes, *headers: str, length: int | None = None) -> bytes:
    """Return a request for inference."""
    lines = [f"POST {INFER} HTTP/1.1", "Host: x", f"Content-Length: {length or len(body)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def assert_refused(answer: bytes, status: int) -> None:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert status_of(answer) == status
    assert b"Connection: close" in head
    assert set(json.loads(body)) == {"error"}


class Held:
    """Connections to an endpoint that are closed at the end."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._where = ("127.0.0.1", port_of(endpoint))
        self.sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for sock in self.sockets:
            sock.close()

    def send(
        self, content: bytes, *, answered: bool = False, room_bytes: int | None = None
    ) -> socket.socket:
        """Send bytes; let no more than `room_bytes` of the answer wait to be read, if it is set."""
        sock = socket.socket()
        self.sockets.append(sock)
        sock.settimeout(PATIENCE_S)
        if room_bytes is not None:  # before it connects: the kernel lets it grow otherwise
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room_bytes)
        sock.connect(self._where)
        sock.sendall(content)
        if answered:
            assert status_of(sock.recv(1000)) == 200
        return sock
