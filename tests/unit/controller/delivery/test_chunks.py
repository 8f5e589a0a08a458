"""Bounds on what devices may make the controller send."""

from __future__ import annotations

import msgspec
import pytest

from controller.delivery.budget import Budget
from controller.delivery.chunks import check_request
from controller.services.releases import MAX_CHUNK_BYTES
from tests.simulators.clock import FakeClock
from wire.codec import to_msgpack
from wire.delivery import Chunk, ChunkRequest
from wire.errors import WireFormatError
from wire.messages import MAX_MESSAGE_BYTES


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
        msgspec.structs.replace(request(), sha256="A" * 64),
        msgspec.structs.replace(request(), sha256="a" * 65),
        msgspec.structs.replace(request(), number=2**53),
        msgspec.structs.replace(request(), number=-2),
        msgspec.structs.replace(request(), number=1, seen=(2**64, 0)),
        msgspec.structs.replace(request(), number=1, seen=(0, -(2**70))),
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
    assert budget.wait_s(100) == 0
    budget.spend(100)
    assert budget.wait_s(5) == pytest.approx(0.05)
    clock.advance(0.05)
    assert budget.wait_s(5) == 0
    budget.spend(5)
    clock.advance(1000)
    assert budget.wait_s(100) == 0


def test_a_piece_larger_than_the_budget_of_a_second_is_sent_when_it_is_full() -> None:
    clock = FakeClock()
    budget = Budget(clock, 100)
    assert budget.wait_s(250) == 0
    budget.spend(250)
    assert budget.wait_s(250) == pytest.approx(2.5)
