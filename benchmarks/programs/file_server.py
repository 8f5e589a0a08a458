"""The fastest server of a file that there is: `file_server.py FILE...`, one port for each file.

Whoever connects gets the file by sendfile, then the end of the connection. It prints its ports in
one line and ends with its input.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from pathlib import Path


def serve(server: socket.socket, path: Path) -> None:
    """Give everybody who connects a file.

    Args:
        server: Listens.
        path: The file.
    """
    while True:
        sock, _ = server.accept()
        threading.Thread(target=give, args=(sock, path), daemon=True).start()


def give(sock: socket.socket, path: Path) -> None:
    """Send a file and close the connection.

    Args:
        sock: To the client, which may end it.
        path: The file.
    """
    with sock, path.open("rb") as file, contextlib.suppress(OSError):
        sock.sendfile(file)


servers = [socket.create_server(("127.0.0.1", 0), backlog=512) for _ in sys.argv[1:]]
for each, name in zip(servers, sys.argv[1:], strict=True):
    threading.Thread(target=serve, args=(each, Path(name)), daemon=True).start()
print(*(each.getsockname()[1] for each in servers), flush=True)
sys.stdin.read()
os._exit(0)
