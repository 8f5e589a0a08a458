"""HTTP as clients and strangers speak it, without a worker behind."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import select
import socket
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.serve.errors import EndpointError
from agent.serve.http.connections import EndpointLimits
from agent.serve.http.endpoint import Endpoint
from agent.serve.served import Alone
from tests.simulators.patience import PATIENCE_S, finished, until
from tests.unit.agent.serve.http.echo import (
    HOST,
    INDEX_REQUEST,
    INFER,
    Echo,
    Held,
    assert_refused,
    port_of,
    post,
    send,
    status_of,
)

INDEX = b"/v2/repository/index"
LIMITS = EndpointLimits(body_bytes=1_000_000, bodies_bytes=1_500_000, connections=8)
HASTY = EndpointLimits(head_timeout_s=0.3, body_timeout_s=0.3)


@pytest.fixture(scope="module")
def echo() -> Echo:
    return Echo()


@pytest.fixture(scope="module")
def endpoint(echo: Echo) -> Iterator[Endpoint]:
    endpoint = Endpoint(Alone(echo), limits=LIMITS, version="7")
    endpoint.start()
    yield endpoint
    endpoint.stop()


@pytest.fixture(scope="module")
def hasty(echo: Echo) -> Iterator[Endpoint]:
    """An endpoint that waits for nobody."""
    endpoint = Endpoint(Alone(echo), limits=HASTY)
    endpoint.start()
    yield endpoint
    endpoint.stop()


def test_a_connection_serves_many_requests(endpoint: Endpoint) -> None:
    client = http.client.HTTPConnection("127.0.0.1", port_of(endpoint), timeout=PATIENCE_S)
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
    client = http.client.HTTPConnection("127.0.0.1", port_of(endpoint), timeout=PATIENCE_S)
    client.request("POST", INFER, body=b"x" * 1_000_000)
    assert client.getresponse().read() == b"x" * 1_000_000
    client.close()


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip\r\n\r\n", 411),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 1000001\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nExpect: tea\r\n\r\n", 417),
        (b"GET /v2\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"GET /v2 HTTP/1.1\n" + HOST + b"\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nA: " + b"b" * 10_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost", 400),
    ],
)
def test_malformed_framing_is_refused(
    endpoint: Endpoint, request_bytes: bytes, status: int
) -> None:
    assert_refused(send(endpoint, request_bytes), status)


def test_a_client_hears_of_a_body_that_is_too_long_while_it_sends(endpoint: Endpoint) -> None:
    head = b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 3000000\r\n\r\n"
    assert_refused(send(endpoint, head + bytes(3_000_000)), 413)


@pytest.mark.parametrize("part", ["POST ", f"POST {INFER} HTTP/1.1\r\nHost: x\r\n"])
def test_a_slow_header_is_given_up(hasty: Endpoint, part: str) -> None:
    assert_refused(send(hasty, part.encode(), hang_up=False), 408)


def test_a_header_is_given_up_however_steadily_it_comes(hasty: Endpoint) -> None:
    with socket.create_connection(("127.0.0.1", port_of(hasty)), timeout=PATIENCE_S) as sock:
        while not select.select([sock], [], [], 0.02)[0]:  # until something is answered
            sock.sendall(b"a")
        assert status_of(sock.recv(1000)) == 408


def test_a_slow_body_is_given_up(hasty: Endpoint) -> None:
    assert_refused(send(hasty, post(b"ab", length=5), hang_up=False), 408)


def test_a_body_that_breaks_off_is_refused(endpoint: Endpoint, echo: Echo) -> None:
    before = len(echo.calls)
    assert_refused(send(endpoint, post(b"ab", length=5)), 400)
    assert len(echo.calls) == before


def test_a_client_may_ask_before_it_sends(endpoint: Endpoint) -> None:
    with socket.create_connection(("127.0.0.1", port_of(endpoint)), timeout=PATIENCE_S) as sock:
        sock.sendall(post(b"", "Expect: 100-continue", length=2))
        assert sock.recv(1000).startswith(b"HTTP/1.1 100 ")
        sock.sendall(b"ab")
        assert sock.recv(1000).startswith(b"HTTP/1.1 200 ")


def test_a_client_that_asks_hears_no_before_it_sends(endpoint: Endpoint) -> None:
    answer = send(endpoint, post(b"", "Expect: 100-continue", length=2_000_000), hang_up=False)
    assert_refused(answer, 413)


def test_requests_may_come_all_at_once(endpoint: Endpoint) -> None:
    answer = send(endpoint, post(b"one") + b"\r\n" + post(b"two") + post(b"") + post(b"three"))
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200"] * 4
    assert answer.index(b"one") < answer.index(b"two") < answer.index(b"three")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_who_announces_no_body_sends_none(endpoint: Endpoint, method: str) -> None:
    """As `curl -X POST` does it without `-d`: the bytes after the head are the next request."""
    bare = method.encode() + b" /v2/repository/index HTTP/1.1\r\n" + HOST + b"\r\n"
    answer = send(endpoint, bare + INDEX_REQUEST)
    status = b"200" if method == "POST" else b"405"
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [status, b"200"]


def chunked(*chunks: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    head = f"POST {INFER} HTTP/1.1\r\n".encode() + HOST + b"Transfer-Encoding: Chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + end


def test_a_body_may_come_in_chunks(endpoint: Endpoint) -> None:
    client = http.client.HTTPConnection("127.0.0.1", port_of(endpoint), timeout=PATIENCE_S)
    for parts in ([b"one", b"two"], [b"x" * 300_000, b"y" * 70_000, b"z"], [b"a"] * 1000, []):
        client.request("POST", INFER, body=iter(parts), encode_chunked=True)
        response = client.getresponse()
        assert (response.status, response.read()) == (200, b"".join(parts))
    client.close()


@pytest.mark.parametrize(
    "body",
    [
        chunked(b"abc", end=b"0\r\nTrailer: x\r\n\r\n"),
        chunked(end=b'3;name="va;lue"\r\nabc\r\n000\r\n\r\n'),
        chunked(end=b"00000003 ; x\r\nabc\r\n0\r\n\r\n"),
    ],
)
def test_what_chunks_may_have_besides_is_dropped(endpoint: Endpoint, body: bytes) -> None:
    answer = send(endpoint, body + chunked(b"next"))
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200"] * 2
    assert answer.index(b"abc") < answer.index(b"next")


@pytest.mark.parametrize(
    ("end", "status"),
    [
        (b"x\r\n", 400),
        (b"-1\r\n", 400),
        (b"0x3\r\nabc\r\n0\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"3\nabc\n0\n\n", 400),
        (b"3\r\nabcd\r\n0\r\n\r\n", 400),
        (b"000000003\r\nabc\r\n0\r\n\r\n", 400),
        (b"3;" + b"x" * 9000 + b"\r\nabc\r\n0\r\n\r\n", 400),
        (b"f4241\r\n", 413),
        (b"ffffffff\r\n", 413),
        (b"0\r\n" + b"X: y\r\n" * 102 + b"\r\n", 431),
        (b"0\r\nno field\r\n\r\n", 400),
        (b"3\r\nab", 400),
    ],
)
def test_chunks_that_are_malformed_or_too_many_are_refused(
    endpoint: Endpoint, echo: Echo, end: bytes, status: int
) -> None:
    before = len(echo.calls)
    assert_refused(send(endpoint, chunked(b"ab", end=end) + post(b"smuggled")), status)
    assert len(echo.calls) == before


def test_a_late_chunk_is_not_waited_for(echo: Echo) -> None:
    endpoint = Endpoint(Alone(echo), limits=EndpointLimits(body_timeout_s=0.2))
    endpoint.start()
    with socket.create_connection(("127.0.0.1", port_of(endpoint)), timeout=PATIENCE_S) as sock:
        sock.sendall(chunked(b"ab", end=b""))
        assert_refused(sock.recv(1000), 408)
    endpoint.stop()


def test_nothing_after_a_malformed_request_is_believed(endpoint: Endpoint, echo: Echo) -> None:
    before = len(echo.calls)
    smuggled = post(b"xx", "Transfer-Encoding: chunked") + post(b"yy")
    assert_refused(send(endpoint, smuggled), 400)
    assert len(echo.calls) == before


@pytest.mark.parametrize(
    ("version", "connection", "stays"),
    [
        ("1.1", "", True),
        ("1.1", "Connection: close\r\n", False),
        ("1.1", "Connection: TE, Close\r\n", False),
        ("1.0", "", False),
        ("1.0", "Connection: keep-alive\r\n", True),
    ],
)
def test_a_connection_stays_as_the_client_wants(
    endpoint: Endpoint, version: str, connection: str, stays: bool
) -> None:
    request = f"GET /v2 HTTP/{version}\r\nHost: x\r\n{connection}\r\n".encode()
    answer = send(endpoint, request * 2)
    assert answer.count(b"HTTP/1.1 200 OK") == 1 + stays
    assert (b"Connection: keep-alive" in answer) == stays


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
        ("GET", "http://a.host:80/v2?x", 200),
        ("GET", "/v2/models/digits/config", 503),
        ("GET", "/v2/models/stats", 200),
        ("POST", "/v2/models/stats", 405),
        ("GET", "/v2/repository/index", 405),
        ("POST", "/v2/repository/models/digits/load", 501),
        ("POST", "/v2/repository/models/../load", 501),
        ("GET", "/v2/models/%64igits/infer", 405),
        ("GET", "/v2/models/a%2Fb/c", 404),
        ("GET", "/v2/logging", 501),
    ],
)
def test_paths_and_methods(endpoint: Endpoint, method: str, path: str, status: int) -> None:
    client = http.client.HTTPConnection("127.0.0.1", port_of(endpoint), timeout=PATIENCE_S)
    client.request(method, path, body=b"{}" if method in {"POST", "PUT"} else None)
    response = client.getresponse()
    assert response.status == status
    document = json.loads(response.read())
    assert ("error" in document) == (status >= 400)
    client.close()


def test_the_server_says_what_it_speaks(endpoint: Endpoint) -> None:
    client = http.client.HTTPConnection("127.0.0.1", port_of(endpoint), timeout=PATIENCE_S)
    client.request("GET", "/v2")
    document = json.loads(client.getresponse().read())
    assert (document["name"], document["version"]) == ("edgefleet", "7")
    assert {"binary_tensor_data", "model_configuration", "statistics"} <= {*document["extensions"]}
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
        ("Content-Encoding", "br", 415),
        ("Content-Encoding", "gzip, gzip", 415),
        ("Content-Encoding", "gzip", 400),
        ("Content-Encoding", "Deflate", 400),
        ("Content-Encoding", "identity", 200),
    ],
)
def test_headers_of_inference(endpoint: Endpoint, name: str, value: str, status: int) -> None:
    client = http.client.HTTPConnection("127.0.0.1", port_of(endpoint), timeout=PATIENCE_S)
    client.request("POST", INFER, body=b"{}", headers={name: value})
    assert client.getresponse().status == status
    client.close()


def test_a_fault_of_ours_is_a_500(endpoint: Endpoint, echo: Echo) -> None:
    echo.fault = ZeroDivisionError("a secret")
    try:
        answer = send(endpoint, post(b""))
    finally:
        echo.fault = None
    assert status_of(answer) == 500
    assert b"secret" not in answer


def test_large_bodies_share_a_bound(endpoint: Endpoint, echo: Echo) -> None:
    echo.gate.clear()
    first = http.client.HTTPConnection("127.0.0.1", port_of(endpoint), timeout=PATIENCE_S)
    try:
        before = len(echo.calls)
        first.request("POST", INFER, body=bytes(900_000))
        until(lambda: len(echo.calls) > before, "the request")
        answer = send(endpoint, post(bytes(900_000)))
        bomb = send(endpoint, post(gzip.compress(bytes(900_000)), "Content-Encoding: gzip"))
        small = post(b"{}" + b" " * 4000, "Connection: close").replace(INFER.encode(), INDEX)
        assert status_of(send(endpoint, small)) == 200
    finally:
        echo.gate.set()
    for refusal in (answer, bomb):
        assert_refused(refusal, 503)
        assert b"Retry-After: 1" in refusal
    assert first.getresponse().status == 200
    first.close()


@pytest.fixture
def narrow(echo: Echo) -> Iterator[Endpoint]:
    """Return an endpoint for two connections."""
    endpoint = Endpoint(Alone(echo), limits=EndpointLimits(connections=2))
    endpoint.start()
    yield endpoint
    echo.gate.set()
    endpoint.stop()


def test_an_idle_connection_gives_its_place_to_a_new_one(narrow: Endpoint) -> None:
    with Held(narrow) as held:
        first = held.send(INDEX_REQUEST, answered=True)
        second = held.send(INDEX_REQUEST, answered=True)
        second.sendall(INDEX_REQUEST)
        assert status_of(second.recv(1000)) == 200

        def is_let_in() -> bool:
            # A connection is idle a moment after its client has the answer.
            return status_of(held.send(INDEX_REQUEST).recv(1000)) == 200

        for _ in range(20):
            until(is_let_in, "a place")
        assert first.recv(1000) == b"", "it was idle for longest"


def test_connections_that_are_being_answered_keep_their_places(
    narrow: Endpoint, echo: Echo
) -> None:
    echo.gate.clear()
    before = len(echo.calls)
    with Held(narrow) as held:
        busy = [held.send(post(b"busy")) for _ in range(2)]
        until(lambda: len(echo.calls) == before + 2, "both requests")
        assert_refused(send(narrow, INDEX_REQUEST), 503)
        assert status_of(send(narrow, b"GET /v2/health/live HTTP/1.0\r\n\r\n")) == 200
        echo.gate.set()
        for sock in busy:
            assert status_of(sock.recv(1000)) == 200


def test_slow_clients_that_come_again_and_again_starve_nobody(narrow: Endpoint) -> None:
    done = threading.Event()

    def be_slow() -> None:
        while not done.is_set():
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port_of(narrow)), timeout=5) as sock,
            ):
                for byte in INDEX_REQUEST[:-1] * 100:
                    sock.sendall(bytes([byte]))
                    if done.wait(0.05):
                        return

    crowd = [threading.Thread(target=be_slow) for _ in range(20)]
    for thread in crowd:
        thread.start()
    answered = 0

    def is_answered() -> bool:
        with contextlib.suppress(OSError):
            return send(narrow, b"GET /v2 HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200")
        return False

    try:
        for _ in range(5):
            until(is_answered, "an answer")
            answered += 1
    finally:
        done.set()
        for thread in crowd:
            finished(thread)
    assert answered == 5


def test_a_body_must_fit_a_frame() -> None:
    with pytest.raises(ValueError, match="body_bytes"):
        EndpointLimits(body_bytes=2**40)


def test_a_token_is_asked_for(echo: Echo) -> None:
    endpoint = Endpoint(Alone(echo), token="s3cret")
    endpoint.start()
    client = http.client.HTTPConnection("127.0.0.1", port_of(endpoint), timeout=PATIENCE_S)
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
    endpoint = Endpoint(Alone(echo))
    endpoint.start()
    echo.gate.clear()
    before = len(echo.calls)
    idle = socket.create_connection(("127.0.0.1", port_of(endpoint)), timeout=PATIENCE_S)
    busy = http.client.HTTPConnection("127.0.0.1", port_of(endpoint), timeout=PATIENCE_S)
    busy.request("POST", INFER, body=b"abc")
    until(lambda: len(echo.calls) > before, "the request")
    stopping = threading.Thread(target=endpoint.stop)
    stopping.start()
    assert idle.recv(10) == b""
    echo.gate.set()
    assert busy.getresponse().read() == b"abc"
    finished(stopping)
    assert endpoint.address == ""
    endpoint.stop()
    idle.close()
    busy.close()


def test_a_request_that_stopping_breaks_off_is_not_the_clients_fault(echo: Echo) -> None:
    endpoint = Endpoint(Alone(echo))
    endpoint.start()
    with socket.create_connection(("127.0.0.1", port_of(endpoint)), timeout=PATIENCE_S) as sock:
        sock.sendall(b"GET /v2 HTTP/1.1\r\n" + HOST + b"\r\n" + post(b"ab", length=5))
        assert status_of(sock.recv(1000)) == 200
        endpoint.stop()
        answer = sock.recv(1000)
    assert_refused(answer, 503)
    assert b"Retry-After" in answer


def test_a_client_that_reads_nothing_is_given_up(echo: Echo) -> None:
    endpoint = Endpoint(Alone(echo), limits=EndpointLimits(body_timeout_s=0.2, connections=1))
    endpoint.start()
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", port_of(endpoint)))
        deaf.settimeout(PATIENCE_S)
        deaf.sendall(post(bytes(8_000_000)))

        def is_let_in() -> bool:
            with contextlib.suppress(OSError):  # it was refused before it had sent
                answer = send(endpoint, b"GET /v2 HTTP/1.0\r\n\r\n")
                return answer != b"" and status_of(answer) == 200
            return False

        until(is_let_in, "the place of who reads nothing")
    endpoint.stop()


def test_a_used_address_is_an_error(endpoint: Endpoint, echo: Echo) -> None:
    with pytest.raises(EndpointError, match="in use") as info:
        Endpoint(Alone(echo), port=port_of(endpoint)).start()
    assert info.value.remedy


def test_a_unix_socket(echo: Echo, tmp_path: Path) -> None:
    path = tmp_path / "serve.sock"
    with socket.socket(socket.AF_UNIX) as stale:  # as a killed agent leaves it
        stale.bind(str(path))
    endpoint = Endpoint(Alone(echo), unix_path=path)
    endpoint.start()
    assert endpoint.address == f"unix:{path}"
    assert path.stat().st_mode & 0o777 == 0o660
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(b"GET /v2 HTTP/1.1\r\n" + HOST + b"\r\n")
        assert status_of(client.recv(1000)) == 200
    with pytest.raises(EndpointError):
        Endpoint(Alone(echo), unix_path=path).start()
    endpoint.stop()
    assert not path.exists()


def test_a_file_that_is_no_socket_stays(echo: Echo, tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(EndpointError):
        Endpoint(Alone(echo), unix_path=path).start()
    assert path.read_text() == "data"


def zlib_frame(content: bytes) -> bytes:
    return zlib.compress(content)


@pytest.mark.parametrize(("coding", "compress"), [("gzip", gzip.compress), ("deflate", zlib_frame)])
@pytest.mark.parametrize("size", [0, 1, 999_999])
def test_requests_may_be_compressed(
    endpoint: Endpoint, coding: str, compress: Callable[[bytes], bytes], size: int
) -> None:
    content = bytes(number % 251 for number in range(size))
    answer = send(endpoint, post(compress(content), f"Content-Encoding: {coding}"))
    assert status_of(answer) == 200
    assert answer.partition(b"\r\n\r\n")[2] == content


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (gzip.compress(bytes(1_000_001)), 413),
        (gzip.compress(bytes(100_000_000), 1)[:9_000], 413),
        (gzip.compress(b"abc", mtime=0)[:-4], 400),
        (gzip.compress(b"abc", mtime=0) + b"x", 400),
        (gzip.compress(b"abc", mtime=0) * 2, 400),
        (gzip.compress(b"abc", mtime=0)[:-8] + bytes(8), 400),
        (zlib.compress(b"abc"), 400),
        (b"x", 400),
    ],
)
def test_what_does_not_expand_is_refused(endpoint: Endpoint, body: bytes, status: int) -> None:
    assert_refused(send(endpoint, post(body, "Content-Encoding: gzip")), status)


@pytest.mark.parametrize(
    ("asked", "coding"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("GZIP", "gzip"),
        ("gzip, deflate, br", None),
        ("br", None),
        ("identity", None),
        ("*", None),
        ("", None),
    ],
)
def test_answers_are_compressed_for_who_asks(
    endpoint: Endpoint, asked: str, coding: str | None
) -> None:
    client = http.client.HTTPConnection("127.0.0.1", port_of(endpoint), timeout=PATIENCE_S)
    headers = {"Accept-Encoding": asked} if asked else {}
    client.request("POST", INFER, body=b"abc" * 1000, headers=headers)
    response = client.getresponse()
    content = response.read()
    client.close()
    assert response.headers["Content-Encoding"] == coding
    if coding is not None:
        content = gzip.decompress(content) if coding == "gzip" else zlib.decompress(content)
    assert content == b"abc" * 1000


def test_an_answer_that_would_grow_is_not_compressed(endpoint: Endpoint) -> None:
    assert b"Content-Encoding" not in send(endpoint, post(b"abc", "Accept-Encoding: gzip"))


@pytest.mark.parametrize("host", ["0.0.0.0", "", "::"])  # noqa: S104 - that it is refused
def test_an_address_that_others_reach_needs_to_know_its_clients(echo: Echo, host: str) -> None:
    endpoint = Endpoint(Alone(echo), host=host)
    with pytest.raises(EndpointError, match="any client that reaches") as info:
        endpoint.start()
    assert "token" in info.value.remedy
    assert endpoint.address == ""
    endpoint = Endpoint(Alone(echo), host=host, token="s3cret")
    endpoint.start()
    endpoint.stop()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost"])
def test_an_address_of_this_machine_alone_needs_no_token(echo: Echo, host: str) -> None:
    endpoint = Endpoint(Alone(echo), host=host)
    endpoint.start()
    assert endpoint.address
    endpoint.stop()


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
        send(endpoint, b"GET /v2 HTTP/1.1\r\n" + HOST + b"\r\n")
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 8
