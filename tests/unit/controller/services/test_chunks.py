"""Bounds on what devices may make the controller send."""

from __future__ import annotations

import pytest

from controller.services.chunks import Budget, check_request
from controller.services.releases import MAX_CHUNK_BYTES
from tests.simulators.clock import FakeClock
from wire.codec import to_msgpack
from wire.errors import WireFormatError
from wire.messages import MAX_MESSAGE_BYTES, Chunk, ChunkRequest


def request(chunk_bytes: int = 1024, indices: tuple[int, ...] = (0,)) -> ChunkRequest:
    return ChunkRequest(device="d", sha256="a" * 64, chunk_bytes=chunk_bytes, indices=indices)


def test_what_a_device_may_ask_for() -> None:
    check_request(request())
    check_request(request(MAX_CHUNK_BYTES, tuple(range(64))))


@pytest.mark.parametrize(
    "wrong",
    [
        request(0),
        request(1023),
        request(MAX_CHUNK_BYTES + 1),
        request(indices=()),
        request(indices=(-1,)),
        request(indices=(1, 1)),
        request(indices=tuple(range(65))),
    ],
)
def test_what_it_may_not(wrong: ChunkRequest) -> None:
    with pytest.raises(WireFormatError):
        check_request(wrong)


def test_the_largest_chunk_fits_into_a_message() -> None:
    chunk = Chunk(sha256="a" * 64, index=2**31, data=b"x" * MAX_CHUNK_BYTES)
    assert len(to_msgpack(chunk)) <= MAX_MESSAGE_BYTES


def test_a_budget_refills_with_time_and_not_beyond_its_size() -> None:
    clock = FakeClock()
    budget = Budget(clock, 100)
    assert budget.take(100)
    assert not budget.take(1)
    clock.advance(0.05)
    assert budget.take(5)
    assert not budget.take(1)
    clock.advance(1000)
    assert not budget.take(101)
    assert budget.take(100)
