"""What the store writes of a histogram is short, and holds all of it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.histogram import COUNT_MAX, HEADER, VALUE_MAX, ZERO_MAX, ExponentialHistogram
from telemetry.server import sketches
from wire.errors import WireFormatError

values = st.floats(min_value=0, max_value=VALUE_MAX)
counts = st.sampled_from([1, 300, 70_000, 2**33, COUNT_MAX])


def made(pairs: list[tuple[float, int]]) -> ExponentialHistogram:
    histogram = ExponentialHistogram()
    for value, count in pairs:
        histogram.add(value, count)
    return histogram


@given(st.lists(st.tuples(values, counts), max_size=40))
def test_nothing_of_a_histogram_is_lost(pairs: list[tuple[float, int]]) -> None:
    histogram = made(pairs)
    stored = sketches.encode(histogram)
    assert sketches.decode(stored).to_bytes() == histogram.to_bytes()
    assert len(stored) <= HEADER.size + len(pairs) * (8 + sketches.DISTANCE.itemsize)
    assert len(stored) <= len(histogram.to_bytes())


@given(st.lists(st.tuples(values, counts), min_size=1, max_size=40))
def test_what_comes_is_taken_as_it_would_be_written(pairs: list[tuple[float, int]]) -> None:
    """However it is checked: at once, or bucket by bucket."""
    histogram = made(pairs)
    count, *_measures, stored = sketches.taken(histogram.to_bytes())
    assert stored == sketches.encode(ExponentialHistogram.from_bytes(histogram.to_bytes()))
    assert count == histogram.count


def test_two_values_far_apart_take_two_counts() -> None:
    histogram = made([(ZERO_MAX * 1.01, COUNT_MAX), (VALUE_MAX, COUNT_MAX)])
    assert len(histogram.to_bytes()) > 24_000
    assert len(sketches.encode(histogram)) == HEADER.size + 2 * (2 + 8)


def test_a_minute_of_latencies_is_stored_as_it_came() -> None:
    histogram = made([(20.0 * 1.3 ** math.sin(n), 1) for n in range(1800)])
    assert sketches.encode(histogram) == histogram.to_bytes()


def test_what_earlier_versions_stored_is_read() -> None:
    histogram = made([(1e-9, 1), (1e9, 3)])
    assert sketches.decode(histogram.to_bytes()).to_bytes() == histogram.to_bytes()


SPARSE = sketches.encode(made([(1e-9, 1), (1.0, 2), (1e9, 3)]))
FIRST = HEADER.size


@pytest.mark.parametrize(
    "data",
    [
        SPARSE[:1],
        SPARSE[:-1],
        SPARSE + b"\x00",
        SPARSE[:2] + b"\x03" + SPARSE[3:],
        SPARSE[:6] + b"\x00\x00" + SPARSE[8:FIRST],
        SPARSE[: FIRST + 4] + b"\xff\xff" + SPARSE[FIRST + 6 :],
        SPARSE[: FIRST + 2] + SPARSE[FIRST : FIRST + 2] + SPARSE[FIRST + 4 :],
    ],
)
def test_a_damaged_one_is_refused(data: bytes) -> None:
    assert sketches.decode(SPARSE).count == 6
    with pytest.raises(WireFormatError):
        sketches.decode(data)
