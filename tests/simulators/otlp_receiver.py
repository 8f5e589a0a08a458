"""A collector of OTLP over HTTP: it decodes with OpenTelemetry's own messages, and keeps all.

```
with receiving() as receiver:
    receiver.url, receiver.points, receiver.records
```
"""

from __future__ import annotations

import gzip
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)


@dataclass(frozen=True)
class Point:
    """A data point, with what it belongs to."""

    resource: dict[str, Any]
    name: str
    unit: str
    kind: str
    attributes: dict[str, Any]
    data: Any
    temporality: int


@dataclass(frozen=True)
class Record:
    """A log record, with what it belongs to."""

    resource: dict[str, Any]
    attributes: dict[str, Any]
    data: Any


DRIP_S = 0.02


@dataclass
class Receiver:
    """What came."""

    port: int
    status: int = 200
    """What is answered; only what is answered with 200 is kept."""

    statuses: dict[str, int] = field(default_factory=dict)
    """What is answered at a path, in place of that."""

    limit_bytes: int = 20 * 2**20
    """A request that is longer before it is packed is answered with 413; the default is that of
    OpenTelemetry's own collector."""

    refused: str = ""
    """A request with points of this device is answered with 400."""

    answer: bytes = b""
    """The body of the answer."""

    header: dict[str, str] = field(default_factory=dict)
    """What else the answer has in its header."""

    drips: str = ""
    """Which part of the answer never ends: `header`, `body`, or none."""

    requests: int = 0
    headers: list[dict[str, str]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    """Of each request with points that was taken, before it was packed."""

    points: list[Point] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    pause: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def take(self, path: str, headers: dict[str, str], body: bytes) -> int:
        """Take a request, and return the status of its answer."""
        self.requests += 1
        status = self.statuses.get(path, self.status)
        if status != 200:
            return status
        self.headers.append(headers)
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        if len(body) > self.limit_bytes:
            return 413
        if path == "/v1/metrics":
            points = list(_points(ExportMetricsServiceRequest.FromString(body)))
            if any(point.resource["device.id"] == self.refused for point in points):
                return 400
            self.points += points
            self.sizes.append(len(body))
        else:
            assert path == "/v1/logs"
            self.records += _records(ExportLogsServiceRequest.FromString(body))
        return 200


def _points(request: Any) -> Iterator[Point]:
    for of_resource in request.resource_metrics:
        resource = attributes_of(of_resource.resource.attributes)
        for of_scope in of_resource.scope_metrics:
            for metric in of_scope.metrics:
                kind = metric.WhichOneof("data")
                data = getattr(metric, kind)
                temporality = 0 if kind == "gauge" else data.aggregation_temporality
                for point in data.data_points:
                    named = attributes_of(point.attributes)
                    yield Point(resource, metric.name, metric.unit, kind, named, point, temporality)


def _records(request: Any) -> Iterator[Record]:
    for of_resource in request.resource_logs:
        resource = attributes_of(of_resource.resource.attributes)
        for of_scope in of_resource.scope_logs:
            for record in of_scope.log_records:
                yield Record(resource, attributes_of(record.attributes), record)


def attributes_of(pairs: Any) -> dict[str, Any]:
    """Return attributes as plain values."""
    return {pair.key: _plain(pair.value) for pair in pairs}


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "kvlist_value":
        return attributes_of(value.kvlist_value.values)
    if kind == "array_value":
        return [_plain(each) for each in value.array_value.values]
    return None if kind is None else getattr(value, kind)


@contextmanager
def receiving(port: int = 0, tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """Run a collector, on a port of its own or on the one of an earlier collector."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status = receiver.take(self.path, headers, body)
            self.send_response(status)
            if status == 302:
                self.send_header("Location", "/elsewhere")
            for name, value in receiver.header.items():
                self.send_header(name, value)
            length = 10**9 if receiver.drips else len(receiver.answer)
            self.send_header("Content-Length", str(length))
            self.send_header("Connection", "close")
            if receiver.drips == "header":
                self.flush_headers()
                self.wfile.write(b"X-Long: ")
            else:
                self.end_headers()
                self.wfile.write(receiver.answer)
            with suppress(OSError):
                while receiver.drips:
                    self.wfile.write(b"x")
                    receiver.pause.wait(DRIP_S)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    receiver = Receiver(server.server_port)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
