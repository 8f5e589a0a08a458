"""What others may take of a device."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.peers.limits import Limits, Pace, Visitors
from tests.simulators.clock import FakeClock

RATE = 1000


@given(claims=st.lists(st.tuples(st.integers(1, 5000), st.floats(0, 3)), min_size=1))
def test_no_more_is_sent_than_the_rate_allows(claims: list[tuple[int, float]]) -> None:
    clock = FakeClock()
    pace = Pace(RATE, clock)
    turns = []
    for size_bytes, pause_s in claims:
        turns.append((clock.monotonic_s() + pace.claim(size_bytes), size_bytes))
        clock.advance(pause_s)
    first_s = turns[0][0]
    assert first_s == 0, "the first waits for nobody"
    before_bytes = 0
    for at_s, size_bytes in turns:
        assert before_bytes <= RATE * (at_s - first_s) + 1e-6
        before_bytes += size_bytes


def test_time_in_which_nothing_was_sent_is_not_saved_up() -> None:
    clock = FakeClock()
    pace = Pace(RATE, clock)
    clock.advance(3600)
    assert pace.claim(RATE) == 0
    assert pace.claim(RATE) == 1


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    made = [socket.socket() for _ in range(8)]
    yield made
    for each in made:
        each.close()


def test_connections_are_bounded_for_each_address_and_together(
    sockets: list[socket.socket],
) -> None:
    limits = Limits(at_once=1, bytes_per_s=RATE, connections=3, connections_of_address=2)
    visitors = Visitors(limits)
    addresses = ["a", "a", "a", "b", "c", "d"]
    admitted = [visitors.admit(*each) for each in zip(sockets, addresses, strict=False)]
    assert admitted == [True, True, False, True, True, False]
    visitors.leave(sockets[0])
    assert visitors.admit(sockets[6], "a")
    assert not visitors.admit(sockets[7], "d")


def test_so_many_devices_are_served_and_each_once() -> None:
    visitors = Visitors(Limits(at_once=2, bytes_per_s=RATE))
    pairs = [socket.socketpair() for _ in range(4)]
    first, again, other, third = (near for near, _ in pairs)
    assert visitors.begin("dev-1", first)
    assert visitors.begin("dev-2", other)
    assert not visitors.begin("dev-3", third)
    assert visitors.begin("dev-1", again), "it has lost its connection"
    assert pairs[0][1].recv(1) == b"", "which has ended"
    visitors.end("dev-1", first)
    assert not visitors.begin("dev-3", third), "the new connection keeps its place"
    visitors.end("dev-1", again)
    assert visitors.begin("dev-3", third)
    for near, far in pairs:
        near.close()
        far.close()
