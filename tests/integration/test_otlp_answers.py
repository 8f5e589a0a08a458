"""What a collector of OTLP may answer: it holds up nothing, fills no memory, and is listened to."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)

from controller.errors import CollectorError
from controller.export_settings import OtlpConfig
from controller.exporting.collector import MAX_REASONS, Collector
from controller.exporting.otlp_session import MAX_RETRY_AFTER_S, asked_to_wait_s
from controller.posting import MAX_ANSWER_BYTES
from telemetry.server.export.amounts import Amount
from telemetry.server.export.places import NumberedEvent
from telemetry.server.export.reading import Measured, NamedSeries
from telemetry.server.rows import StoredEvent
from tests.simulators.certificates import Authority
from tests.simulators.otlp_receiver import DRIP_S, Receiver, receiving
from tests.simulators.patience import PATIENCE_S
from wire.telemetry import Event

AMOUNT = Amount(count=1, total=50.0, least=50.0, greatest=50.0, histogram=None)
HEAT = [Measured(NamedSeries("temperature_c", "gauge", {}), 28_000_800, "cam-1", AMOUNT)]


EVENT = Event(at_s=1_700_000_000.0, kind="switch", reason="hot", data={})
EVENTS = [NumberedEvent(1, StoredEvent("cam-1", EVENT))]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made
        made.drips = ""


@pytest.fixture
def collector(receiver: Receiver) -> Iterator[Collector]:
    made = Collector(OtlpConfig(endpoint=receiver.url, timeout_s=0.3), {})
    yield made
    made.close()


def test_what_a_collector_rejects_is_counted_and_said_once_a_reason(
    receiver: Receiver, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "controller.exporting.collector")
    points = ExportMetricsServiceResponse()
    points.partial_success.rejected_data_points = 5
    points.partial_success.error_message = "too\nold"
    receiver.answer = points.SerializeToString()
    for _ in range(3):
        collector.send_measured(HEAT)
    records = ExportLogsServiceResponse()
    for number in range(MAX_REASONS + 5):
        records.partial_success.rejected_log_records = 1
        records.partial_success.error_message = f"reason {number}"
        receiver.answer = records.SerializeToString()
        collector.send_events(EVENTS, 0.0)
    assert collector.rejected == {"measurements": 15, "events": MAX_REASONS + 5}
    collector.close()
    first, *_, last, ended, _ = [record.message for record in caplog.records]
    assert "took measurements, rejected 5 of them for good, and says 'too\\nold'" in first
    assert "more reasons than are logged" in last
    assert ended.endswith("has rejected 15 measurements since the start")
    assert len(caplog.records) == MAX_REASONS + 1 + 2


@pytest.mark.parametrize("answer", ["dripping", "too long", "no OTLP"])
def test_an_answer_of_any_length_is_a_success_if_its_status_is(
    receiver: Receiver, collector: Collector, caplog: pytest.LogCaptureFixture, answer: str
) -> None:
    receiver.drips = "body" if answer == "dripping" else ""
    receiver.answer = b"\xff" * (MAX_ANSWER_BYTES + 1 if answer == "too long" else 4)
    collector.send_measured(HEAT)
    assert receiver.requests == 1
    assert "its answer is too long, too late or not one of OTLP" in caplog.text


def test_a_header_that_does_not_end_is_cut_off(receiver: Receiver, collector: Collector) -> None:
    receiver.drips = "header"
    with pytest.raises(CollectorError, match="it did not answer in time"):
        collector.send_measured(HEAT)


def test_a_certificate_is_checked_with_the_authority_that_was_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "site")
    certificate = authority.issue("collector")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate.cert_file, certificate.key_file)
    with receiving(tls=tls) as receiver:
        endpoint = receiver.url.replace("http:", "https:")
        for ca_file in (str(authority.ca_file), None):
            collector = Collector(OtlpConfig(endpoint=endpoint, ca_file=ca_file), {})
            if ca_file is not None:
                collector.send_measured(HEAT)
            else:
                with pytest.raises(CollectorError, match="its certificate is refused"):
                    collector.send_measured(HEAT)
            collector.close()
        assert len(receiver.points) == 1


def test_a_handshake_that_does_not_end_is_cut_off() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        collector = Collector(
            OtlpConfig(endpoint=f"https://127.0.0.1:{server.getsockname()[1]}", timeout_s=0.3), {}
        )

        def drip() -> None:
            with suppress(OSError), server.accept()[0] as connection:
                connection.sendall(b"\x16\x03\x03\x40\x00")  # a record of 16 KiB begins
                while True:
                    connection.sendall(b"\0")
                    ended.wait(DRIP_S)

        ended = threading.Event()
        dripping = threading.Thread(target=drip, daemon=True)
        dripping.start()
        with pytest.raises(CollectorError, match="it did not answer in time"):
            collector.send_measured(HEAT)
        collector.close()
        dripping.join(PATIENCE_S)


@pytest.mark.parametrize("status", [429, 503])
def test_a_collector_that_asks_to_wait_is_heard(
    receiver: Receiver, collector: Collector, status: int
) -> None:
    receiver.status, receiver.header = status, {"Retry-After": "120"}
    with pytest.raises(CollectorError, match=f"{status} and asks to wait 120 s") as refused:
        collector.send_measured(HEAT)
    assert refused.value.retry_after_s == 120
    receiver.status = 400
    with pytest.raises(CollectorError) as refused:
        collector.send_measured(HEAT)
    assert refused.value.retry_after_s == 0


@pytest.mark.parametrize(
    ("header", "wait_s"),
    [
        ({}, 0),
        ({"RETRY-AFTER": " 7 "}, 7),
        ({"Retry-After": "99999999999999999999"}, MAX_RETRY_AFTER_S),
        ({"Retry-After": "-5"}, 0),
        ({"Retry-After": "soon"}, 0),
        ({"Retry-After": "Fri, 27 Nov 2026 10:00:30 GMT"}, 0),
        (
            {
                "Retry-After": "Fri, 27 Nov 2026 10:00:30 GMT",
                "Date": "Fri, 27 Nov 2026 10:00:00 GMT",
            },
            30,
        ),
        ({"Retry-After": "Fri, 27 Nov 2026 10:00:30 GMT", "Date": "Fri, 27 Nov 2026"}, 0),
    ],
)
def test_how_long_a_server_asks_to_wait(header: dict[str, str], wait_s: float) -> None:
    assert asked_to_wait_s(header) == wait_s
