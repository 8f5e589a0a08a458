"""Frames arrive whole, in time and bounded, or not at all."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.serve.channel import Channel
from agent.serve.frames import (
    ANSWERS,
    MAX_FRAME_BYTES,
    REQUESTS,
    Answer,
    Asked,
    Infer,
    Probe,
    Reply,
    Request,
)
from tests.simulators.patience import PATIENCE_S
from wire.clock import SystemClock
from wire.errors import WireFormatError

CLOCK = SystemClock()


@pytest.fixture
def ends() -> Iterator[tuple[Channel[Answer], socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Channel(ours, ANSWERS, CLOCK), theirs


bodies = st.tuples(st.none() | st.integers(0, 1000), st.binary(max_size=200_000))


@given(st.lists(bodies, min_size=1, max_size=4))
def test_requests_come_out_as_they_went_in(asked: list[tuple[int | None, bytes]]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender: Channel[Answer] = Channel(ours, ANSWERS, CLOCK)
        receiver: Channel[Request] = Channel(theirs, REQUESTS, CLOCK)
        frame = Infer(
            requests=tuple(Asked(header_length=n, body=memoryview(body)) for n, body in asked)
        )
        thread = threading.Thread(target=sender.send, args=(frame,))
        thread.start()
        received = receiver.receive(timeout_s=PATIENCE_S)
        thread.join()
    assert isinstance(received, Infer)
    assert [(a.header_length, bytes(a.body)) for a in received.requests] == asked


def test_a_closed_end_is_the_end(ends: tuple[Channel[Answer], socket.socket]) -> None:
    channel, other = ends
    other.sendall(struct.pack(">I", 100) + b"half a frame")
    other.shutdown(socket.SHUT_WR)
    with pytest.raises(EOFError):
        channel.receive(timeout_s=PATIENCE_S)


def test_silence_has_a_bound(ends: tuple[Channel[Answer], socket.socket]) -> None:
    channel, other = ends
    other.sendall(b"\0")
    with pytest.raises(TimeoutError):
        channel.receive(timeout_s=0.05)


def test_an_end_that_does_not_read_has_a_bound(
    ends: tuple[Channel[Answer], socket.socket],
) -> None:
    channel, _ = ends
    with pytest.raises(TimeoutError):
        asked = Asked(header_length=None, body=memoryview(bytes(10**7)))
        channel.send(Infer(requests=(asked,)), timeout_s=0.05)


def test_a_giant_frame_is_not_read(ends: tuple[Channel[Answer], socket.socket]) -> None:
    channel, other = ends
    other.sendall(struct.pack(">I", MAX_FRAME_BYTES + 1))
    with pytest.raises(WireFormatError):
        channel.receive(timeout_s=PATIENCE_S)


@given(st.binary(max_size=200))
def test_what_is_no_frame_is_refused(content: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(struct.pack(">I", len(content)) + content)
        with pytest.raises(WireFormatError):
            Channel(ours, ANSWERS, CLOCK).receive(timeout_s=PATIENCE_S)


def test_a_question_is_no_answer(ends: tuple[Channel[Answer], socket.socket]) -> None:
    channel, other = ends
    Channel(other, REQUESTS, CLOCK).send(Probe())
    with pytest.raises(WireFormatError):
        channel.receive(timeout_s=PATIENCE_S)


def test_hanging_up_wakes_who_waits(ends: tuple[Channel[Answer], socket.socket]) -> None:
    channel, _ = ends
    timer = threading.Timer(0.05, channel.hang_up)
    timer.start()
    with pytest.raises(EOFError):
        channel.receive(timeout_s=PATIENCE_S)
    timer.join()
    channel.hang_up()


@given(st.text())
def test_a_refusal_is_one_line_of_json(message: str) -> None:
    reply = Reply.refusal(400, message)
    assert reply.status == 400
    assert bytes(reply.body).startswith(b'{"error":"')
    assert b"\n" not in bytes(reply.body)
    assert len(reply.body) < 4096
