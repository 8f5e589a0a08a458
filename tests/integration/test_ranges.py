"""Ranges from servers that lie, over real sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from agent.errors import StoppedError
from agent.install.fetch.connection import Bounds
from agent.install.fetch.ranges import Ranges
from agent.install.fetch.sources import BusyError, EndedError, LaterError, SourceError
from tests.simulators.clock import FakeClock
from tests.simulators.patience import until
from tests.simulators.raw_server import Answering, RawServer, saying
from wire.clock import Clock, SystemClock

DATA = bytes(range(250)) * 4
HALF = len(DATA) // 2
BOUNDS = Bounds(head_s=60.0, silent_s=60.0)
STRANGE = b"Content-Type: multipart/x; boundary*=a; boundary*0=b\r\n"
"""Python's own reader of headers fails with a TypeError at it."""


def partial(start: int, end: int, *lines: bytes) -> bytes:
    """Return a right answer with further lines in its head."""
    head = b"HTTP/1.1 206 P\r\nContent-Length: %d\r\nContent-Range: bytes %d-%d/%d\r\n"
    fields = head % (end - start, start, end - 1, len(DATA))
    return fields + b"".join(lines) + b"\r\n" + DATA[start:end]


class Reader:
    """A reader of ranges, and what it counted."""

    def __init__(self, bounds: Bounds = BOUNDS, clock: Clock | None = None) -> None:
        self.came: list[int] = []
        self.check: Callable[[], None] = lambda: None
        self.ranges = Ranges((), clock or SystemClock(), self.came.append, bounds)

    def read(self, server: RawServer, start: int, end: int, block_bytes: int = HALF) -> bytes:
        sizes = [min(block_bytes, end - at) for at in range(start, end, block_bytes)]
        place = urlsplit(server.url("/b?x"))
        blocks = self.ranges.read(place, start, end, len(DATA), sizes, self.check)
        with closing(blocks):
            return b"".join(bytes(block) for block in blocks)


def read_first(answer: Answering, bounds: Bounds = BOUNDS) -> tuple[bytes, Reader]:
    reader = Reader(bounds)
    with RawServer(answer).running() as server, closing(reader.ranges):
        return reader.read(server, 0, HALF), reader


def test_a_head_that_pythons_own_client_dies_of_is_read() -> None:
    assert read_first(saying(partial(0, HALF, STRANGE)))[0] == DATA[:HALF]


def test_interim_answers_are_passed_over() -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    data, reader = read_first(saying(early * 2 + partial(0, HALF)))
    assert data == DATA[:HALF]
    assert sum(reader.came) == len(early * 2 + partial(0, HALF)), "each byte is counted"


@pytest.mark.parametrize(
    "again",
    [b"HTTP/1.1 100 Continue\r\n\r\n" * 100, b"x: " + b"y" * 2000 + b"\r\n", b"y" * 4096],
    ids=["interim", "fields", "one line"],
)
def test_a_head_without_end_costs_what_a_head_may_cost(again: bytes) -> None:
    def answer(sock: socket.socket, _request: bytes) -> None:
        sock.sendall(b"HTTP/1.1 103 E\r\n")
        while True:
            sock.sendall(again)

    reader = Reader()
    with (
        RawServer(answer).running() as server,
        closing(reader.ranges),
        pytest.raises(SourceError),
    ):
        reader.read(server, 0, HALF)
    assert sum(reader.came) <= BOUNDS.head_bytes


def test_a_head_that_trickles_ends_with_its_time() -> None:
    class Ticking(FakeClock):
        def monotonic_s(self) -> float:
            self.advance(1.0)
            return super().monotonic_s()

    def answer(sock: socket.socket, _request: bytes) -> None:
        while True:
            sock.sendall(b"H")

    reader = Reader(Bounds(head_s=10.0), Ticking())
    with (
        RawServer(answer).running() as server,
        closing(reader.ranges),
        pytest.raises(SourceError, match=r"end of its headers|over 16384 bytes"),
    ):
        reader.read(server, 0, HALF)


def test_a_request_after_the_end_of_a_connection_is_counted_and_bounded_like_the_first() -> None:
    answers = [partial(0, HALF, b"Connection: close\r\n"), b"HTTP/1.1 200 x" + b"x" * 100_000]

    def answer(sock: socket.socket, _request: bytes) -> None:
        sock.sendall(answers.pop(0))

    reader = Reader()
    with RawServer(answer).running() as server, closing(reader.ranges):
        assert reader.read(server, 0, HALF) == DATA[:HALF]
        first = sum(reader.came)
        with pytest.raises(SourceError, match="headers are over"):
            reader.read(server, HALF, len(DATA))
        assert server.connections == 2
    assert sum(reader.came) - first == BOUNDS.head_bytes


def test_a_request_after_the_end_of_a_connection_is_ended_by_a_stop() -> None:
    waiting, stopping = threading.Event(), threading.Event()

    def answer(sock: socket.socket, request: bytes) -> None:
        if b"bytes=0-" in request:
            sock.sendall(partial(0, HALF, b"Connection: close\r\n"))
            return
        waiting.set()
        sock.recv(1)  # and says nothing

    def check() -> None:
        if stopping.is_set():
            raise StoppedError("stop")

    reader = Reader()
    reader.check = check

    def stop() -> None:
        waiting.wait()
        stopping.set()
        reader.ranges.wake()

    thread = threading.Thread(target=stop)
    thread.start()
    with RawServer(answer).running() as server, closing(reader.ranges):
        assert reader.read(server, 0, HALF) == DATA[:HALF]
        with pytest.raises(StoppedError):
            reader.read(server, HALF, len(DATA))
    thread.join()


def test_a_connection_is_kept_and_made_anew_where_the_server_had_ended_it() -> None:
    def answer(sock: socket.socket, request: bytes) -> bool:
        sock.sendall(partial(0, HALF) if b"bytes=0-" in request else partial(HALF, len(DATA)))
        return len(server.requests) != 2  # it ends the connection, and had not said so

    reader = Reader()
    server = RawServer(answer)
    with server.running(), closing(reader.ranges):
        for _ in range(2):
            assert reader.read(server, 0, HALF) == DATA[:HALF]
            assert reader.read(server, HALF, len(DATA)) == DATA[HALF:]
    assert (server.connections, len(server.requests)) == (2, 4)


def test_what_comes_beyond_an_answer_is_not_taken_for_the_next_one() -> None:
    lie = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    reader = Reader()
    server = RawServer(saying(partial(0, HALF) + lie, b""))
    with server.running(), closing(reader.ranges):
        assert reader.read(server, 0, HALF) == DATA[:HALF]
        server.answer = saying(partial(HALF, len(DATA)))
        assert reader.read(server, HALF, len(DATA)) == DATA[HALF:]
    assert server.connections == 2


def test_a_new_connection_that_ends_at_once_is_a_server_that_is_busy() -> None:
    with pytest.raises(BusyError):
        read_first(lambda sock, _request: sock.close())


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 503 S\r\nRetry-After: 3\r\n\r\n", LaterError),
        (b"HTTP/1.1 503 S\r\n\r\n", SourceError),
        (partial(0, HALF)[:-1], EndedError),
        (partial(0, HALF)[:30], SourceError),
        (partial(0, HALF).replace(b"Length: 500", b"Length: 499"), SourceError),
        (partial(0, HALF, b"Transfer-Encoding: identity\r\n"), SourceError),
        (partial(1, HALF), SourceError),
        (b"HTTP/1.1 101 Switching\r\n\r\n" + partial(0, HALF)[:10], SourceError),
    ],
)
def test_what_is_not_the_range_is_refused(answer: bytes, error: type[SourceError]) -> None:
    with pytest.raises(SourceError) as caught:
        read_first(saying(answer))
    assert type(caught.value) is error


def test_who_sends_slowly_is_given_up_although_each_block_comes_in_time() -> None:
    class Ticking(FakeClock):
        def monotonic_s(self) -> float:
            self.advance(4.0)
            return super().monotonic_s()

    reader = Reader(Bounds(head_s=1000.0, window_s=60.0, least_bytes_per_s=4096), Ticking())

    def answer(sock: socket.socket, _request: bytes) -> None:
        sock.sendall(partial(0, HALF).removesuffix(DATA[:HALF]))
        for at in range(HALF):
            until(lambda at=at: len(reader.came) > at or server.ended.is_set())  # type: ignore[misc]
            sock.sendall(DATA[at : at + 1])

    server = RawServer(answer)
    with (
        server.running(),
        closing(reader.ranges),
        pytest.raises(SourceError, match="too slowly"),
    ):
        reader.read(server, 0, HALF, block_bytes=1)
    assert 60 / 8 < len(reader.came) < 60, "and not before the window was over"


def test_any_fault_of_reading_is_a_fault_of_the_server() -> None:
    def count(_size: int) -> None:
        raise LookupError("nobody thought of it")

    ranges = Ranges((), SystemClock(), count, BOUNDS)
    with RawServer(saying(partial(0, HALF))).running() as server, closing(ranges):
        place = urlsplit(server.url("/b?x"))
        with pytest.raises(SourceError, match="LookupError"):
            list(ranges.read(place, 0, HALF, len(DATA), [HALF], lambda: None))
        until(lambda: server.connections)
