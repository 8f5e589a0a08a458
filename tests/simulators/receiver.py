"""A receiver of alerts on loopback: a real HTTP server that answers as a test says."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from controller.alert_settings import WebhookConfig
from controller.domain.alert_posts import (
    DELIVERY_HEADER,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    signature,
)

SECRET = "0123456789abcdef0123456789abcdef"
ACCEPTED = 204


@dataclass(frozen=True, slots=True)
class Post:
    """A post that came."""

    path: str
    delivery: str
    timestamp: str
    signature: str
    body: bytes

    @property
    def content(self) -> dict[str, Any]:
        """What it says, once its signature is right."""
        assert self.signature == signature(SECRET.encode(), self.timestamp, self.body)
        said: dict[str, Any] = json.loads(self.body)
        assert said["id"] == self.delivery
        return said

    @property
    def alerts(self) -> list[tuple[str, str, str]]:
        """The alerts that it tells: name, group and state."""
        return [(each["alert"], each["group"], each["state"]) for each in self.content["alerts"]]


@dataclass
class Receiver:
    """What came, and how it is answered."""

    port: int = 0
    posts: list[Post] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    """The statuses of the next answers; then `ACCEPTED`."""

    def config(self, directory: Path, name: str = "pager") -> WebhookConfig:
        """Return settings that name it, with a secret in a file."""
        secret = directory / f"{name}.secret"
        secret.write_text(f"{SECRET}\n")
        secret.chmod(0o600)
        return WebhookConfig(
            name=name, url=f"http://127.0.0.1:{self.port}/hooks/{name}?v=1",
            secret_file=str(secret), clear_text=True,
        )  # fmt: skip


@contextmanager
def running_receiver() -> Iterator[Receiver]:
    """Run a receiver for the length of a `with` block."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            said = self.headers
            post = Post(
                self.path, said[DELIVERY_HEADER], said[TIMESTAMP_HEADER], said[SIGNATURE_HEADER],
                body,
            )  # fmt: skip
            receiver.posts.append(post)
            status = receiver.answers.pop(0) if receiver.answers else ACCEPTED
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
