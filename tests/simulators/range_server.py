"""A server of blobs by HTTP, on loopback, that may also be wrong in every way."""

from __future__ import annotations

import contextlib
import re
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Literal, NamedTuple

from wire.codec import sha256_hex

Manner = Literal[
    "right",
    "whole",  # it knows no ranges
    "refuses",
    "fails",
    "other bytes",
    "other range",
    "ends early",
    "redirects",
    "more",
    "no http",
    "silent",
]


SILENT: Final = frozenset({"no http", "silent"})


class _Answer(NamedTuple):
    status: int
    data: bytes = b""
    headers: dict[str, str] | None = None
    sent_bytes: int | None = None


class RangeServer:
    """Serves blobs below `/blobs/`.

    Args:
        manner: How it answers; a test may change it.
    """

    def __init__(self, manner: Manner = "right") -> None:
        self.manner: Manner = manner
        self.blobs: dict[str, bytes] = {}
        self.asked: list[tuple[str, str]] = []
        """Path with its query, and the range, of each request."""

        self.refuses: set[str] = set()
        """Queries that are refused."""

        self.port, self.scheme = 0, "http"
        self.release = threading.Event()
        """Ends the silence of a silent one."""

    def add(self, *contents: bytes) -> None:
        """Have some blobs."""
        self.blobs |= {sha256_hex(content): content for content in contents}

    def url(self, sha256: str, query: str = "key=1") -> str:
        """Return a link to a blob."""
        return f"{self.scheme}://127.0.0.1:{self.port}/blobs/{sha256}?{query}"

    @contextlib.contextmanager
    def running(self, tls: ssl.SSLContext | None = None) -> Iterator[RangeServer]:
        """Serve as long as the block."""
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                server.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None:
                """Say nothing of clients that do not trust it, or have gone."""

        with Server(("127.0.0.1", 0), Handler) as http:
            http.daemon_threads = True
            if tls is not None:
                http.socket = tls.wrap_socket(http.socket, server_side=True)
            self.scheme = "http" if tls is None else "https"
            self.port = http.server_address[1]
            thread = threading.Thread(target=http.serve_forever, args=(0.05,))
            thread.start()
            try:
                yield self
            finally:
                self.release.set()
                http.shutdown()
                thread.join()

    def answer(self, asked: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        path, _, query = asked.path.partition("?")
        wanted = asked.headers.get("Range", "")
        self.asked.append((asked.path, wanted))
        blob = self.blobs.get(path.removeprefix("/blobs/"))
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", wanted)
        if blob is None or found is None:
            _send(asked, _Answer(404))
            return
        start, end = int(found[1]), min(int(found[2]) + 1, len(blob))
        data = blob[start:end]
        headers = {"Content-Range": f"bytes {start}-{end - 1}/{len(blob)}"}
        if query in self.refuses:
            _send(asked, _Answer(403))
            return
        if self.manner in SILENT:
            if self.manner == "silent":
                self.release.wait()
            else:
                asked.wfile.write(b"SSH-2.0-nothing\r\n")
            asked.close_connection = True
            return
        where = {"Location": f"http://127.0.0.1:{self.port}/elsewhere"}
        another = {"Content-Range": f"bytes 0-{end}/{len(blob)}"}
        answers: dict[str, _Answer] = {
            "right": _Answer(206, data, headers),
            "whole": _Answer(200, blob),
            "refuses": _Answer(403),
            "fails": _Answer(503),
            "other bytes": _Answer(206, bytes(len(data)), headers),
            "other range": _Answer(206, data, another),
            "ends early": _Answer(206, data, headers, sent_bytes=len(data) // 2),
            "redirects": _Answer(302, headers=where),
            "more": _Answer(206, data + bytes(1000), headers),
        }
        _send(asked, answers[self.manner])


def _send(asked: BaseHTTPRequestHandler, answer: _Answer) -> None:
    asked.send_response(answer.status)
    for name, value in (answer.headers or {}).items():
        asked.send_header(name, value)
    asked.send_header("Content-Length", str(len(answer.data)))
    asked.end_headers()
    with contextlib.suppress(OSError):  # the client has gone
        asked.wfile.write(answer.data[: answer.sent_bytes])
    if answer.sent_bytes is not None:
        asked.close_connection = True
