"""A registry of a few lines that serves one package, and misbehaves where a test says so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from packager.registry.artifact import EMPTY, manifest_bytes
from tests.simulators.packages import SignedPackage
from tests.simulators.patience import finished
from wire.codec import sha256_hex

REPOSITORY: Final = "/v2/team/digits"
PIECE: Final = b"x" * 65536


@dataclass(frozen=True)
class Asked:
    """A request that came."""

    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case."""


Answer = Callable[["Handler"], None]


@dataclass
class HostileRegistry:
    """What it serves, what it was asked for, and what it does instead of serving."""

    host: str = ""
    contents: dict[str, bytes] = field(default_factory=dict)
    """By path."""

    instead: dict[str, Answer] = field(default_factory=dict)
    """By method and path, such as `GET /v2/`; a path alone counts for all methods."""

    asked: list[Asked] = field(default_factory=list)
    wants: str = ""
    """The challenge for whoever shows no credentials."""

    sent_bytes: int = 0

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    def serve_package(self, package: SignedPackage, manifest: bytes | None = None) -> bytes:
        """Hold a package under the tag `1`, and return its manifest."""
        content = manifest or manifest_bytes(package.envelope, package.index)
        for name in ("1", f"sha256:{sha256_hex(content)}"):
            self.contents[f"{REPOSITORY}/manifests/{name}"] = content
        for blob in (EMPTY, *package.blobs):
            self.contents[blob_path(blob)] = blob
        return content

    def paths(self, method: str = "GET") -> list[str]:
        return [asked.path for asked in self.asked if asked.method == method]


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        """Say nothing."""

    def do_GET(self) -> None:
        registry, path = self.server.registry, self.path.partition("?")[0]
        headers = {name.lower(): value for name, value in self.headers.items()}
        registry.asked.append(Asked(self.command, self.path, headers))
        # The body of a form is read, so that the connection can go on.
        self.rfile.read(int(headers.get("content-length", 0)))
        instead = registry.instead.get(f"{self.command} {path}", registry.instead.get(path))
        if instead is not None:
            instead(self)
        elif registry.wants and "authorization" not in headers:
            self.answer(401, b"", {"WWW-Authenticate": registry.wants})
        elif path in registry.contents:
            self.serve(registry.contents[path], headers.get("range", ""))
        else:
            self.answer(404, b'{"errors":[{"code":"UNKNOWN","message":"\\u001b[31mno"}]}')

    do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815 - names of http.server

    def serve(self, content: bytes, wanted: str) -> None:
        if wanted:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            self.answer(206, content[start:])
        else:
            self.answer(200, content)

    def answer(
        self, status: int, content: bytes = b"", headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def answer_without_end(self) -> None:
        """Send for as long as somebody reads."""
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        while True:
            self.wfile.write(PIECE)
            self.server.registry.sent_bytes += len(PIECE)

    def break_off_after(self, content: bytes, size_bytes: int) -> None:
        """Promise a content, and end in the middle of it."""
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[:size_bytes])
        self.close_connection = True


class Server(ThreadingHTTPServer):
    """The server of one registry."""

    registry: HostileRegistry

    def handle_error(self, *_: object) -> None:
        """Let a client go that has had enough."""


def blob_path(content: bytes) -> str:
    return f"{REPOSITORY}/blobs/sha256:{sha256_hex(content)}"


def leads_to(url: str) -> Answer:
    """Return an answer that leads elsewhere."""
    return lambda handler: handler.answer(307, b"", {"Location": url})


@contextmanager
def hostile_registry() -> Iterator[HostileRegistry]:
    """Run one on loopback, in this process."""
    registry = HostileRegistry()
    with Server(("127.0.0.1", 0), Handler) as server:
        server.registry = registry
        registry.host = f"127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield registry
        finally:
            server.shutdown()
            finished(thread)
