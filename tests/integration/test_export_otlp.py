"""Telemetry goes to a real HTTP collector as OTLP: all of it, also after both sides were away."""

from __future__ import annotations

import logging
import math
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.errors import SettingsError
from controller.export_settings import OtlpConfig, PrometheusConfig
from controller.exporting import request_sizes
from examples.digits.box import free_port
from telemetry.histogram import (
    COUNT_MAX,
    HEADER,
    INDEX_MAX,
    INDEX_MIN,
    SCALE,
    ExponentialHistogram,
    representative,
)
from tests.simulators.measured_fleet import LATENCY, RELEASE, REQUESTS, TEMPERATURE, MeasuredFleet
from tests.simulators.otlp_receiver import Receiver, receiving
from wire.telemetry import Event, HistogramPoint

DELTA = 1
DEVICES = ("cam-1", "cam-2")
PER_REQUEST = 4
"""How many of the longest histograms go into a request of `AIM_BYTES`."""

AIM_BYTES = 80_000
"""In place of that of the controller."""


def config(url: str, **more: Any) -> OtlpConfig:
    return OtlpConfig(endpoint=url, timeout_s=0.5, **more)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


@pytest.fixture
def fleet(database_url: str, tmp_path: Path, receiver: Receiver) -> Iterator[MeasuredFleet]:
    made = MeasuredFleet(database_url, tmp_path, otlp=config(receiver.url))
    made.hand_on()  # telemetry is sent from now on
    yield made
    made.close()


def queried(fleet: MeasuredFleet, metric: str, statistic: str) -> dict[tuple[str, ...], float]:
    by = "device" if metric == TEMPERATURE else "device,variant"
    asked = {"metric": metric, "stat": statistic, "by": by, "since": "7d"}
    rows = fleet.api.get("/v1/telemetry/query", params=asked).raise_for_status().json()["rows"]
    return {tuple(row[:-1]): row[-1] for row in rows}


def received(receiver: Receiver, metric: str) -> dict[tuple[str, ...], list[Any]]:
    """Return the points of a metric by device and variant."""
    found: dict[tuple[str, ...], list[Any]] = {}
    for point in receiver.points:
        if point.name == metric:
            variant = point.attributes.get("variant")
            device = point.resource["device.id"]
            at = (device,) if variant is None else (device, variant)
            found.setdefault(at, []).append(point.data)
    return found


def merged(points: list[Any]) -> ExponentialHistogram:
    """Return the histogram that a collector would make of points."""
    histogram = ExponentialHistogram()
    for point in points:
        assert (point.scale, list(point.negative.bucket_counts)) == (SCALE, [])
        if point.zero_count:
            histogram.add(0.0, point.zero_count)
        for at, count in enumerate(point.positive.bucket_counts):
            if count:
                histogram.add(representative(point.positive.offset + at), count)
    return histogram


def measure(fleet: MeasuredFleet, seed: int, minutes: int = 4) -> None:
    generator = random.Random(seed)
    for _ in range(minutes):
        for device in DEVICES:
            for variant in ("int8", "fp32"):
                values = [generator.lognormvariate(3, 0.5) for _ in range(50)]
                fleet.measure(device, variant, [0.0, *values])
        fleet.pass_minutes(1)


def check_all(fleet: MeasuredFleet, receiver: Receiver) -> None:
    """Compare all that came with the store; nothing twice, nothing missing."""
    fleet.pass_minutes(3, *DEVICES)
    counts, totals = (queried(fleet, LATENCY, statistic) for statistic in ("count", "total"))
    p95 = queried(fleet, LATENCY, "p95")
    found = received(receiver, LATENCY)
    assert found.keys() == counts.keys()
    for at, points in found.items():
        assert sum(point.count for point in points) == counts[at]
        assert math.fsum(point.sum for point in points) == pytest.approx(totals[at])
        assert merged(points).quantile(0.95) == pytest.approx(p95[at])
        minutes = [point.time_unix_nano - point.start_time_unix_nano for point in points]
        assert minutes == [60 * 10**9] * len(points)
        assert len({point.time_unix_nano for point in points}) == len(points)
    requests = {
        at: sum(point.as_double for point in points)
        for at, points in received(receiver, REQUESTS).items()
    }
    assert requests == queried(fleet, REQUESTS, "total")


def test_all_that_was_measured_is_there_once(fleet: MeasuredFleet, receiver: Receiver) -> None:
    measure(fleet, 1)
    check_all(fleet, receiver)
    one = next(point for point in receiver.points if point.name == LATENCY)
    assert (one.unit, one.kind, one.temporality) == ("ms", "exponential_histogram", DELTA)
    assert one.attributes.keys() == {"release", "variant", "model"}
    assert (one.attributes["release"], one.attributes["model"]) == (RELEASE, "digits")
    assert one.resource == {
        "service.name": "edgefleet-agent",
        "service.instance.id": one.resource["device.id"],
        "device.id": one.resource["device.id"],
    }
    total = next(point for point in receiver.points if point.name == REQUESTS)
    assert (total.kind, total.temporality) == ("sum", DELTA)
    gauge = next(point for point in receiver.points if point.name == TEMPERATURE)
    assert (gauge.unit, gauge.kind) == ("Cel", "gauge")
    assert receiver.headers[-1]["content-encoding"] == "gzip"


def test_what_was_measured_before_the_start_is_not_sent(
    fleet: MeasuredFleet, receiver: Receiver
) -> None:
    fleet.measure("cam-1", "int8", [1.0], minute=fleet.minute - 5)
    fleet.pass_minutes(3, "cam-1")
    assert received(receiver, LATENCY) == {}


def test_a_collector_that_was_away_gets_all(
    fleet: MeasuredFleet, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "controller.exporting.worker")
    receiver.status = 503
    measure(fleet, 1)
    assert receiver.requests > 0
    assert receiver.points == []
    receiver.status = 200
    measure(fleet, 2, minutes=2)
    check_all(fleet, receiver)
    said = [r.message for r in caplog.records if r.name == "controller.exporting.worker"]
    assert [text for text in said if "it answered 503" in text] == said[:1]
    assert said[1:] == ["sending telemetry as OTLP goes on"]


def test_a_controller_that_was_killed_goes_on_where_it_was(
    fleet: MeasuredFleet, receiver: Receiver
) -> None:
    measure(fleet, 1)
    fleet.kill()
    measure(fleet, 2, minutes=2)
    fleet.stay_down(3 * 3600)
    check_all(fleet, receiver)


def test_what_was_measured_offline_is_sent_when_it_comes(
    fleet: MeasuredFleet, receiver: Receiver
) -> None:
    before = fleet.minute
    measure(fleet, 1)
    fleet.clock.advance(5 * 3600)
    for late in range(30):
        fleet.measure("cam-3", "int8", [float(late)], minute=before + late)
    fleet.measure("cam-3", "int8", [1.0])
    fleet.pass_minutes(2, "cam-3")
    check_all(fleet, receiver)


@pytest.mark.parametrize("status", [302, 400, 503])
def test_an_answer_that_is_no_success_loses_nothing(
    fleet: MeasuredFleet, receiver: Receiver, status: int
) -> None:
    receiver.status = status
    measure(fleet, 1, minutes=1)
    fleet.pass_minutes(1, *DEVICES)
    receiver.status = 200
    check_all(fleet, receiver)


def test_a_collector_that_is_not_there(
    fleet: MeasuredFleet, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    fleet.settle(otlp=config(f"http://127.0.0.1:{port}"))
    measure(fleet, 1)
    (said,) = [r.message for r in caplog.records if r.name == "controller.exporting.worker"]
    assert "did not take measurements: no connection" in said
    with receiving(port) as late:
        check_all(fleet, late)


def vast() -> bytes:
    """Return the longest histogram that a device may send."""
    number = INDEX_MAX - INDEX_MIN + 1
    head = HEADER.pack(1, SCALE, 8, INDEX_MIN, number, 0, 1.0, 1e-9, 1e18)
    return head + struct.pack(f"<{number}Q", *[COUNT_MAX] * number)


def send_vast(fleet: MeasuredFleet, device: str, number: int) -> None:
    """Let a device send so many histograms of a minute, each as long as there may be."""
    fleet.send(device, *[
        HistogramPoint(
            metric=LATENCY, minute=fleet.minute, attributes={"variant": str(each)}, blob=vast()
        )
        for each in range(number)
    ])  # fmt: skip


def test_a_request_is_never_too_long_whatever_devices_send(
    fleet: MeasuredFleet, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_sizes, "AIM_BYTES", AIM_BYTES)
    send_vast(fleet, "cam-3", 2 * PER_REQUEST)
    measure(fleet, 1, minutes=1)
    fleet.pass_minutes(2, *DEVICES, "cam-3")
    assert 0.9 * AIM_BYTES < max(receiver.sizes) <= AIM_BYTES
    receiver.limit_bytes = AIM_BYTES // 3
    send_vast(fleet, "cam-3", PER_REQUEST)
    fleet.pass_minutes(2, "cam-3")
    assert max(receiver.sizes[-3:]) <= receiver.limit_bytes
    found = received(receiver, LATENCY)
    assert {at: len(points) for at, points in found.items()} == {
        **{(device, variant): 1 for device in DEVICES for variant in ("int8", "fp32")},
        **{("cam-3", str(each)): 2 - each // PER_REQUEST for each in range(2 * PER_REQUEST)},
    }


def test_what_alone_is_too_long_is_left_out_and_counted(
    fleet: MeasuredFleet, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.settle(otlp=config(receiver.url), prometheus=PrometheusConfig(enabled=True))
    receiver.limit_bytes = len(vast()) // 2
    send_vast(fleet, "cam-3", 3)
    measure(fleet, 1, minutes=1)
    fleet.pass_minutes(3, *DEVICES, "cam-3")
    assert {device for device, _ in received(receiver, LATENCY)} == {*DEVICES}
    said = [r.message for r in caplog.records if r.name == "controller.exporting.collector"]
    assert len(said) == 1
    assert said[0].startswith("one of the measurements of cam-3 is left out for good")
    page = fleet.api.get("/metrics").text
    assert 'edgefleet_controller_otlp_rejected_total{what="measurements"} 3' in page
    assert 'edgefleet_controller_otlp_rejected_total{what="events"} 0' in page


def test_what_was_taken_is_not_sent_again_when_more_is_refused(
    fleet: MeasuredFleet, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_sizes, "AIM_BYTES", AIM_BYTES)
    receiver.refused = "cam-3"
    measure(fleet, 1, minutes=1)
    fleet.clock.advance(-60)  # all devices are in one window
    send_vast(fleet, "cam-2", PER_REQUEST)
    send_vast(fleet, "cam-3", PER_REQUEST)
    fleet.clock.advance(60)
    for _ in range(3):
        fleet.pass_minutes(1, *DEVICES, "cam-3")
    assert {device for device, _ in received(receiver, LATENCY)} == {*DEVICES}
    receiver.refused = ""
    check_all(fleet, receiver)


def test_refused_events_hold_up_no_measurements(
    fleet: MeasuredFleet, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.statuses = {"/v1/logs": 404}
    event = Event(at_s=fleet.clock.now_s(), kind="start", reason="late", data={})
    fleet.send("cam-1", events=[event])
    measure(fleet, 1, minutes=1)
    fleet.pass_minutes(2, *DEVICES)
    check_all(fleet, receiver)
    receiver.statuses = {"/v1/logs": 404, "/v1/metrics": 503}
    fleet.pass_minutes(1, *DEVICES)
    said = [r.message for r in caplog.records if r.name == "controller.exporting.worker"]
    assert ["it answered 503" in text for text in said] == [False, True]
    assert all("did not take events: it answered 404" in text for text in said)
    receiver.statuses = {}
    fleet.hand_on()
    assert [record.data.body.string_value for record in receiver.records] == ["late"]


def test_events_are_logs(fleet: MeasuredFleet, receiver: Receiver) -> None:
    data = {"variant": "int8", "inputs": {"headroom": 0.5, "calm": True}, "none": None, "few": [1]}
    at_s = fleet.clock.now_s()
    events = [
        Event(at_s=at_s + number, kind="switch", reason=f"zu heiß {number}", data=data)
        for number in range(600)
    ]
    fleet.send("cam-1", events=events[:1])
    fleet.hand_on()
    receiver.status = 503
    fleet.send("cam-1", events=events[1:])
    fleet.hand_on()
    receiver.status = 200
    fleet.kill()
    fleet.hand_on()
    fleet.hand_on()
    assert [record.data.body.string_value for record in receiver.records] == [
        event.reason for event in events
    ]
    first = receiver.records[0]
    assert first.resource["device.id"] == "cam-1"
    assert first.data.event_name == "edgefleet.switch"
    assert first.data.time_unix_nano == pytest.approx(at_s * 1e9)
    assert (first.data.severity_number, first.data.severity_text) == (9, "INFO")
    assert first.attributes == data


def test_events_that_came_before_the_start_are_not_sent(
    database_url: str, tmp_path: Path, receiver: Receiver
) -> None:
    fleet = MeasuredFleet(database_url, tmp_path)
    try:
        early = Event(at_s=fleet.clock.now_s(), kind="start", reason="early", data={})
        fleet.send("cam-1", events=[early])
        fleet.settle(otlp=config(receiver.url, metrics=False))
        fleet.hand_on()
        fleet.send(
            "cam-1", events=[Event(at_s=fleet.clock.now_s(), kind="start", reason="late", data={})]
        )
        fleet.clock.advance(60)
        fleet.hand_on()
    finally:
        fleet.close()
    assert [record.data.body.string_value for record in receiver.records] == ["late"]


def test_headers_come_from_a_file(fleet: MeasuredFleet, receiver: Receiver, tmp_path: Path) -> None:
    path = tmp_path / "otlp.headers"
    path.write_text("Authorization: Bearer secret:1\n\nX-Scope-OrgID: fleet\n")
    fleet.settle(otlp=config(receiver.url, headers_file=str(path), compression="none"))
    measure(fleet, 1, minutes=1)
    fleet.pass_minutes(1, *DEVICES)
    headers = receiver.headers[-1]
    assert (headers["authorization"], headers["x-scope-orgid"]) == ("Bearer secret:1", "fleet")
    assert "content-encoding" not in headers
    path.write_text("Authorization\n")
    with pytest.raises(SettingsError, match="line 1 is not NAME: VALUE") as refused:
        fleet.settle(otlp=config(receiver.url, headers_file=str(path)))
    assert "Bearer" not in refused.value.message
