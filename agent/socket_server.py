"""Socket servers that sleep until a client connects and still stop at once.

`socketserver` notices a stop only at the end of its poll interval: a short interval wakes an idle
device for nothing, a long one delays the stop. So `end` wakes the loop with a shutdown of the
listening socket.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from typing import Final

IDLE_POLL_S: Final = 60.0
"""How long the loop sleeps without a client."""


def serve(server: socketserver.TCPServer, name: str) -> threading.Thread:
    """Serve in a new thread.

    Args:
        server: The server, which listens already; it may be on a Unix socket.
        name: Name of the thread.

    Returns:
        The running thread.
    """
    thread = threading.Thread(
        target=server.serve_forever, args=(IDLE_POLL_S,), name=name, daemon=True
    )
    thread.start()
    return thread


def end(server: socketserver.TCPServer, thread: threading.Thread) -> None:
    """Stop serving, wait until the loop has ended, and close the listening socket.

    Args:
        server: The server that `serve` got.
        thread: The thread that `serve` returned.
    """
    stopping = threading.Thread(target=server.shutdown, name="stop", daemon=True)
    stopping.start()
    # From now on the socket is always readable: the loop runs until it sees the stop.
    with contextlib.suppress(OSError):
        server.socket.shutdown(socket.SHUT_RDWR)
    stopping.join()
    thread.join()
    server.server_close()
