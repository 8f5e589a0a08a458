"""What devices send is checked point by point, and each sequence number counts once."""

from __future__ import annotations

import json
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.batches import MAX_DATA_DEPTH
from telemetry.device.recorder import Recorder
from telemetry.histogram import HEADER, ExponentialHistogram
from telemetry.server.ingest import (
    WINDOW,
    Span,
    Window,
    checked,
    event_row,
    measures_of,
    span_at,
)
from telemetry.server.measures import folded
from telemetry.server.rows import Measure
from tests.simulators.clock import FakeClock
from wire.codec import from_msgpack, to_msgpack
from wire.telemetry import (
    Event,
    GaugePoint,
    HistogramPoint,
    Point,
    SumPoint,
    TelemetryBatch,
)

NOW_S = 1_750_000_000.0
DAY_S = 86_400.0
SPAN = Span(0.0, NOW_S)


def gauge(**changes: object) -> GaugePoint:
    fields: dict[str, object] = {"metric": "temperature_c", "minute": 5, "attributes": {}}
    fields |= {"count": 2, "total": 3.0, "least": 1.0, "greatest": 2.0}
    return GaugePoint(**(fields | changes))  # type: ignore[arg-type]  # fields of any type


def counter(**changes: object) -> SumPoint:
    fields: dict[str, object] = {"metric": "x_total", "minute": 5, "attributes": {}, "value": 1.0}
    return SumPoint(**(fields | changes))  # type: ignore[arg-type]  # fields of any type


def histogram(value: float = 10.0) -> HistogramPoint:
    made = ExponentialHistogram()
    made.add(value)
    return HistogramPoint(metric="latency_ms", minute=5, attributes={}, blob=made.to_bytes())


def with_total(values: list[float], total: float) -> bytes:
    """Return a histogram that says another total than that of its values."""
    made = ExponentialHistogram()
    for value in values:
        made.add(value)
    made.total = total
    return made.to_bytes()


def batch(*points: Point, events: tuple[Event, ...] = ()) -> TelemetryBatch:
    return TelemetryBatch(device="pi", boot_id="b", sequence=0, points=points, events=events)


def test_points_of_one_series_and_minute_become_one_measure() -> None:
    measures, refused, _ = measures_of(
        batch(histogram(10.0), histogram(20.0), counter(), counter(value=2.5), gauge(), gauge()),
        SPAN,
    )
    parts: dict[str, list[Measure]] = {}
    for key, minute, measure in measures:
        assert minute == 5
        parts.setdefault(key.metric, []).append(measure)
    found = folded(parts)
    assert refused == 0
    assert (found["latency_ms"].value_count, found["latency_ms"].greatest) == (2, 20.0)
    assert (found["x_total"].value_count, found["x_total"].total) == (2, 3.5)
    assert (found["temperature_c"].value_count, found["temperature_c"].total) == (4, 6.0)


def test_release_and_variant_are_columns() -> None:
    attributes = {"variant": "int8", "release": "digits:1.0", "b": "2", "a": "1"}
    ((key, minute, _),) = measures_of(batch(counter(attributes=attributes)), SPAN).measures
    assert (key.release, key.variant, key.attributes, minute) == (
        "digits:1.0",
        "int8",
        '{"a":"1","b":"2"}',
        5,
    )


@pytest.mark.parametrize(
    "point",
    [
        counter(metric=""),
        counter(metric="Ünits"),
        counter(metric="x" * 129),
        counter(minute=-1),
        counter(minute=2**31),
        counter(value=-1.0),
        counter(value=math.nan),
        counter(value=1e31),
        counter(attributes={str(number): "" for number in range(9)}),
        counter(attributes={"a": "x" * 129}),
        counter(attributes={"a": "nul\x00"}),
        counter(attributes={"A B": ""}),
        counter(attributes={"device": "pi-2"}),
        counter(attributes={"model": "digits"}),
        counter(metric="temperature_c"),
        counter(metric="battery_ratio"),
        gauge(metric="inference_requests_total"),
        gauge(count=0),
        gauge(least=3.0),
        gauge(total=math.inf),
        gauge(total=1.9),
        gauge(total=4.1),
        HistogramPoint(metric="m", minute=1, attributes={}, blob=with_total([5.0, 6.0], 9.9)),
        HistogramPoint(metric="m", minute=1, attributes={}, blob=with_total([5.0, 6.0], 12.1)),
        HistogramPoint(metric="m", minute=1, attributes={}, blob=with_total([5.0] * 300, 1.0)),
        gauge(greatest=math.nan),
        HistogramPoint(metric="m", minute=1, attributes={}, blob=b"noise"),
        HistogramPoint(metric="m", minute=1, attributes={}, blob=ExponentialHistogram().to_bytes()),
    ],
)
def test_a_point_that_cannot_be_is_refused_alone(point: Point) -> None:
    measures, refused, refusal = measures_of(batch(point, counter()), SPAN)
    assert (len(measures), refused, refusal is None) == (1, 1, point.minute in {-1, 2**31})


@given(
    st.lists(
        st.tuples(st.floats(-1e24, 1e24), st.sampled_from([1, 2, 3, 400])), min_size=1, max_size=20
    ),
    st.booleans(),
)
def test_no_honest_values_are_refused_because_their_sum_was_rounded(
    found: list[tuple[float, int]], same: bool
) -> None:
    """Values that are alike leave their mean no room but for rounding."""
    clock = FakeClock(NOW_S)
    recorder = Recorder(clock)
    for value, times in found:
        for _ in range(times):
            recorder.gauge("g_c", found[0][0] if same else value, {})
            recorder.observe("h_ms", found[0][0] if same else value, {})
    clock.advance(60.0)
    sent, _ = recorder.drain()
    assert len(sent) == 2
    assert measures_of(batch(*sent), SPAN).refused == 0


@given(st.lists(st.integers(min_value=0, max_value=600), max_size=80))
def test_a_window_counts_each_number_once(sequences: list[int]) -> None:
    window = Window(-1, 0)
    counted: set[int] = set()
    for sequence in sequences:
        if not window.holds(sequence):
            assert sequence not in counted
            counted.add(sequence)
            window = window.with_counted(sequence)
        else:
            assert sequence in counted or sequence <= window.newest - WINDOW
    assert window.seen < 1 << WINDOW


def test_a_window_forgets_nothing_within_its_width() -> None:
    window = Window(-1, 0)
    for sequence in range(0, WINDOW, 2):
        window = window.with_counted(sequence)
    assert [window.holds(sequence) for sequence in range(4)] == [True, False, True, False]
    assert not window.holds(10**15)
    assert window.with_counted(10**15).seen == 1


@pytest.mark.parametrize("at_s", [math.nan, math.inf, -1e300, 1e300])
def test_an_event_becomes_a_row_that_any_database_takes(at_s: float) -> None:
    row = event_row(
        "pi", Event(at_s=at_s, kind="k\x00" * 90, reason="a\nb\x00", data={"n": 1}), NOW_S
    )
    assert 0 <= row["at_s"] < 2**38
    assert (len(row["kind"]) <= 64, row["reason"], row["data"]) == (True, "a b", '{"n":1}')


@pytest.mark.parametrize(
    "packed",
    [
        b"\xd4\x05a",  # an extension
        b"\x81\xc0\x01",  # None as a key
        b"\x81\x91\x01\x01",  # a list as a key
        b"\x91" * 400 + b"\xc0",
        b"\x81\xa0" * 400 + b"\xc0",
        b"\x91" * MAX_DATA_DEPTH + b"\xc0",
        b"\xcf" + b"\xff" * 8,  # 2**64 - 1
        b"\x91\xcf\x80" + b"\x00" * 7,  # [2**63]
    ],
    ids=lambda packed: packed[:4].hex(),
)
def test_data_that_not_every_reader_can_show_is_left_out(packed: bytes) -> None:
    plain = Event(at_s=5.0, kind="switch", reason="too hot", data={"x": "here"})
    sent = from_msgpack(to_msgpack(plain).replace(b"\xa4here", packed), Event)
    row = event_row("pi", sent, NOW_S)
    assert (row["kind"], row["reason"]) == ("switch", "too hot")
    assert set(json.loads(row["data"])) == {"omitted"}


def test_data_of_the_greatest_depth_is_kept() -> None:
    deep: object = 1
    for _ in range(MAX_DATA_DEPTH - 1):
        deep = [deep]
    row = event_row("pi", Event(at_s=5.0, kind="k", reason="", data={"x": deep}), NOW_S)
    assert json.loads(row["data"]) == {"x": deep}


def test_the_latest_minute_is_that_of_points_and_events() -> None:
    events = (Event(at_s=600.0, kind="k", reason=""), Event(at_s=1e300, kind="k", reason=""))
    assert checked(batch(counter(), events=events[:1]), SPAN).latest_minute == 10
    assert checked(batch(counter(minute=9), events=events), SPAN).latest_measured == 9
    assert checked(batch(), SPAN).latest_minute == 0
    assert checked(batch(events=events), SPAN).latest_minute < 2**31


def test_what_the_next_prune_would_delete_is_refused() -> None:
    span = span_at(NOW_S, 30 * DAY_S)
    first = int((NOW_S - 30 * DAY_S) // 60)
    times = (0.0, math.nan, first * 60 - 1.0, first * 60.0, NOW_S)
    sent = batch(
        *(counter(minute=minute) for minute in (0, first - 1, first, first + 1)),
        events=tuple(Event(at_s=at_s, kind="k", reason="") for at_s in times),
    )
    found = checked(sent, span)
    assert sorted(minute for _, minute, _ in found.measures) == [first, first + 1]
    assert [row["at_s"] for row in found.events] == [first * 60, NOW_S]
    assert found.refused == 2 + 3


def test_without_a_retention_all_since_1970_is_stored() -> None:
    found = checked(batch(counter(minute=0)), span_at(NOW_S, math.inf))
    assert (len(found.measures), found.refused) == (1, 0)


def test_the_header_is_what_the_merge_reads() -> None:
    assert HEADER.size == struct.calcsize("<BbBxhHQddd") == 40
