"""A server on loopback that sends what a test says, byte for byte."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import TypeAlias

Answering: TypeAlias = Callable[[socket.socket, bytes], bool | None]
"""Answers a request, and returns whether the connection goes on."""


class RawServer:
    """Takes connections, and leaves each request to the test.

    Args:
        answer: Answers one.
    """

    def __init__(self, answer: Answering) -> None:
        self.answer = answer
        self.connections = 0
        self.requests: list[bytes] = []
        self.port = 0
        self.ended = threading.Event()

    @contextlib.contextmanager
    def running(self) -> Iterator[RawServer]:
        """Serve as long as the block."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
            thread = threading.Thread(target=self._serve, args=(listener,))
            thread.start()
            try:
                yield self
            finally:
                self.ended.set()
                with contextlib.suppress(OSError):
                    listener.shutdown(socket.SHUT_RDWR)
                thread.join()

    def url(self, path: str) -> str:
        """Return a link."""
        return f"http://127.0.0.1:{self.port}{path}"

    def _serve(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listener.accept()
                self.connections += 1
                with sock, contextlib.suppress(OSError):
                    self._converse(sock)

    def _converse(self, sock: socket.socket) -> None:
        goes_on: bool | None = True
        while goes_on:
            request = b""
            while not request.endswith(b"\r\n\r\n"):
                if not (block := sock.recv(4096)):
                    return
                request += block
            self.requests.append(request)
            goes_on = self.answer(sock, request)


def saying(*answers: bytes) -> Answering:
    """Return what gives one answer after another, and ends the connection after the last."""
    rest = list(answers)

    def answer(sock: socket.socket, _request: bytes) -> bool:
        sock.sendall(rest.pop(0))
        return bool(rest)

    return answer
