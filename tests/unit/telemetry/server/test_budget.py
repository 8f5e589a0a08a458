"""A device's budget holds what an honest agent sends, and not much more."""

from __future__ import annotations

import math
from pathlib import Path

from agent.app.config import AgentConfig
from telemetry.device.recorder import Recorder
from telemetry.metrics import METRICS
from telemetry.server.budget import (
    BURST_BYTES,
    REFILL_BYTES_PER_HOUR,
    ROW_BYTES,
    SMALL_SKETCH_BYTES,
    Budgets,
    event_bytes,
    minute_bytes,
)
from telemetry.server.ingest import SeriesKey, checked, span_at
from telemetry.server.measures import folded
from telemetry.server.rows import Measure
from tests.simulators.clock import FakeClock
from wire.codec import to_msgpack
from wire.telemetry import Point, TelemetryBatch

HOUR_S = 3600.0
SPOOL_BYTES = AgentConfig(
    device="d", state_dir=Path("/s"), profile=Path("/p"), trust=Path("/t")
).spool_bytes


def busiest_minute(clock: FakeClock) -> tuple[Point, ...]:
    """Return what an agent with nine variants records if everything happens in one minute."""
    recorder = Recorder(clock)
    record_hardware(recorder)
    recorder.add("variant_switches_total", 1.0, {"release": "d:1"})
    for number in range(9):
        record_variant(
            recorder, {"variant": f"onnxruntime-int8-{number}", "release": "detector:1.0.0"}
        )
    return recorder.drain(whole=True)[0]


def record_hardware(recorder: Recorder) -> None:
    """Record what a board with many sensors has."""
    for metric, about in METRICS.items():
        if about.kind == "gauge" and not about.attributes:
            recorder.gauge(metric, 61.5, {})
    for number in range(16):
        for metric in ("hw.temperature", "zone_headroom_ratio"):
            recorder.gauge(metric, 61.5, {"hw.id": f"cpu-{number}-thermal"})
    for number in range(3):
        recorder.add("hw.energy", 61.5, {"hw.id": f"package-{number}"})
        disk = {"system.device": f"nvme{number}n1", "disk.io.direction": "write"}
        recorder.add("system.disk.io", 1e6, disk)
        for way in ("receive", "transmit"):
            named = {"network.interface.name": f"eth{number}", "network.io.direction": way}
            recorder.add("system.network.io", 1e6, named)


def record_variant(recorder: Recorder, named: dict[str, str]) -> None:
    """Record what a variant has with which everything happens."""
    for metric in ("requests", "runs", "joined", "deferred"):
        recorder.add(f"inference_{metric}_total", 1.0, named)
    recorder.add("worker_compute_seconds_total", 1.0, named)
    recorder.add("process.cpu.time", 1.0, {**named, "role": "worker"})
    recorder.gauge("process.memory.usage", 1e8, {**named, "role": "worker"})
    recorder.add("inference_invalid_total", 1.0, {**named, "code": "400"})
    for code in ("busy", "late", "none"):
        for metric in ("refusals", "failures"):
            recorder.add(f"inference_{metric}_total", 1.0, {**named, "code": f"serve.{code}"})
    for n in range(600):
        latency_ms = 20.0 * 1.3 ** math.sin(n) * (1 + n % 7)
        recorder.observe("inference_latency_ms", latency_ms, named)
        recorder.observe("inference_queue_s", latency_ms / 2000, named)
        recorder.observe("inference_runtime_s", 0.02 * 1.3 ** math.sin(n), named)
        recorder.observe("inference_batch_requests", 1 + n % 7, named)
    recorder.observe("switch_gap_ms", 1000.0, named)


def taken_out(*points: Point, clock: FakeClock) -> int:
    """Return what points take out of a budget that find no rows of theirs."""
    batch = TelemetryBatch(device="d" * 63, boot_id="b", sequence=0, points=points)
    found = checked(batch, span_at(clock.now_s(), math.inf))
    assert found.refused == 0
    parts: dict[tuple[SeriesKey, int], list[Measure]] = {}
    for key, minute, measure in found.measures:
        parts.setdefault((key, minute), []).append(measure)
    rows = folded(parts).values()
    return sum(minute_bytes(None, len(measure.sketch or b"")) for measure in rows)


def test_the_busiest_agent_refills_more_than_it_takes_out() -> None:
    clock = FakeClock()
    points = busiest_minute(clock)
    assert len(points) == 230
    assert taken_out(*points, clock=clock) * 60 < REFILL_BYTES_PER_HOUR


def test_a_full_spool_of_whatever_points_fits_into_a_full_bucket() -> None:
    clock = FakeClock()
    for point in busiest_minute(clock):
        points_in_spool = SPOOL_BYTES / len(to_msgpack(point))
        assert points_in_spool * taken_out(point, clock=clock) < BURST_BYTES


def test_a_device_that_overdrew_may_store_again_when_its_bucket_has_refilled() -> None:
    clock = FakeClock()
    budgets = Budgets(clock)
    budgets.spend({"cam-1": BURST_BYTES + REFILL_BYTES_PER_HOUR})
    assert budgets.tells("cam-1")
    assert not budgets.tells("cam-1")
    clock.sleep(HOUR_S - 1.0)
    assert not budgets.has_room("cam-1")
    clock.sleep(2.0)
    assert budgets.has_room("cam-1")
    assert budgets.has_room("cam-2")


def test_a_row_costs_what_it_grows_by() -> None:
    assert minute_bytes(None, 0) == ROW_BYTES
    assert minute_bytes(None, 100) == ROW_BYTES + 100
    assert minute_bytes(100, 130) == 30
    assert minute_bytes(130, 100) == 0
    assert minute_bytes(0, 0) == 0


def test_a_large_sketch_costs_its_size_each_time() -> None:
    large = SMALL_SKETCH_BYTES + 1
    assert minute_bytes(large, large) == large
    assert minute_bytes(large, large + 5) == large + 5


def test_an_event_costs_its_texts() -> None:
    bare = {"kind": "", "reason": "", "data": ""}
    assert event_bytes(bare | {"reason": "ä", "data": "{}"}) == event_bytes(bare) + 4


def test_each_device_has_a_bucket_of_its_own() -> None:
    clock = FakeClock()
    budgets = Budgets(clock)
    budgets.spend({"a": BURST_BYTES + 1})
    assert not budgets.has_room("a")
    assert budgets.has_room("b")
    budgets.forget_full()
    assert not budgets.has_room("a")
    clock.advance(HOUR_S)
    assert budgets.has_room("a")


def test_a_refusal_is_told_once_until_the_bucket_is_full_again() -> None:
    clock = FakeClock()
    budgets = Budgets(clock)
    budgets.spend({"a": BURST_BYTES})
    assert [budgets.tells("a") for _ in range(3)] == [True, False, False]
    clock.advance(HOUR_S)
    budgets.spend({"a": REFILL_BYTES_PER_HOUR})
    assert not budgets.tells("a")
    clock.advance(HOUR_S * BURST_BYTES / REFILL_BYTES_PER_HOUR)
    assert budgets.tells("a")
