"""Quantiles are within the promised error, merging loses nothing, and bytes are believed never."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.histogram import (
    BASE,
    COUNT_MAX,
    HEADER,
    INDEX_MAX,
    INDEX_MIN,
    MAX_BLOB_BYTES,
    RELATIVE_ERROR,
    VALUE_MAX,
    ZERO_MAX,
    ExponentialHistogram,
    bucket_index,
)
from wire.errors import WireFormatError

in_range = st.floats(min_value=ZERO_MAX * 1.0001, max_value=VALUE_MAX)
latencies = st.floats(min_value=0.01, max_value=10_000)
whole = st.integers(min_value=0, max_value=10**6).map(float)
lists = st.lists(st.one_of(in_range, latencies), min_size=1, max_size=60)
exact_lists = st.lists(whole, max_size=40)
"""Their sums are exact in binary, so equal histograms have equal bytes."""


def made(values: list[float]) -> ExponentialHistogram:
    histogram = ExponentialHistogram()
    for value in values:
        histogram.add(value)
    return histogram


def merged(*histograms: ExponentialHistogram) -> ExponentialHistogram:
    result = ExponentialHistogram()
    for histogram in histograms:
        result.merge(histogram)
    return result


@settings(max_examples=300)
@given(lists, st.floats(min_value=0, max_value=1))
def test_a_quantile_is_within_the_promised_error(values: list[float], q: float) -> None:
    truth = sorted(values)[max(1, math.ceil(q * len(values) - 1e-9)) - 1]
    found = made(values).quantile(q)
    assert found is not None
    assert abs(found - truth) <= truth * RELATIVE_ERROR * (1 + 1e-9)
    assert RELATIVE_ERROR <= 0.011


@given(in_range)
def test_a_value_lies_in_its_bucket(value: float) -> None:
    index = bucket_index(value)
    assert INDEX_MIN <= index <= INDEX_MAX
    slack = 1 + 1e-12
    assert BASE**index <= value * slack
    assert value <= BASE ** (index + 1) * slack


@given(st.lists(exact_lists, max_size=4))
def test_merging_equals_adding_all(parts: list[list[float]]) -> None:
    everything = [value for part in parts for value in part]
    assert merged(*map(made, parts)).to_bytes() == made(everything).to_bytes()


@given(exact_lists, exact_lists, exact_lists)
def test_merging_is_associative_and_commutative(
    a: list[float], b: list[float], c: list[float]
) -> None:
    first = merged(merged(made(a), made(b)), made(c))
    second = merged(made(a), merged(made(c), made(b)))
    assert first.to_bytes() == second.to_bytes()


def test_merging_with_itself_doubles() -> None:
    histogram = made([1.0, 2.0, 0.0])
    histogram.merge(histogram)
    assert (histogram.count, histogram.total) == (6, 6.0)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=40))
def test_bytes_round_trip(values: list[float]) -> None:
    before = made(values)
    after = ExponentialHistogram.from_bytes(before.to_bytes())
    assert after.to_bytes() == before.to_bytes()
    measures = (after.count, after.total, after.least, after.greatest, after.quantile(0.5))
    assert measures == (
        before.count,
        before.total,
        before.least,
        before.greatest,
        before.quantile(0.5),
    )


@pytest.mark.parametrize("count", [1, 255, 256, 65_536, 2**32, COUNT_MAX])
def test_counts_of_every_width_round_trip(count: int) -> None:
    histogram = ExponentialHistogram()
    histogram.add(10.0, count)
    assert ExponentialHistogram.from_bytes(histogram.to_bytes()).count == count


def test_a_minute_of_latencies_is_small() -> None:
    values = [20.0 * 1.3 ** math.sin(n) for n in range(1800)]
    assert len(made(values).to_bytes()) < 200


def test_an_empty_histogram_knows_nothing() -> None:
    empty = ExponentialHistogram.from_bytes(ExponentialHistogram().to_bytes())
    assert (empty.count, empty.total) == (0, 0.0)
    assert empty.quantile(0.5) is empty.least is empty.greatest is None


def test_zero_and_negative_values_count_as_zero() -> None:
    histogram = made([-5.0, 0.0, ZERO_MAX, 8.0])
    assert (histogram.count, histogram.total, histogram.least) == (4, 8.0, 0.0)
    assert histogram.quantile(0.75) == 0.0
    assert histogram.quantile(0.76) == 8.0


def test_huge_values_count_as_the_greatest() -> None:
    histogram = made([1e300])
    assert histogram.greatest == histogram.quantile(0.5) == VALUE_MAX


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not a finite number"):
        ExponentialHistogram().add(value)


@pytest.mark.parametrize("count", [0, -1, COUNT_MAX + 1])
def test_an_impossible_count_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="count"):
        ExponentialHistogram().add(1.0, count)


@pytest.mark.parametrize("q", [-0.1, 1.1, math.nan])
def test_an_impossible_quantile_is_refused(q: float) -> None:
    with pytest.raises(ValueError, match="quantile"):
        made([1.0]).quantile(q)


def test_counts_saturate_and_stay_readable() -> None:
    histogram = ExponentialHistogram()
    histogram.add(10.0, COUNT_MAX)
    histogram.add(0.0, COUNT_MAX)
    histogram.merge(histogram)
    histogram.add(10.0)
    histogram.add(0.0)
    assert ExponentialHistogram.from_bytes(histogram.to_bytes()).count == 2 * COUNT_MAX


def blob(**changes: float) -> bytes:
    fields: dict[str, float] = {
        "version": 1,
        "scale": 5,
        "width": 1,
        "first": 0,
        "length": 2,
        "zeros": 0,
    }
    fields |= {"total": 3.0, "least": 1.0, "greatest": 2.0} | changes
    return HEADER.pack(*fields.values()) + b"\x01\x01"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * (MAX_BLOB_BYTES + 1),
        blob(version=2),
        blob(scale=4),
        blob(width=3),
        blob(length=3),
        blob(first=INDEX_MIN - 1),
        blob(first=INDEX_MAX),
        blob(zeros=COUNT_MAX + 1),
        blob(total=math.nan),
        blob(total=math.inf),
        blob(total=-1.0),
        blob(least=math.nan),
        blob(least=-1.0),
        blob(least=3.0),
        blob(greatest=math.inf),
    ],
)
def test_impossible_bytes_are_refused(data: bytes) -> None:
    assert ExponentialHistogram.from_bytes(blob()).count == 2
    with pytest.raises(WireFormatError):
        ExponentialHistogram.from_bytes(data)


@given(st.binary(max_size=80), st.booleans())
def test_noise_never_raises_anything_but_our_error(data: bytes, headed: bool) -> None:
    try:
        histogram = ExponentialHistogram.from_bytes(blob()[:8] + data if headed else data)
    except WireFormatError:
        return
    assert histogram.count == 0 or histogram.quantile(0.5) is not None
