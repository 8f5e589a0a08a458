"""HTTP as clients and strangers speak it, without a worker behind."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.serving.endpoint import Endpoint
from agent.serving.errors import EndpointError
from agent.serving.frames import Reply
from agent.serving.http_server import EndpointLimits
from agent.serving.switchboard import Active, InferenceCall

INFER = "/v2/models/digits/infer"
LIMITS = EndpointLimits(
    body_bytes=10_000, bodies_bytes=15_000, body_timeout_s=0.1, idle_s=5.0, connections=8
)


class Echo:
    """Answers with the body that it was asked."""

    active: Active | None = None
    is_ready = True

    def __init__(self) -> None:
        self.calls: list[InferenceCall] = []
        self.gate = threading.Event()
        self.gate.set()
        self.fault: Exception | None = None

    def handle(self, call: InferenceCall) -> Reply:
        self.calls.append(call)
        self.gate.wait(5)
        if self.fault is not None:
            raise self.fault
        return Reply(status=200, headers={"Content-Type": "text/plain"}, body=call.body)


@pytest.fixture(scope="module")
def echo() -> Echo:
    return Echo()


@pytest.fixture(scope="module")
def endpoint(echo: Echo) -> Iterator[Endpoint]:
    endpoint = Endpoint(echo, limits=LIMITS, version="7")
    endpoint.start()
    yield endpoint
    endpoint.stop()


def port_of(endpoint: Endpoint) -> int:
    return int(endpoint.address.rpartition(":")[2])


def send(endpoint: Endpoint, data: bytes, *, hang_up: bool = True) -> bytes:
    """Send bytes; return what comes until the other side closes."""
    with socket.create_connection(("127.0.0.1", port_of(endpoint)), timeout=5) as sock:
        sock.sendall(data)
        if hang_up:
            sock.shutdown(socket.SHUT_WR)
        answer = b""
        while block := sock.recv(65536):
            answer += block
        return answer


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def assert_refused(answer: bytes, status: int) -> None:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert status_of(answer) == status
    assert b"Connection: close" in head
    assert set(json.loads(body)) == {"error"}


def test_a_connection_serves_many_requests(endpoint: Endpoint) -> None:
    client = http.client.HTTPConnection("127.0.0.1", port_of(endpoint), timeout=5)
    client.connect()
    sock = client.sock
    for number in range(5):
        client.request("POST", INFER, body=b"x" * number)
        response = client.getresponse()
        assert response.status == 200
        assert response.read() == b"x" * number
        assert client.sock is sock
    client.close()


def test_a_large_answer_comes_whole(endpoint: Endpoint) -> None:
    client = http.client.HTTPConnection("127.0.0.1", port_of(endpoint), timeout=5)
    client.request("POST", INFER, body=b"x" * 10_000)
    assert client.getresponse().read() == b"x" * 10_000
    client.close()


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST /v2/models/digits/infer HTTP/1.1\r\n\r\n", 411),
        (b"POST /v2/models/digits/infer HTTP/1.1\r\nContent-Length 5\r\n\r\nabcde", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1e3\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: \xb2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 10001\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 20000\r\nExpect: 100-continue\r\n\r\n", 413),
        (b"GET /v2\r\n", 400),
        (b"GET /v2 HTTP/9\r\n\r\n", 400),
        (b"GET /v2 HTTP/2.0\r\n\r\n", 400),
        (b"\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n", 400),
        (b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", 431),
    ],
)
def test_malformed_framing_is_refused(
    endpoint: Endpoint, request_bytes: bytes, status: int
) -> None:
    assert_refused(send(endpoint, request_bytes), status)


def test_a_client_hears_of_a_body_that_is_too_long_while_it_sends(endpoint: Endpoint) -> None:
    head = b"POST / HTTP/1.1\r\nContent-Length: 3000000\r\n\r\n"
    assert_refused(send(endpoint, head + bytes(3_000_000)), 413)


def test_a_slow_body_is_given_up(endpoint: Endpoint) -> None:
    request = f"POST {INFER} HTTP/1.1\r\nContent-Length: 5\r\n\r\nab".encode()
    assert_refused(send(endpoint, request, hang_up=False), 408)


def test_a_body_that_breaks_off_gets_no_answer(endpoint: Endpoint, echo: Echo) -> None:
    before = len(echo.calls)
    request = f"POST {INFER} HTTP/1.1\r\nContent-Length: 5\r\n\r\nab".encode()
    assert send(endpoint, request) == b""
    assert len(echo.calls) == before


def test_a_client_may_ask_before_it_sends(endpoint: Endpoint) -> None:
    head = f"POST {INFER} HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", port_of(endpoint)), timeout=5) as sock:
        sock.sendall(head)
        assert sock.recv(1000).startswith(b"HTTP/1.1 100 ")
        sock.sendall(b"ab")
        assert sock.recv(1000).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2", 200),
        ("GET", "/v2/health/live", 200),
        ("GET", "/v2/health/ready?x=1", 200),
        ("POST", "/v2/health/live", 405),
        ("GET", INFER, 405),
        ("PUT", INFER, 405),
        ("DELETE", "/v2", 405),
        ("BREW", "/v2", 405),
        ("GET", "/", 404),
        ("GET", "/v2/models", 404),
        ("GET", "/v2/models/digits", 503),
        ("GET", "/v2/models/digits/ready", 503),
        ("POST", "/v2/models/digits/versions/1/infer", 200),
        ("POST", "/v2/models/digits/versions/1/2/infer", 404),
        ("POST", "/v2/repository/index", 404),
    ],
)
def test_paths_and_methods(endpoint: Endpoint, method: str, path: str, status: int) -> None:
    client = http.client.HTTPConnection("127.0.0.1", port_of(endpoint), timeout=5)
    client.request(method, path, body=b"{}" if method in {"POST", "PUT"} else None)
    response = client.getresponse()
    assert response.status == status
    document = json.loads(response.read())
    assert ("error" in document) == (status >= 400)
    client.close()


def test_the_server_says_what_it_speaks(endpoint: Endpoint) -> None:
    client = http.client.HTTPConnection("127.0.0.1", port_of(endpoint), timeout=5)
    client.request("GET", "/v2")
    assert json.loads(client.getresponse().read()) == {
        "name": "edgefleet",
        "version": "7",
        "extensions": ["binary_tensor_data"],
    }
    client.request("HEAD", "/v2")
    response = client.getresponse()
    assert (response.status, response.read()) == (200, b"")
    client.close()


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("Inference-Header-Content-Length", "2", 200),
        ("Inference-Header-Content-Length", "3", 400),
        ("Inference-Header-Content-Length", "-1", 400),
        ("Inference-Header-Content-Length", "two", 400),
        ("Content-Encoding", "gzip", 415),
        ("Content-Encoding", "identity", 200),
    ],
)
def test_headers_of_inference(endpoint: Endpoint, name: str, value: str, status: int) -> None:
    client = http.client.HTTPConnection("127.0.0.1", port_of(endpoint), timeout=5)
    client.request("POST", INFER, body=b"{}", headers={name: value})
    assert client.getresponse().status == status
    client.close()


def test_a_fault_of_ours_is_a_500(endpoint: Endpoint, echo: Echo) -> None:
    echo.fault = ZeroDivisionError("a secret")
    try:
        answer = send(endpoint, f"POST {INFER} HTTP/1.1\r\nContent-Length: 0\r\n\r\n".encode())
    finally:
        echo.fault = None
    assert status_of(answer) == 500
    assert b"secret" not in answer


def test_large_bodies_share_a_bound(endpoint: Endpoint, echo: Echo) -> None:
    echo.gate.clear()
    first = http.client.HTTPConnection("127.0.0.1", port_of(endpoint), timeout=5)
    try:
        before = len(echo.calls)
        first.request("POST", INFER, body=bytes(9_000))
        while len(echo.calls) == before:
            threading.Event().wait(0.005)
        head = f"POST {INFER} HTTP/1.1\r\nContent-Length: 9000\r\n\r\n".encode()
        answer = send(endpoint, head + bytes(9_000))
    finally:
        echo.gate.set()
    assert_refused(answer, 503)
    assert b"Retry-After: 1" in answer
    assert first.getresponse().status == 200
    first.close()


def test_connections_have_a_bound(echo: Echo) -> None:
    endpoint = Endpoint(echo, limits=EndpointLimits(connections=2))
    endpoint.start()
    held = [socket.create_connection(("127.0.0.1", port_of(endpoint))) for _ in range(2)]
    try:
        for sock in held:
            sock.sendall(b"GET /v2 HTTP/1.1\r\n\r\n")
            assert status_of(sock.recv(1000)) == 200
        assert_refused(send(endpoint, b""), 503)
    finally:
        for sock in held:
            sock.close()
        endpoint.stop()


def test_a_body_must_fit_a_frame() -> None:
    with pytest.raises(ValueError, match="body_bytes"):
        EndpointLimits(body_bytes=2**40)


def test_a_token_is_asked_for(echo: Echo) -> None:
    endpoint = Endpoint(echo, token="s3cret")
    endpoint.start()
    client = http.client.HTTPConnection("127.0.0.1", port_of(endpoint), timeout=5)
    try:
        for shown, status in ((None, 401), ("s3cre", 401), ("s3cret", 200)):
            headers = {"Authorization": f"Bearer {shown}"} if shown else {}
            client.request("GET", "/v2", headers=headers)
            response = client.getresponse()
            response.read()
            assert response.status == status
        client.request("GET", "/v2/health/live")
        assert client.getresponse().status == 200
    finally:
        client.close()
        endpoint.stop()


def test_stopping_answers_what_has_come(echo: Echo) -> None:
    endpoint = Endpoint(echo)
    endpoint.start()
    echo.gate.clear()
    before = len(echo.calls)
    idle = socket.create_connection(("127.0.0.1", port_of(endpoint)), timeout=5)
    busy = http.client.HTTPConnection("127.0.0.1", port_of(endpoint), timeout=5)
    busy.request("POST", INFER, body=b"abc")
    while len(echo.calls) == before:
        threading.Event().wait(0.005)
    stopping = threading.Thread(target=endpoint.stop)
    stopping.start()
    assert idle.recv(10) == b""
    echo.gate.set()
    assert busy.getresponse().read() == b"abc"
    stopping.join(5)
    assert not stopping.is_alive()
    assert endpoint.address == ""
    endpoint.stop()
    idle.close()
    busy.close()


def test_a_used_address_is_an_error(endpoint: Endpoint, echo: Echo) -> None:
    with pytest.raises(EndpointError, match="in use") as info:
        Endpoint(echo, port=port_of(endpoint)).start()
    assert info.value.remedy


def test_a_unix_socket(echo: Echo, tmp_path: Path) -> None:
    path = tmp_path / "serve.sock"
    with socket.socket(socket.AF_UNIX) as stale:  # as a killed agent leaves it
        stale.bind(str(path))
    endpoint = Endpoint(echo, unix_path=path)
    endpoint.start()
    assert endpoint.address == f"unix:{path}"
    assert path.stat().st_mode & 0o777 == 0o660
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(b"GET /v2 HTTP/1.1\r\n\r\n")
        assert status_of(client.recv(1000)) == 200
    with pytest.raises(EndpointError):
        Endpoint(echo, unix_path=path).start()
    endpoint.stop()
    assert not path.exists()


def test_a_file_that_is_no_socket_stays(echo: Echo, tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(EndpointError):
        Endpoint(echo, unix_path=path).start()
    assert path.read_text() == "data"


lines = st.sampled_from(
    [
        b"GET /v2 HTTP/1.1",
        b"POST /v2/models/digits/infer HTTP/1.1",
        b"Content-Length: 3",
        b"Content-Length: x",
        b"Transfer-Encoding: chunked",
        b"Connection: keep-alive",
        b"Expect: 100-continue",
        b" folded",
        b":",
        b"",
        b"abc",
    ]
) | st.binary(max_size=30)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(lines, max_size=8), st.sampled_from([b"\r\n", b"\n"]))
def test_any_bytes_get_proper_answers_or_none(
    endpoint: Endpoint, parts: list[bytes], ending: bytes
) -> None:
    answer = send(endpoint, ending.join(parts))
    assert answer == b"" or answer.startswith(b"HTTP/1.1 ")
    assert b" 500 " not in answer.split(b"\r\n", 1)[0]


def test_nothing_is_left_open(endpoint: Endpoint) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        send(endpoint, b"GET /v2 HTTP/1.1\r\n\r\n")
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 8
