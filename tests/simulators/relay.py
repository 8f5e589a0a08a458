"""A relay on loopback that keeps a copy of what passes: somebody who listens on the wire."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self

from tests.simulators.patience import PATIENCE_S, finished


class Relay:
    """Passes connections on to another port of loopback, for the length of a `with` block.

    Args:
        target: The port.
    """

    def __init__(self, target: int) -> None:
        self.seen = b""
        self._target = target
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_exc: object) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        finished(self._threads[0])
        for sock in self._open:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            finished(thread)
        for sock in (self._server, *self._open):
            sock.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._target), timeout=PATIENCE_S)
            self._open += [near, far]
            for source, sink in ((near, far), (far, near)):
                thread = threading.Thread(target=self._pass, args=(source, sink))
                thread.start()
                self._threads.append(thread)

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while block := source.recv(65536):
                self.seen += block
                sink.sendall(block)
            sink.shutdown(socket.SHUT_WR)
