"""What an endpoint in Python costs at least: `floor_endpoint.py MODEL one|two`.

It reads a whole request with one receive, checks nothing and understands nothing: the input is the
end of what came. `one` runs the model in the process of the server; `two` in a second one, to which
it hands the bytes on, as a supervisor does. Prints its port, and ends with its input.
"""

from __future__ import annotations

import math
import os
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.servers.models import session_of

BLOCK_BYTES = 1 << 16


def runner(model: bytes) -> Callable[[bytes], bytes]:
    """Return what answers a request."""
    session = session_of(model)
    spec = session.get_inputs()[0]
    shape = [1, *spec.shape[1:]]
    size = 4 * math.prod(shape)

    def run(request: bytes) -> bytes:
        tensor = np.frombuffer(request[-size:], np.float32).reshape(shape)
        content = np.asarray(session.run(None, {spec.name: tensor})[0]).tobytes()
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content) + content

    return run


def in_another_process(model: bytes) -> Callable[[bytes], bytes]:
    """Return what hands a request on to a process that answers it."""
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        answer = runner(model)
        while request := theirs.recv(BLOCK_BYTES):
            theirs.send(answer(request))
        os._exit(0)
    theirs.close()

    def hand_on(request: bytes) -> bytes:
        ours.send(request)
        return ours.recv(BLOCK_BYTES)

    return hand_on


def serve(listener: socket.socket, run: Callable[[bytes], bytes]) -> None:
    """Answer one connection after another."""
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection:
            while request := connection.recv(BLOCK_BYTES):
                connection.send(run(request))


def main(model: bytes, how: str) -> None:
    """Serve until the input ends."""
    run = runner(model) if how == "one" else in_another_process(model)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        threading.Thread(target=serve, args=(listener, run), daemon=True).start()
        sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]).read_bytes(), sys.argv[2])
