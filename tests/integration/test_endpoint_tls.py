"""The endpoint over TLS: who has no certificate gets nothing, and nothing goes in the clear."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest

from agent.serve.answered import Listener
from agent.serve.errors import EndpointError
from agent.serve.frames import Reply
from agent.serve.http.connections import EndpointLimits
from agent.serve.http.endpoint import Endpoint
from agent.serve.http.tls import server_tls
from agent.serve.pool import Prepared
from agent.serve.routes import InferenceCall
from agent.serve.served import Alone
from tests.simulators.certificates import Authority, Certificate
from tests.simulators.patience import PATIENCE_S, finished

INFER = "/v2/models/digits/infer"
LIMITS = EndpointLimits(connections=3)
HASTY = EndpointLimits(head_timeout_s=1.0)


class Echo:
    """Answers with the body that it was asked."""

    active: Prepared | None = None
    kept: Prepared | None = None
    is_idle = True
    is_ready = True

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    def listen(self, listener: Listener) -> None:
        """Tell nobody: nothing is counted."""

    def handle(self, call: InferenceCall) -> Reply:
        self.asked.set()
        self.gate.wait(PATIENCE_S)
        return Reply(status=200, headers={}, body=call.body)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "ours")


@pytest.fixture(scope="module")
def server(authority: Authority) -> Certificate:
    return authority.issue("server")


@pytest.fixture(scope="module")
def client(authority: Authority) -> Certificate:
    return authority.issue("client")


@pytest.fixture(scope="module")
def echo() -> Echo:
    return Echo()


@pytest.fixture(scope="module")
def start(authority: Authority, server: Certificate, echo: Echo) -> Callable[..., Endpoint]:
    def start(limits: EndpointLimits = LIMITS) -> Endpoint:
        tls = server_tls(server.cert_file, server.key_file, authority.ca_file)
        endpoint = Endpoint(Alone(echo), tls=tls, limits=limits)
        endpoint.start()
        return endpoint

    return start


@pytest.fixture(scope="module")
def endpoint(start: Callable[[], Endpoint]) -> Iterator[Endpoint]:
    endpoint = start()
    yield endpoint
    endpoint.stop()


@pytest.fixture(scope="module")
def hasty(start: Callable[..., Endpoint]) -> Iterator[Endpoint]:
    """An endpoint that waits for nobody."""
    endpoint = start(HASTY)
    yield endpoint
    endpoint.stop()


def port_of(endpoint: Endpoint) -> int:
    return int(endpoint.address.rpartition(":")[2])


def connect(endpoint: Endpoint, context: ssl.SSLContext) -> http.client.HTTPSConnection:
    return http.client.HTTPSConnection(
        "127.0.0.1", port_of(endpoint), timeout=PATIENCE_S, context=context
    )


def test_a_client_with_a_certificate_is_answered(
    endpoint: Endpoint, authority: Authority, client: Certificate
) -> None:
    connection = connect(endpoint, authority.client(client))
    for size in (0, 1, 70_000, 3_000_000):
        connection.request("POST", INFER, body=bytes(size))
        assert connection.getresponse().read() == bytes(size)
    connection.close()


@pytest.mark.parametrize("kind", ["none", "stranger's"])
def test_a_client_without_our_certificate_gets_nothing(
    endpoint: Endpoint, authority: Authority, echo: Echo, tmp_path: Path, kind: str
) -> None:
    echo.asked.clear()
    stranger = None if kind == "none" else Authority(tmp_path, "stranger").issue("client")
    connection = connect(endpoint, authority.client(stranger))
    with pytest.raises((OSError, http.client.HTTPException)):
        connection.request("POST", INFER, body=b"abc")
        connection.getresponse()
    connection.close()
    assert not echo.asked.is_set()


@pytest.mark.parametrize(
    ("data", "hang_up"),
    [(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n", False), (b"", False), (b"", True)],
)
def test_a_client_without_tls_gets_nothing(hasty: Endpoint, data: bytes, hang_up: bool) -> None:
    with socket.create_connection(("127.0.0.1", port_of(hasty)), timeout=PATIENCE_S) as sock:
        sock.sendall(data)
        if hang_up:
            sock.shutdown(socket.SHUT_WR)
        answer = b""
        try:
            while block := sock.recv(1000):
                answer += block
        except ConnectionResetError:
            pass
    assert b"HTTP" not in answer


def test_malformed_requests_are_refused_over_tls_too(
    hasty: Endpoint, authority: Authority, client: Certificate
) -> None:
    for data, status in ((b"GET /v2\r\n", 400), (b"GET ", 408)):
        with (
            socket.create_connection(("127.0.0.1", port_of(hasty)), timeout=PATIENCE_S) as raw,
            authority.client(client).wrap_socket(raw, server_hostname="127.0.0.1") as sock,
        ):
            sock.sendall(data)
            assert int(sock.recv(1000).split()[1]) == status


def test_connections_over_tls_have_a_bound(
    endpoint: Endpoint, authority: Authority, client: Certificate
) -> None:
    held = [connect(endpoint, authority.client(client)) for _ in range(LIMITS.connections)]
    for connection in held:
        connection.request("GET", "/v2")
        assert connection.getresponse().read()
    late = connect(endpoint, authority.client(client))
    late.request("GET", "/v2")
    assert late.getresponse().read(), "it took the place of the one that was idle for longest"
    with pytest.raises((OSError, http.client.HTTPException)):
        held[0].request("GET", "/v2")
        held[0].getresponse()
    for connection in (*held, late):
        connection.close()


def test_stopping_answers_what_has_come_and_stays_encrypted(
    start: Callable[[], Endpoint], authority: Authority, client: Certificate, echo: Echo
) -> None:
    endpoint = start()
    echo.gate.clear()
    echo.asked.clear()
    with (
        socket.create_connection(("127.0.0.1", port_of(endpoint)), timeout=PATIENCE_S) as raw,
        Tap(raw) as tap,
        authority.client(client).wrap_socket(tap.near, server_hostname="127.0.0.1") as sock,
    ):
        sock.sendall(f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc".encode())
        assert echo.asked.wait(PATIENCE_S)
        stopping = threading.Thread(target=endpoint.stop)
        stopping.start()
        threading.Event().wait(0.2)  # the connection is being shut down
        echo.gate.set()
        answer = sock.recv(1000)
        finished(stopping)
    assert answer.endswith(b"abc")
    assert b"HTTP" not in tap.seen


class Tap:
    """Sees what a server sends on the wire."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self.near, self._far = socket.socketpair()
        self.seen = b""
        self._threads = [
            threading.Thread(target=self._up),
            threading.Thread(target=self._down),
        ]

    def __enter__(self) -> Self:
        self.near.settimeout(PATIENCE_S)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()
        self._far.close()
        for thread in self._threads:
            thread.join()

    def _up(self) -> None:
        try:
            while block := self._far.recv(65536):
                self._server.sendall(block)
        except OSError:
            return

    def _down(self) -> None:
        try:
            while block := self._server.recv(65536):
                self.seen += block
                self._far.sendall(block)
        except OSError:
            return


@pytest.mark.parametrize("host", ["0.0.0.0"])  # noqa: S104 - who may reach it is the question
def test_only_client_certificates_open_the_endpoint_to_others(
    authority: Authority, server: Certificate, echo: Echo, host: str
) -> None:
    encrypted = server_tls(server.cert_file, server.key_file, None)
    with pytest.raises(EndpointError, match="any client that reaches"):
        Endpoint(Alone(echo), host=host, tls=encrypted).start()
    asking = server_tls(server.cert_file, server.key_file, authority.ca_file)
    endpoint = Endpoint(Alone(echo), host=host, tls=asking)
    endpoint.start()
    endpoint.stop()


def test_files_that_are_no_certificates_are_one_clear_error(
    authority: Authority, server: Certificate, tmp_path: Path
) -> None:
    junk, locked = tmp_path / "junk.pem", tmp_path / "locked.key"
    junk.write_text("x")
    subprocess.run(
        ["openssl", "ec", "-in", server.key_file, "-aes256", "-passout", "pass:p", "-out", locked],
        check=True,
        capture_output=True,
    )
    cert, key = server.cert_file, server.key_file
    for files in (
        (cert, tmp_path / "none", None),
        (junk, key, None),
        (cert, cert, None),
        (cert, locked, None),
        (cert, authority.issue("other").key_file, None),
        (cert, key, junk),
        (cert, key, Path(os.devnull)),
    ):
        with pytest.raises(EndpointError, match="for TLS") as info:
            server_tls(*files)
        assert info.value.remedy
        assert "_ssl.c" not in info.value.message
