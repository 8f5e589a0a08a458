"""Clients that take places and memory and give nothing back keep nobody else out.

The endpoint's clock stands still until a test moves it, so nothing is given up for its age before.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from agent.serve.frames import Reply
from agent.serve.http.connections import (
    LATE_S,
    SLOW_S,
    ConnectionLimit,
    EndpointLimits,
    RequestMemory,
    spared_first,
)
from agent.serve.http.endpoint import Endpoint
from agent.serve.http.server import alone
from agent.serve.routes import InferenceCall
from agent.serve.served import Alone
from tests.simulators.clock import FakeClock
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

MB = 1_000_000
LIMITS = EndpointLimits(
    body_bytes=20 * MB, bodies_bytes=20 * MB, body_timeout_s=30.0, connections=4
)


class Generous(Echo):
    """Answers each request with as many bytes as its body says."""

    def handle(self, call: InferenceCall) -> Reply:
        return Reply(status=200, headers={}, body=memoryview(bytes(int(bytes(call.body)))))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def endpoint(clock: FakeClock) -> Iterator[Endpoint]:
    endpoint = Endpoint(Alone(Generous()), limits=LIMITS, clock=clock)
    endpoint.start()
    yield endpoint
    endpoint.stop(grace_s=0.1)


@pytest.fixture
def echoing(clock: FakeClock) -> Iterator[Endpoint]:
    endpoint = Endpoint(Alone(Echo()), limits=LIMITS, clock=clock)
    endpoint.start()
    yield endpoint
    endpoint.stop(grace_s=0.1)


@pytest.fixture
def guarded(clock: FakeClock) -> Iterator[Endpoint]:
    endpoint = Endpoint(Alone(Echo()), limits=LIMITS, token="s3cret", clock=clock)
    endpoint.start()
    yield endpoint
    endpoint.stop(grace_s=0.1)


def asking_for(count: int) -> bytes:
    return post(b"%d" % count, "Connection: close")


def read_nothing(held: Held, count: int) -> socket.socket:
    """Ask for a long answer and read its first bytes alone."""
    return held.send(post(b"%d" % count), answered=True, room_bytes=4096)


def is_answered(endpoint: Endpoint, request: bytes) -> bool:
    with contextlib.suppress(OSError):  # it was refused before it had sent
        answer = send(endpoint, request)
        return answer != b"" and status_of(answer) == 200
    return False


def test_who_reads_no_answers_gives_its_place_to_others(
    endpoint: Endpoint, clock: FakeClock
) -> None:
    with Held(endpoint) as held:
        for _ in range(LIMITS.connections):
            read_nothing(held, 5 * MB)
        assert_refused(send(endpoint, INDEX_REQUEST), 503)
        clock.advance(SLOW_S)
        for _ in range(LIMITS.connections + 1):
            until(lambda: is_answered(endpoint, b"GET /v2 HTTP/1.0\r\n\r\n"), "a place")


@pytest.mark.parametrize(
    ("stage", "for_s", "rank"),
    [
        ("sending", LATE_S, 0),
        ("sending", SLOW_S, 2),
        ("sending", SLOW_S / 2, None),
        ("answering", 3600.0, None),
        ("idle", 0.0, 1),
    ],
)
def test_an_unread_answer_is_as_a_slow_request(stage: str, for_s: float, rank: int | None) -> None:
    assert spared_first(stage, for_s) == rank  # type: ignore[arg-type]


@contextlib.contextmanager
def admitted(limit: ConnectionLimit, count: int) -> Iterator[list[socket.socket]]:
    pairs = [socket.socketpair() for _ in range(count)]
    try:
        for ours, _ in pairs:
            assert limit.admit(ours)
        yield [ours for ours, _ in pairs]
    finally:
        for pair in pairs:
            for sock in pair:
                sock.close()


def test_who_reads_steadily_keeps_its_place(clock: FakeClock) -> None:
    limit = ConnectionLimit(LIMITS, clock)
    with admitted(limit, LIMITS.connections) as (steady, *silent):
        for connection in (steady, *silent):
            limit.note(connection, "sending")
        for second in range(1, 21):
            clock.advance(1.0)
            limit.moved(steady, 1 / 29)  # all of it in 29 of 30 seconds
            with admitted(limit, 1) as (newcomer,):
                limit.note(newcomer, "answering")
                assert not limit.has_lost_place(steady), f"after {second} s"
                limit.release(newcomer)
        assert limit.has_lost_place(silent[0])


def test_who_reads_a_little_now_and_then_falls_behind(clock: FakeClock) -> None:
    limit = ConnectionLimit(LIMITS, clock)
    with admitted(limit, LIMITS.connections) as connections:
        for connection in connections:
            limit.note(connection, "sending")
        for _ in range(4):
            clock.advance(0.5)
            limit.moved(connections[0], 1e-4)
        for connection in connections[1:]:
            limit.note(connection, "sending")
        with admitted(limit, 1):
            assert limit.has_lost_place(connections[0])


def test_unread_answers_share_the_bound_of_bodies(endpoint: Endpoint, clock: FakeClock) -> None:
    with Held(endpoint) as held:
        for _ in range(2):
            read_nothing(held, 8 * MB)
        refused = send(endpoint, asking_for(8 * MB))
        assert status_of(refused) == 503
        assert b"Retry-After: 1" in refused
        assert is_answered(endpoint, asking_for(2 * MB))
        clock.advance(SLOW_S)
        assert is_answered(endpoint, asking_for(8 * MB)), "who reads nothing makes room"


def test_one_answer_alone_may_be_longer_than_the_bound(endpoint: Endpoint) -> None:
    assert is_answered(endpoint, asking_for(LIMITS.bodies_bytes + MB))


def test_an_answer_keeps_no_memory_of_others() -> None:
    frame = memoryview(bytes(10 * MB))
    part = alone(Reply(status=200, headers={}, body=frame[: 2 * MB]))
    assert len(part.body) == 2 * MB
    assert len(part.body.obj) == 2 * MB  # type: ignore[arg-type]
    whole = Reply(status=200, headers={}, body=frame[1000:])
    assert alone(whole) is whole


@pytest.mark.parametrize("chunks", [False, True])
def test_an_upload_that_stalls_gives_its_memory_to_others(
    echoing: Endpoint, clock: FakeClock, *, chunks: bool
) -> None:
    size = LIMITS.bodies_bytes - MB // 20
    request = post(bytes(size), length=size + 1)
    if chunks:
        head = request.partition(b"Content-Length")[0] + b"Transfer-Encoding: chunked\r\n\r\n"
        request = head + b"%x\r\n" % size + bytes(size)
    other = post(bytes(MB // 10), "Connection: close")
    with Held(echoing) as held:

        def stall() -> socket.socket | None:
            sock = held.send(request)
            for _ in range(100):  # the server may have read it all a moment later
                if not is_answered(echoing, other):
                    return sock
            sock.close()  # another request came in between, so it was refused
            return None

        stalled = until(stall, "that it has taken the memory")
        assert not is_answered(echoing, other)
        clock.advance(SLOW_S)
        assert is_answered(echoing, other)
        answer = stalled.recv(1000)
    assert_refused(answer, 503)
    assert b"Retry-After: 1" in answer


def test_who_sends_steadily_keeps_its_memory(clock: FakeClock) -> None:
    limit = ConnectionLimit(LIMITS, clock)
    with (
        admitted(limit, 3) as (steady, silent, asking),
        RequestMemory(limit, steady, 10 * MB) as steady_memory,
        RequestMemory(limit, silent, 10 * MB) as silent_memory,
        RequestMemory(limit, asking, 10 * MB) as asking_memory,
    ):
        for connection in (steady, silent, asking):
            limit.note(connection, "reading")
        silent_memory.take(12 * MB)
        for _ in range(20):
            clock.advance(1.0)
            steady_memory.take(10 * MB // 29)

        def serve_silent() -> None:
            silent.recv(1)  # returns when its connection ends
            silent_memory.__exit__()

        serving = threading.Thread(target=serve_silent)
        serving.start()
        asking_memory.take(10 * MB)
        finished(serving)
        assert limit.has_lost_place(silent)
        assert not limit.has_lost_place(steady)


@pytest.mark.parametrize("announced", ["Content-Length: 9000000", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize("expect", ["Expect: 100-continue\r\n", ""])
def test_who_shows_no_token_is_refused_before_its_body_comes(
    guarded: Endpoint, announced: str, expect: str
) -> None:
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\n{announced}\r\n{expect}\r\n".encode()
    with socket.create_connection(("127.0.0.1", port_of(guarded)), timeout=PATIENCE_S) as sock:
        sock.sendall(head)
        answer = sock.recv(1000)
    assert_refused(answer, 401)
    assert b"WWW-Authenticate: Bearer" in answer


def test_who_shows_no_token_and_sends_no_body_keeps_its_connection(guarded: Endpoint) -> None:
    with Held(guarded) as held:
        sock = held.send(INDEX_REQUEST)
        assert status_of(sock.recv(1000)) == 401
        sock.sendall(INDEX_REQUEST.replace(HOST, HOST + b"Authorization: Bearer s3cret\r\n"))
        assert status_of(sock.recv(1000)) == 200


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready"])
def test_a_question_for_the_health_has_no_large_body(guarded: Endpoint, path: str) -> None:
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\n"
    answer = send(guarded, head.encode() + b"Content-Length: 9000000\r\n\r\n", hang_up=False)
    assert_refused(answer, 413)
    assert is_answered(guarded, head.encode() + b"Content-Length: 2\r\nConnection: close\r\n\r\n{}")
