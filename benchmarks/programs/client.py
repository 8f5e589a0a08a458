"""Asks a server again and again: `client.py PORT FILE`.

The file holds the whole request. Each line of its input says for how many seconds it is to ask, on
a new connection: servers close those that are silent meanwhile. It answers with the seconds that
each request took, as JSON.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path

BLOCK_BYTES = 1 << 18
HEAD_END = b"\r\n\r\n"


def received(sock: socket.socket) -> bytes:
    """Return the next bytes.

    Raises:
        SystemExit: The server closed the connection.
    """
    block = sock.recv(BLOCK_BYTES)
    if not block:
        raise SystemExit("the server closed the connection")
    return block


def ask(sock: socket.socket, request: bytes) -> None:
    """Send the request and read the whole answer.

    Raises:
        SystemExit: The server refused it.
    """
    sock.sendall(request)
    data = received(sock)
    end = data.find(HEAD_END)
    while end < 0:
        data += received(sock)
        end = data.find(HEAD_END)
    head = data[:end].lower()
    if not head.startswith(b"http/1.1 200"):
        raise SystemExit(repr(data[:500]))
    length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
    missing = end + len(HEAD_END) + length - len(data)
    while missing > 0:
        missing -= len(received(sock))


def main(port: int, request: bytes) -> None:
    """Ask for as long as each line of the input says."""
    for line in sys.stdin:
        taken = []
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end_s = time.perf_counter() + float(line)
            while (start_s := time.perf_counter()) < end_s:
                ask(sock, request)
                taken.append(time.perf_counter() - start_s)
        print(json.dumps(taken), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]).read_bytes())
