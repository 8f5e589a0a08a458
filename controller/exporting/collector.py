"""A collector of OTLP, spoken to through the OpenTelemetry SDK: the one door to it.

Rules:
- The library is imported when a collector is used: it is an extra.
- A device is a resource: `service.instance.id` and `device.id` are its name.
- Of each minute what was counted in it is sent (delta temporality), with the minute as its time. A
  histogram stays exponential, of the same scale and buckets.
- A collector that took a request may say that it rejected some of it: that is not sent again, and
  nor is what is too long for it. It is counted, and said once for each reason.
- What is asked of the network is bounded in `controller.exporting.otlp_session`.

Source:
    OpenTelemetry, "Metrics data model" and "Logs data model"; semantic conventions of `service.*`
    and `device.*`.
"""

from __future__ import annotations

import importlib.util
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from controller.errors import CollectorError, SettingsError
from controller.export_settings import OtlpConfig
from controller.exporting.otlp_session import Told, session
from controller.posting import Answer
from telemetry.metrics import Kind, known
from telemetry.server.export.places import NumberedEvent
from telemetry.server.export.reading import Measured
from telemetry.server.question import SECONDS_PER_MINUTE
from wire.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.sdk._logs import ReadableLogRecord
    from opentelemetry.sdk.metrics.export import Metric, ResourceMetrics
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

SERVICE: Final = "edgefleet-agent"
SCOPE: Final = "edgefleet.telemetry"
EVENT: Final = "edgefleet."
"""What the name of an event begins with; its kind follows."""

MEASUREMENTS: Final = "measurements"
EVENTS: Final = "events"
LOGS_PATH: Final = "/v1/logs"
MAX_REASONS: Final = 20
MAX_REASON_CHARS: Final = 200
NANOS_PER_S: Final = 10**9
_log = logging.getLogger(__name__)


def check_library() -> None:
    """Refuse to begin without the extra.

    Raises:
        SettingsError: It is not installed.
    """
    if importlib.util.find_spec("opentelemetry.exporter") is None or (
        importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http") is None
    ):
        raise SettingsError(
            "the OpenTelemetry SDK is not installed, and [otlp] needs it",
            remedy="pip install 'edgefleet[otlp]'",
        )


class Collector:
    """Sends telemetry to one collector.

    Args:
        config: Where it is.
        headers: Of each request.

    Raises:
        SettingsError: The library is not installed.
    """

    def __init__(self, config: OtlpConfig, headers: Mapping[str, str]) -> None:
        check_library()
        from opentelemetry.exporter.otlp.proto.http import Compression
        from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        self._endpoint = config.endpoint.rstrip("/")
        self._is_closed = False
        self._told = Told()
        self._reasons: set[str] = set()
        self.rejected = Counter({MEASUREMENTS: 0, EVENTS: 0})
        """How much the collector has rejected for good, by what it is."""

        more: dict[str, Any] = {
            "certificate_file": config.ca_file,
            "headers": dict(headers),
            "timeout": config.timeout_s,
            "compression": Compression(config.compression),
            "session": session(self._told, self._look),
        }
        self._metrics = OTLPMetricExporter(f"{self._endpoint}/v1/metrics", **more)
        self._logs = OTLPLogExporter(f"{self._endpoint}{LOGS_PATH}", **more)

    def send_measured(self, found: Sequence[Measured]) -> None:
        """Send measurements; returns when the collector has them.

        Args:
            found: One or more.

        Raises:
            CollectorError: It did not take them.
        """
        from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData

        ordered = sorted(found, key=lambda one: (one.device, one.series.metric, one.series.kind))
        data = MetricsData([
            _resource_metrics(device, list(group))
            for device, group in groupby(ordered, key=lambda one: one.device)
        ])  # fmt: skip
        if self._metrics.export(data) is not MetricExportResult.SUCCESS:
            raise self._refused(MEASUREMENTS)

    def send_events(self, found: Sequence[NumberedEvent], now_s: float) -> None:
        """Send events; returns when the collector has them.

        Args:
            found: One or more.
            now_s: Wall time.

        Raises:
            CollectorError: It did not take them.
        """
        from opentelemetry.sdk._logs.export import LogRecordExportResult

        records = [_record(one, now_s) for one in found]
        if self._logs.export(records) is not LogRecordExportResult.SUCCESS:
            raise self._refused(EVENTS)

    def close(self) -> None:
        """End what is on its way; may be called again, and in another thread."""
        if self._is_closed:
            return
        self._is_closed = True
        self._metrics.shutdown()
        self._logs.shutdown()  # type: ignore[no-untyped-call]  # of the library
        for what, number in self.rejected.items():
            if number:
                _log.info(
                    "the collector at %s has rejected %d %s since the start",
                    *(self._endpoint, number, what),
                )

    def leave_out(self, found: Measured | NumberedEvent) -> None:
        """Note that something is not sent: alone it is too long for the collector.

        Args:
            found: What it is.
        """
        what, device = (
            (MEASUREMENTS, found.device)
            if isinstance(found, Measured)
            else (EVENTS, found.found.device)
        )
        self.rejected[what] += 1
        if self._is_new(f"too long {what} {device}"):
            _log.warning(
                "one of the %s of %s is left out for good: alone it is too long for the collector "
                "at %s (said once)",
                *(what, device, self._endpoint),
            )

    def _refused(self, what: str) -> CollectorError:
        return CollectorError(
            f"the collector at {self._endpoint} did not take {what}: "
            f"{self._told.fault or 'it was stopped'}",
            remedy="look at its log; what it lacks is sent again",
            retry_after_s=self._told.retry_after_s,
            is_too_long=self._told.is_too_long,
        )

    def _is_new(self, reason: str) -> bool:
        """Tell whether a reason is to be said: it is a new one, and not too many were."""
        if reason in self._reasons or len(self._reasons) > MAX_REASONS:
            return False
        self._reasons.add(reason)
        return True

    def _look(self, url: str, answer: Answer) -> None:
        """Look whether a collector that took a request rejected some of it."""
        what = EVENTS if url.endswith(LOGS_PATH) else MEASUREMENTS
        number, reason = _rejected(what, answer.body)
        self.rejected[what] += number
        if not reason or not self._is_new(reason):
            return
        if len(self._reasons) > MAX_REASONS:
            reason = "and gave more reasons than are logged"
        _log.warning(
            "the collector at %s took %s, rejected %d of them for good, %s (said once)",
            *(self._endpoint, what, number, reason),
        )


def _rejected(what: str, body: bytes | None) -> tuple[int, str]:
    """Return how much a collector rejected, and why; its text in one line."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceResponse,
    )

    unknown = 0, "or more: its answer is too long, too late or not one of OTLP"
    if body is None:
        return unknown
    try:
        if what == EVENTS:
            logs = ExportLogsServiceResponse.FromString(body).partial_success
            number, said = logs.rejected_log_records, logs.error_message
        else:
            points = ExportMetricsServiceResponse.FromString(body).partial_success
            number, said = points.rejected_data_points, points.error_message
    except DecodeError:
        return unknown
    if said:
        return max(number, 0), f"and says {said[:MAX_REASON_CHARS]!a}"
    return max(number, 0), "and does not say why" if number else ""


def _resource_metrics(device: str, found: list[Measured]) -> ResourceMetrics:
    from opentelemetry.sdk.metrics.export import ResourceMetrics, ScopeMetrics

    metrics = [
        _metric(name, kind, list(group))
        for (name, kind), group in groupby(
            found, key=lambda one: (one.series.metric, one.series.kind)
        )
    ]
    return ResourceMetrics(_resource(device), [ScopeMetrics(_scope(), metrics, "")], "")


def _resource(device: str) -> Resource:
    from opentelemetry.sdk.resources import Resource

    return Resource({
        "service.name": SERVICE,
        "service.instance.id": device,
        "device.id": device,
    })  # fmt: skip


def _scope() -> InstrumentationScope:
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    return InstrumentationScope(SCOPE, VERSION)


def _metric(name: str, kind: Kind, found: list[Measured]) -> Metric:
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        ExponentialHistogram,
        Gauge,
        Metric,
        Sum,
    )

    named = known(name)
    meaning, unit = (named.meaning, named.unit) if named is not None else ("", "")
    delta = AggregationTemporality.DELTA
    data: ExponentialHistogram | Sum | Gauge
    if kind == "histogram":
        data = ExponentialHistogram([_histogram_point(one) for one in found], delta)
    elif kind == "sum":
        points = [_number(one, one.measure.total) for one in found]
        data = Sum(points, delta, is_monotonic=True)
    else:
        data = Gauge([_number(one, one.measure.total / one.measure.count) for one in found])
    return Metric(name, meaning, unit, data)


def _histogram_point(found: Measured) -> Any:  # noqa: ANN401 - a type of the library
    from opentelemetry.sdk.metrics.export import Buckets, ExponentialHistogramDataPoint

    from telemetry.histogram import SCALE, ExponentialHistogram

    measure = found.measure
    histogram = measure.histogram or ExponentialHistogram()
    buckets = dict(histogram.buckets())
    first = min(buckets, default=0)
    counts = [buckets.get(index, 0) for index in range(first, max(buckets, default=-1) + 1)]
    return ExponentialHistogramDataPoint(
        **_times(found),
        count=measure.count,
        sum=measure.total,
        scale=SCALE,
        zero_count=histogram.zeros,
        positive=Buckets(first, counts),
        negative=Buckets(0, []),
        flags=0,
        min=measure.least,
        max=measure.greatest,
    )


def _number(found: Measured, value: float) -> Any:  # noqa: ANN401 - a type of the library
    from opentelemetry.sdk.metrics.export import NumberDataPoint

    return NumberDataPoint(**_times(found), value=value)


def _times(found: Measured) -> dict[str, Any]:
    start_s = found.minute * SECONDS_PER_MINUTE
    return {
        "attributes": dict(found.series.attributes),
        "start_time_unix_nano": start_s * NANOS_PER_S,
        "time_unix_nano": (start_s + SECONDS_PER_MINUTE) * NANOS_PER_S,
    }


def _record(found: NumberedEvent, now_s: float) -> ReadableLogRecord:
    from opentelemetry._logs import LogRecord, SeverityNumber
    from opentelemetry.sdk._logs import ReadableLogRecord

    device, event = found.found
    record = LogRecord(
        timestamp=int(event.at_s * NANOS_PER_S),
        observed_timestamp=int(now_s * NANOS_PER_S),
        severity_number=SeverityNumber.INFO,
        severity_text="INFO",
        body=event.reason,
        attributes=event.data,
        event_name=EVENT + event.kind,
    )
    return ReadableLogRecord(record, _resource(device), _scope())
