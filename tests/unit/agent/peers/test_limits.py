"""What others may take of a device."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from agent.peers.limits import Limits, Visitors

RATE = 1000


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
    assert visitors.is_present("dev-1", again)
    assert not visitors.is_present("dev-1", first)
    visitors.end("dev-1", first)
    assert not visitors.begin("dev-3", third), "the new connection keeps its place"
    visitors.end("dev-1", again)
    assert visitors.begin("dev-3", third)
    for near, far in pairs:
        near.close()
        far.close()


def test_a_request_counts_for_some_kib_and_for_a_part_of_a_second() -> None:
    assert Limits(at_once=2, bytes_per_s=2**20).least_bytes == 32 * 1024
    fast = Limits(at_once=2, bytes_per_s=2**30)
    assert fast.bytes_per_s / fast.least_bytes == fast.requests_per_s
