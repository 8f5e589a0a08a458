"""Merging many blobs with numpy gives what merging them one by one gives."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.errors import TelemetryStoreError
from telemetry.histogram import (
    COUNT_MAX,
    FORMAT_VERSION,
    HEADER,
    INDEX_MAX,
    INDEX_MIN,
    SCALE,
    VALUE_MAX,
    ExponentialHistogram,
)
from telemetry.server import merge, sketches
from telemetry.server.aggregate import Aggregate
from telemetry.server.measures import folded
from telemetry.server.merge import MAX_CELLS, SLOTS, MergedHistograms
from telemetry.server.rows import Measure, MinuteColumns
from telemetry.server.sketches import COUNTS, DISTANCE
from wire.errors import WireFormatError

QUANTILES = (0.0, 0.07, 0.5, 0.95, 1.0)
values = st.one_of(
    st.floats(min_value=0.01, max_value=1e4),
    st.floats(min_value=0, max_value=VALUE_MAX),
)
counted = st.tuples(values, st.sampled_from([1, 2, 300, 70_000, 2**33]))
GROUPS = 5
Parts = list[tuple[int, list[tuple[float, int]]]]
parts = st.lists(
    st.tuples(
        st.integers(min_value=0, max_value=GROUPS - 1), st.lists(counted, min_size=1, max_size=8)
    ),
    max_size=12,
)


def made(pairs: list[tuple[float, int]]) -> ExponentialHistogram:
    histogram = ExponentialHistogram()
    for value, count in pairs:
        histogram.add(value, count)
    return histogram


def measured(histogram: ExponentialHistogram) -> Measure:
    least, greatest = histogram.least, histogram.greatest
    assert least is not None
    assert greatest is not None
    blob = sketches.encode(histogram)
    return Measure(histogram.count, histogram.total, least, greatest, blob)


@given(parts, st.integers(min_value=1, max_value=5))
def test_quantiles_are_those_of_one_by_one(given_parts: Parts, at_once: int) -> None:
    aggregate = Aggregate(with_histograms=True)
    for start in range(0, len(given_parts), at_once):
        some = given_parts[start : start + at_once]
        columns = zip(*(measured(made(pairs)) for _, pairs in some), strict=True)
        none = (0,) * len(some)
        rows = MinuteColumns(none, none, none, ("",) * len(some), *columns)
        aggregate.add(rows, [group for group, _ in some], GROUPS)
    found = aggregate.quantiles(QUANTILES)
    for group in {group for group, _ in given_parts}:
        pairs = [pair for number, some in given_parts if number == group for pair in some]
        expected = [made(pairs).quantile(q) for q in QUANTILES]
        assert found[group].tolist() == pytest.approx(expected, rel=1e-12)


def test_both_stored_forms_merge_together() -> None:
    pairs = [[(1e-9, 1), (1e9, 3)], [(10.0, 300), (11.0, 1)], [(1e-3, 1), (1e19, 2**33)]]
    histograms = [made(some) for some in pairs]
    blobs = [form(one) for one in histograms for form in (sketches.encode, dense)]
    assert {blob[0] for blob in blobs} == {FORMAT_VERSION, sketches.SPARSE_VERSION}
    merged = MergedHistograms()
    merged.add(blobs, np.zeros(len(blobs), np.int64))
    expected = ExponentialHistogram()
    for one in histograms * 2:
        expected.merge(one)
    found = merged.quantiles(QUANTILES[1:4], 1)[0]
    assert found.tolist() == pytest.approx([expected.quantile(q) for q in QUANTILES[1:4]])


def dense(histogram: ExponentialHistogram) -> bytes:
    return histogram.to_bytes()


def test_nothing_gives_nothing() -> None:
    merged = MergedHistograms()
    merged.add([], np.empty(0, np.int64))
    assert np.isnan(merged.quantiles([0.5], 2)).all()
    assert merged.quantiles([0.5], 0).shape == (0, 1)


def test_saturated_counts_do_not_overflow() -> None:
    merged = MergedHistograms()
    for _ in range(40):
        blobs = [made([(10.0, COUNT_MAX)]).to_bytes()] * 1000
        merged.add(blobs, np.zeros(1000, np.int64))
    assert merged.quantiles([0.5], 1)[0, 0] == pytest.approx(10.0, rel=0.011)


def every_bucket(count: int, width: int) -> bytes:
    """Return a histogram with the same count in all buckets."""
    number = INDEX_MAX - INDEX_MIN + 1
    head = HEADER.pack(FORMAT_VERSION, SCALE, width, INDEX_MIN, number, count, 1.0, 0.0, VALUE_MAX)
    return head + np.full(number, count, COUNTS[width]).tobytes()


@given(parts, st.sets(st.integers(0, GROUPS - 1)))
def test_what_one_group_holds_changes_no_quantile_of_another(
    given_parts: Parts, full: set[int]
) -> None:
    alone, together = MergedHistograms(), MergedHistograms()
    for group, pairs in given_parts:
        for merged in (alone, together):
            merged.add([made(pairs).to_bytes()], np.array([group]))
    for group in full:
        together.add([every_bucket(COUNT_MAX, 8)] * 3, np.full(3, group))
    others = [group for group in range(GROUPS) if group not in full]
    expected = alone.quantiles(QUANTILES, GROUPS)[others]
    found = together.quantiles(QUANTILES, GROUPS)
    np.testing.assert_array_equal(found[others], expected)
    assert np.isfinite(found[sorted(full)]).all()


def test_large_histograms_are_merged_in_parts_of_bounded_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(merge, "BUCKETS_AT_ONCE", 20_000)
    blobs = [every_bucket(1, 1)] * 300
    merged = MergedHistograms()
    tracemalloc.start()
    merged.add(blobs, np.zeros(len(blobs), np.int64))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 5 * sum(map(len, blobs))
    assert merged.encoded([(1.0, 0.0, VALUE_MAX)])[0][0] == len(blobs) * SLOTS


def test_groups_too_many_for_a_table_are_summed_all_the_same() -> None:
    groups = np.arange(0, 4000, 2)
    blobs = [made([(1e-8, 1), (value, 2)]).to_bytes() for value in (1.0, 1e9)] * 1000
    merged = MergedHistograms()
    merged.add(blobs, groups)
    merged.add(blobs, groups)
    assert MAX_CELLS < 4000 * 1800
    found = merged.quantiles([0.3, 0.9], 4000)
    assert np.isnan(found[1::2]).all()
    assert found[::2, 0] == pytest.approx(np.full(2000, 1e-8), rel=0.011)
    assert found[::2, 1] == pytest.approx(np.tile([1.0, 1e9], 1000), rel=0.011)


@pytest.mark.parametrize("position", [0, 1, 2, 5, 6, 7])
def test_a_blob_of_an_unknown_format_is_refused(position: int) -> None:
    blob = bytearray(made([(10.0, 1), (20.0, 1)]).to_bytes())
    blob[position] = 0x7F
    with pytest.raises(TelemetryStoreError, match="unknown format"):
        MergedHistograms().add([bytes(blob)], np.zeros(1, np.int64))


def test_a_sparse_blob_beyond_the_last_bucket_is_refused() -> None:
    blob = bytearray(sketches.encode(made([(1e-9, 1), (1e19, 1)])))
    at = HEADER.size + DISTANCE.itemsize
    blob[at : at + DISTANCE.itemsize] = b"\xff\xff"
    with pytest.raises(TelemetryStoreError, match="unknown format"):
        MergedHistograms().add([bytes(blob)], np.zeros(1, np.int64))


@pytest.mark.parametrize("blob", [b"", b"\x01\x05", made([(1.0, 1)]).to_bytes() + b"\x00"])
def test_a_blob_of_another_size_is_refused(blob: bytes) -> None:
    with pytest.raises(TelemetryStoreError, match="unknown format"):
        MergedHistograms().add([blob], np.zeros(1, np.int64))


@given(parts)
def test_merged_histograms_are_stored_as_one_of_all_values_is(given_parts: Parts) -> None:
    by_group: dict[int, list[Measure]] = {}
    whole: dict[int, ExponentialHistogram] = {}
    for group, pairs in given_parts:
        by_group.setdefault(group, []).append(measured(made(pairs)))
        whole.setdefault(group, ExponentialHistogram()).merge(made(pairs))
    for group, found in folded(by_group).items():
        expected = measured(whole[group])
        assert found[:4] == pytest.approx(expected[:4])
        head = HEADER.size
        assert found.sketch is not None
        assert expected.sketch is not None
        assert found.sketch[:head] == expected.sketch[:head] or found.total != expected.total
        assert found.sketch[head:] == expected.sketch[head:]


@given(
    st.one_of(
        st.lists(st.tuples(values, st.integers(1, COUNT_MAX)), max_size=30).map(
            lambda pairs: made(pairs).to_bytes()
        ),
        st.binary(max_size=80),
    ),
    st.integers(0, 200),
    st.integers(0, 255),
)
def test_a_histogram_is_taken_as_it_would_be_decoded(blob: bytes, at: int, byte: int) -> None:
    if at < len(blob):
        blob = blob[:at] + bytes((byte,)) + blob[at + 1 :]
    try:
        decoded = ExponentialHistogram.from_bytes(blob)
    except WireFormatError:
        with pytest.raises(WireFormatError):
            sketches.taken(blob)
        return
    if decoded.least is None or decoded.greatest is None:
        with pytest.raises(WireFormatError, match="empty"):
            sketches.taken(blob)
        return
    measure = measured(decoded)
    if decoded.count < COUNT_MAX and not measure.has_possible_mean():
        with pytest.raises(WireFormatError, match="total"):
            sketches.taken(blob)
        return
    assert sketches.taken(blob) == measure
