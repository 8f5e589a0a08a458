"""Recording aggregates by minute, never raises, and stays within its bounds."""

from __future__ import annotations

import math
import threading

import pytest

from telemetry.device.recorder import DROPPED_METRIC, MAX_EVENTS, MAX_SERIES, Recorder
from telemetry.histogram import ExponentialHistogram
from telemetry.limits import MAX_TEXT
from tests.unit.telemetry.device.manual_clock import ManualClock
from wire.telemetry import GaugePoint, HistogramPoint, SumPoint

INT8 = {"variant": "int8", "release": "digits:1.0"}


def sums(recorder: Recorder) -> dict[str, float]:
    points, _ = recorder.drain()
    return {point.metric: point.value for point in points if isinstance(point, SumPoint)}


def test_each_kind_of_measurement_becomes_its_point() -> None:
    clock = ManualClock()
    recorder = Recorder(clock)
    for value in (10.0, 20.0):
        recorder.observe("inference_latency_ms", value, INT8)
        recorder.add("inference_requests_total", 2, INT8)
        recorder.gauge("temperature_c", value, {})
    points, events = recorder.drain()
    minute = int(clock.wall_s // 60)
    histogram, total, gauge = points
    assert isinstance(histogram, HistogramPoint)
    assert (histogram.metric, histogram.minute, histogram.attributes) == (
        "inference_latency_ms",
        minute,
        INT8,
    )
    assert ExponentialHistogram.from_bytes(histogram.blob).total == 30.0
    assert total == SumPoint(
        metric="inference_requests_total", minute=minute, attributes=INT8, value=4
    )
    assert gauge == GaugePoint(
        metric="temperature_c",
        minute=minute,
        attributes={},
        count=2,
        total=30.0,
        least=10.0,
        greatest=20.0,
    )
    assert events == ()
    assert recorder.drain() == ((), ())


def test_the_figures_of_a_request_are_those_of_single_calls() -> None:
    one, other = Recorder(ManualClock()), Recorder(ManualClock())
    one.request(INT8, (("x_total", 1.0), ("y_total", 2.0)), (("x_s", 0.5), ("x_s", 0.25)))
    other.observe("x_s", 0.5, INT8)
    other.observe("x_s", 0.25, INT8)
    other.add("x_total", 1.0, INT8)
    other.add("y_total", 2.0, INT8)
    assert one.drain() == other.drain()


def test_an_impossible_figure_of_a_request_is_dropped_alone() -> None:
    recorder = Recorder(ManualClock())
    recorder.request(INT8, (("x_total", -1.0), ("y_total", 2.0)), (("x_s", math.nan),))
    assert sums(recorder) == {"y_total": 2.0, DROPPED_METRIC: 2.0}


def test_a_new_minute_is_a_new_point() -> None:
    clock = ManualClock()
    recorder = Recorder(clock)
    recorder.add("x_total", 1, {})
    clock.sleep(60)
    recorder.add("x_total", 2, {})
    points, _ = recorder.drain()
    assert points[1].minute == points[0].minute + 1


def test_attributes_in_another_order_are_the_same_series() -> None:
    recorder = Recorder(ManualClock())
    recorder.add("x_total", 1, {"a": "1", "b": "2"})
    recorder.add("x_total", 1, {"b": "2", "a": "1"})
    assert len(recorder.drain()[0]) == 1


def test_events_keep_time_reason_and_inputs() -> None:
    clock = ManualClock()
    recorder = Recorder(clock)
    recorder.event("switch", "too hot", {"headroom": 0.9})
    _, (event,) = recorder.drain()
    assert (event.at_s, event.kind, event.reason, event.data) == (
        clock.wall_s,
        "switch",
        "too hot",
        {"headroom": 0.9},
    )


def test_what_is_no_number_is_dropped_and_counted() -> None:
    recorder = Recorder(ManualClock())
    recorder.observe("latency_ms", math.nan, {})
    recorder.gauge("temperature_c", math.inf, {})
    recorder.add("x_total", -1, {})
    assert sums(recorder) == {DROPPED_METRIC: 3}
    assert sums(recorder) == {}


def test_series_are_bounded_and_old_ones_go_on() -> None:
    recorder = Recorder(ManualClock())
    for number in range(MAX_SERIES + 5):
        recorder.add(f"x{number}_total", 1, {})
    recorder.add("x0_total", 1, {})
    found = sums(recorder)
    assert len(found) == MAX_SERIES + 1
    assert (found[DROPPED_METRIC], found["x0_total"]) == (5, 2)


def test_events_and_texts_are_bounded() -> None:
    recorder = Recorder(ManualClock())
    for _ in range(MAX_EVENTS + 1):
        recorder.event("worker", "restarted")
    recorder.add("x_total", 1, {"variant": "v" * (MAX_TEXT + 1)})
    recorder.add("x_total", 1, {f"a{number}": "" for number in range(9)})
    points, events = recorder.drain()
    assert len(events) == MAX_EVENTS
    assert [point.value for point in points if isinstance(point, SumPoint)] == [3]


@pytest.mark.parametrize(
    "name", ["memory..used", "memory.", ".memory", "Memory_ratio", "2_total", "", "größe", "a b"]
)
def test_a_name_that_the_store_refuses_is_dropped_and_counted(name: str) -> None:
    recorder = Recorder(ManualClock())
    recorder.gauge(name, 1.0, {})
    recorder.gauge("memory_ratio", 1.0, {name: "x"})
    assert sums(recorder) == {DROPPED_METRIC: 2}


def test_threads_lose_nothing() -> None:
    recorder = Recorder(ManualClock())

    def work() -> None:
        for _ in range(500):
            recorder.add("x_total", 1, {})
            recorder.observe("latency_ms", 1.0, {})

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    drained = [recorder.drain()[0] for _ in range(20)]
    for thread in threads:
        thread.join()
    points = [point for part in (*drained, recorder.drain()[0]) for point in part]
    assert sum(point.value for point in points if isinstance(point, SumPoint)) == 2000
    blobs = [point.blob for point in points if isinstance(point, HistogramPoint)]
    assert sum(ExponentialHistogram.from_bytes(blob).count for blob in blobs) == 2000


def test_whoever_listens_hears_each_event_even_one_that_is_dropped() -> None:
    heard: list[tuple[str, str, dict[str, object]]] = []
    recorder = Recorder(
        ManualClock(), lambda kind, reason, data: heard.append((kind, reason, dict(data)))
    )
    recorder.event("switch", "too hot", {"to": "int8"})
    assert heard == [("switch", "too hot", {"to": "int8"})]
    for number in range(MAX_EVENTS):
        recorder.event("worker", str(number))
    assert len(heard) == MAX_EVENTS + 1
    assert len(recorder.drain()[1]) == MAX_EVENTS


def test_what_is_told_by_the_minute_waits_for_its_end() -> None:
    clock = ManualClock()
    recorder = Recorder(clock)
    for value in (1.0, 3.0):
        recorder.gauge("load_ratio", value, {})
        recorder.add("system.disk.io", value, {})
        recorder.gauge("temperature_c", value, {})
        assert [point.metric for point in recorder.drain()[0]] == ["temperature_c"]
    clock.sleep(60.0)
    disk, load = recorder.drain()[0]
    assert isinstance(disk, SumPoint)
    assert isinstance(load, GaugePoint)
    assert (disk.metric, disk.value) == ("system.disk.io", 4.0)
    assert (load.metric, load.count, load.total) == ("load_ratio", 2, 4.0)
    assert recorder.drain() == ((), ())


def test_seldom_reports_put_more_minutes_together() -> None:
    clock = ManualClock()
    clock.wall_s -= clock.wall_s % 300.0
    start = int(clock.wall_s // 60)
    recorder = Recorder(clock)
    recorder.grain_minutes = 5
    for _ in range(5):
        recorder.gauge("load_ratio", 1.0, {})
        recorder.gauge("temperature_c", 1.0, {})
        found = [(point.metric, point.minute) for point in recorder.drain()[0]]
        assert found == [("temperature_c", int(clock.wall_s // 60))]
        clock.sleep(60.0)
    (load,) = recorder.drain()[0]
    assert isinstance(load, GaugePoint)
    assert (load.minute, load.count) == (start, 5)


def test_of_an_unfinished_minute_only_events_are_told_if_asked() -> None:
    clock = ManualClock()
    recorder = Recorder(clock)
    recorder.observe("x_s", 1.0, INT8)
    recorder.add("x_total", 1.0, INT8)
    recorder.event("switch", "too hot")
    points, events = recorder.drain(finished=True)
    assert (points, [event.kind for event in events]) == ((), ["switch"])
    assert recorder.has_new_figures
    assert len(recorder.look()) == 2
    clock.sleep(60.0)
    assert len(recorder.drain(finished=True)[0]) == 2


def test_a_whole_drain_leaves_nothing() -> None:
    recorder = Recorder(ManualClock())
    recorder.gauge("load_ratio", 1.0, {})
    assert [point.metric for point in recorder.drain(whole=True)[0]] == ["load_ratio"]
    assert recorder.drain(whole=True) == ((), ())


def test_what_waited_is_told_if_the_clock_goes_back() -> None:
    clock = ManualClock()
    recorder = Recorder(clock)
    recorder.gauge("load_ratio", 1.0, {})
    clock.wall_s -= 1e6
    assert [point.metric for point in recorder.drain()[0]] == ["load_ratio"]
