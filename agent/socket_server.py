"""Socket servers that sleep until a client connects and still stop at once.

`socketserver` notices a stop only when its poll interval is over: a short one wakes an idle device
for nothing, a long one delays the stop. Shutting the listening socket down wakes the loop instead.
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
    """Serve in a thread of its own.

    Args:
        server: It listens already; also one on a Unix socket.
        name: Of the thread.

    Returns:
        The thread, which runs.
    """
    thread = threading.Thread(
        target=server.serve_forever, args=(IDLE_POLL_S,), name=name, daemon=True
    )
    thread.start()
    return thread


def end(server: socketserver.TCPServer, thread: threading.Thread) -> None:
    """Stop serving, wait until the loop has ended, and close the listening socket.

    Args:
        server: As it was given to `serve`.
        thread: As `serve` gave it.
    """
    stopping = threading.Thread(target=server.shutdown, name="stop", daemon=True)
    stopping.start()
    # From now on the socket is readable for ever: the loop turns until it sees the stop.
    with contextlib.suppress(OSError):
        server.socket.shutdown(socket.SHUT_RDWR)
    stopping.join()
    thread.join()
    server.server_close()
