"""The clients of the field see what must not be: a check that cannot fail would prove nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest

from tests.field.clients import Application, Tally
from tests.field.releases import Releases
from tests.simulators.packages import RELEASE_KEY
from tests.simulators.patience import until

RIGHT = np.arange(6, dtype="<f4")
GOOD = {"release": "digits:1.0.0", "variant": "best"}


def answer(parameters: object = GOOD, numbers: bytes = RIGHT.tobytes()) -> tuple[bytes, int]:
    head = json.dumps({"parameters": parameters}).encode()
    return head + numbers, len(head)


@contextmanager
def endpoint(
    status: int, body: bytes, head_length: int | None, *, silent: bool = False
) -> Iterator[int]:
    """Answer every second request as the first, and the others with this."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        asked = 0

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            Handler.asked += 1
            if Handler.asked % 2:
                self.reply(200, *answer())
            elif silent:
                self.close_connection = True
            else:
                self.reply(status, body, head_length)

        def reply(self, status: int, body: bytes, head_length: int | None) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            if head_length is not None:
                self.send_header("Inference-Header-Content-Length", str(head_length))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def seen(port: int, tmp_path: Path) -> Tally:
    """Ask until both kinds of answers came, and return what was counted."""
    tally = Tally()
    releases = Releases(tmp_path, RELEASE_KEY, answers={("digits:1.0.0", "best"): RIGHT})
    client = Application("dev", port, releases, tally, lambda: 0.0)
    client.start()
    until(lambda: tally.counts.total() >= 4, "four answers")
    assert client.stop(), "it asked until it was told to stop"
    assert tally.counts["right"] >= 2
    return tally


@pytest.mark.few(4)
@pytest.mark.parametrize(("body", "head_length"), [
    answer(numbers=b"cut"),
    answer(numbers=RIGHT[:3].tobytes()),
    answer(numbers=(RIGHT + 1).tobytes()),
    answer(numbers=np.full(6, np.nan, "<f4").tobytes()),
    answer({"release": "digits:2.0.0", "variant": "best"}),
    answer({"release": "digits:1.0.0"}),
    answer(None),
    (b"not JSON", 8),
    (answer()[0], None),
    (b"", 0),
])  # fmt: skip
def test_an_answer_that_is_not_that_of_a_good_release_is_seen(
    body: bytes, head_length: int | None, tmp_path: Path
) -> None:
    with endpoint(200, body, head_length) as port:
        tally = seen(port, tmp_path)
    assert tally.counts["unverified"] >= 2
    assert tally.faults


@pytest.mark.parametrize("status", [400, 404, 500, 503])
def test_a_status_that_must_not_be_is_seen(status: int, tmp_path: Path) -> None:
    with endpoint(status, b"{}", None) as port:
        tally = seen(port, tmp_path)
    assert tally.counts["wrong"] >= 2


def test_a_request_without_an_answer_is_lost_on_a_kept_connection_too(tmp_path: Path) -> None:
    with endpoint(200, b"", None, silent=True) as port:
        tally = seen(port, tmp_path)
    assert tally.counts["lost"] >= 2
