"""A link's bytes leave at its rate, whoever sends them how fast."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.transfers.pace import MAX_BLOCK_BYTES, MIN_BLOCK_BYTES, LinkShape, Pace

RATE = 64_000


def test_what_comes_at_once_leaves_at_the_rate() -> None:
    pace = Pace(LinkShape(bytes_per_s=RATE))
    left_s = [pace.leaves_s(100.0, RATE // 4) for _ in range(8)]
    assert left_s == [pytest.approx(100.0 + 0.25 * number) for number in range(1, 9)]


def test_a_pause_saves_nothing_up() -> None:
    pace = Pace(LinkShape(bytes_per_s=RATE))
    assert pace.leaves_s(0.0, RATE) == pytest.approx(1.0)
    assert pace.leaves_s(10.0, RATE) == pytest.approx(11.0)


def test_latency_delays_and_does_not_slow_down() -> None:
    pace = Pace(LinkShape(bytes_per_s=RATE, latency_s=0.5))
    left_s = [pace.leaves_s(0.0, RATE) for _ in range(4)]
    assert left_s == [pytest.approx(each) for each in (1.5, 2.5, 3.5, 4.5)]


def test_a_link_without_a_rate_only_delays() -> None:
    pace = Pace(LinkShape(latency_s=0.25))
    assert [pace.leaves_s(7.0, 10**9) for _ in range(2)] == [7.25, 7.25]


@given(
    st.lists(st.tuples(st.floats(0, 2), st.integers(1, 10**6)), min_size=1, max_size=30),
    st.floats(1_000, 1e8),
)
def test_no_span_carries_more_than_the_rate(
    blocks: list[tuple[float, int]], bytes_per_s: float
) -> None:
    pace, came_s, left = Pace(LinkShape(bytes_per_s=bytes_per_s)), 0.0, [0.0]
    for pause_s, size_bytes in blocks:
        came_s += pause_s
        left.append(pace.leaves_s(came_s, size_bytes))
        assert left[-1] >= came_s
    for (before_s, after_s), (_, size_bytes) in zip(pairwise(left), blocks, strict=True):
        assert (after_s - before_s) * bytes_per_s >= size_bytes * (1 - 1e-6) - 1e-3


@pytest.mark.parametrize("bytes_per_s", [1.0, 16_000, 4_000_000, math.inf])
def test_a_link_holds_little(bytes_per_s: float) -> None:
    shape = LinkShape(bytes_per_s=bytes_per_s)
    assert MIN_BLOCK_BYTES <= shape.block_bytes <= MAX_BLOCK_BYTES
    assert shape.block_bytes <= shape.buffer_bytes <= 66 * MAX_BLOCK_BYTES
    assert shape.buffer_bytes <= max(0.2 * bytes_per_s, 3 * MIN_BLOCK_BYTES)
