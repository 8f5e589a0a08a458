"""A file over bare TLS: `tls_file_server.py FILE CERT KEY`; whoever connects gets it.

It prints its port and ends with its input.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import sys
import threading
from pathlib import Path

BLOCK_BYTES = 1024 * 1024


def give(sock: socket.socket, tls: ssl.SSLContext, path: Path) -> None:
    """Send a file and close the connection.

    Args:
        sock: To the client, which may end it.
        tls: Certificate and key.
        path: The file.
    """
    with contextlib.suppress(OSError), sock, tls.wrap_socket(sock, server_side=True) as secured:
        secured.recv(BLOCK_BYTES)
        with path.open("rb", buffering=0) as file:
            while block := file.read(BLOCK_BYTES):
                secured.sendall(block)


def serve(server: socket.socket, tls: ssl.SSLContext, path: Path) -> None:
    """Give everybody who connects the file.

    Args:
        server: Listens.
        tls: Certificate and key.
        path: The file.
    """
    while True:
        sock, _ = server.accept()
        threading.Thread(target=give, args=(sock, tls, path), daemon=True).start()


context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[2], sys.argv[3])
listening = socket.create_server(("127.0.0.1", 0))
arguments = (listening, context, Path(sys.argv[1]))
threading.Thread(target=serve, args=arguments, daemon=True).start()
print(listening.getsockname()[1], flush=True)
sys.stdin.read()
os._exit(0)
