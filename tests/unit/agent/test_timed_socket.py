"""Receives and sends end after their time, and not before."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from agent.timed_socket import PolledSocket, TimedSocket, TimedStream
from tests.simulators.patience import PATIENCE_S, finished

Kind = Callable[[socket.socket], TimedStream]
KINDS = pytest.mark.parametrize("kind", [TimedSocket, PolledSocket])


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@KINDS
def test_what_came_is_received_and_the_end_is_empty(
    ends: tuple[socket.socket, socket.socket], kind: Kind
) -> None:
    stream, other = kind(ends[0]), ends[1]
    other.sendall(b"some bytes")
    assert stream.receive(4, PATIENCE_S) == b"some"
    assert stream.receive(100, None) == b" bytes"
    other.close()
    assert stream.receive(100, PATIENCE_S) == b""


@KINDS
def test_silence_ends_after_each_time_that_is_given(
    ends: tuple[socket.socket, socket.socket], kind: Kind
) -> None:
    stream, other = kind(ends[0]), ends[1]
    for _ in range(2):
        with pytest.raises(TimeoutError):
            stream.receive(100, 0.02)
    sender = threading.Timer(0.1, other.sendall, [b"late"])
    sender.start()
    assert stream.receive(100, PATIENCE_S) == b"late"
    finished(sender)
    with pytest.raises(TimeoutError):
        stream.receive(100, 1e-9)


@KINDS
def test_who_does_not_read_takes_some_and_then_nothing(
    ends: tuple[socket.socket, socket.socket], kind: Kind
) -> None:
    stream, other = kind(ends[0]), ends[1]
    content = memoryview(bytes(1 << 20))
    sent = stream.send(content, PATIENCE_S)
    with pytest.raises(TimeoutError):
        while True:
            sent += stream.send(content, 0.02)
    reader = threading.Timer(0.1, other.recv, [sent])
    reader.start()
    assert stream.send(content, PATIENCE_S) > 0
    finished(reader)


def test_memory_is_filled_within_a_time(ends: tuple[socket.socket, socket.socket]) -> None:
    stream, other = TimedSocket(ends[0]), ends[1]
    memory = bytearray(8)
    with pytest.raises(TimeoutError):
        stream.receive_into(memoryview(memory), 0.02)
    other.sendall(b"abc")
    assert stream.receive_into(memoryview(memory), PATIENCE_S) == 3
    assert memory[:3] == b"abc"
