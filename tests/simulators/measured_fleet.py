"""A controller that hands telemetry on, and devices whose measurements are all known.

```
fleet = MeasuredFleet(database_url, tmp_path, prometheus=PrometheusConfig(enabled=True))
fleet.measure("cam-1", "int8", [12.0, 15.0])      # in this minute
fleet.pass_minutes(3)                             # hands on what is settled after each
```
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from controller.api.server import HttpServer
from telemetry.histogram import ExponentialHistogram
from tests.simulators.controller_fleet import Fleet
from wire.telemetry import (
    Event,
    GaugePoint,
    HistogramPoint,
    Point,
    SumPoint,
    TelemetryBatch,
)

RELEASE = "digits:1.0.0"
LATENCY = "inference_latency_ms"
REQUESTS = "inference_requests_total"
TEMPERATURE = "temperature_c"


class MeasuredFleet(Fleet):
    """A controller with other settings, and its telemetry.

    Args:
        database_url: An empty database.
        directory: For the controller's files.
        **settings: Of the controller, such as `prometheus`.
    """

    def __init__(self, database_url: str, directory: Path, **settings: Any) -> None:
        super().__init__(database_url, directory)
        self.sequence = 0
        self.settle(**settings)

    def settle(self, **settings: Any) -> None:
        """Start a controller with other settings on the same database."""
        self.config = msgspec.structs.replace(self.config, **settings)
        self.kill()

    @property
    def minute(self) -> int:
        """The minute that the clock shows."""
        return int(self.clock.now_s() // 60)

    def send(self, device: str, *points: Point, events: Sequence[Event] = ()) -> None:
        """Let a device send a batch."""
        self.sequence += 1
        batch = TelemetryBatch(
            device=device,
            boot_id="boot",
            sequence=self.sequence,
            points=points,
            events=tuple(events),
        )
        assert self.controller._telemetry.ingest(batch)

    def measure(
        self, device: str, variant: str, values: Sequence[float], *, minute: int | None = None
    ) -> None:
        """Let a device answer requests that took so many milliseconds, at that many degrees."""
        at = self.minute if minute is None else minute
        named = {"release": RELEASE, "variant": variant}
        histogram = ExponentialHistogram()
        for value in values:
            histogram.add(value)
        self.send(
            device,
            HistogramPoint(metric=LATENCY, minute=at, attributes=named, blob=histogram.to_bytes()),
            SumPoint(metric=REQUESTS, minute=at, attributes=named, value=len(values)),
            GaugePoint(
                metric=TEMPERATURE,
                minute=at,
                attributes={},
                count=len(values),
                total=sum(values),
                least=min(values),
                greatest=max(values),
            ),
        )

    def hand_on(self) -> None:
        """Hand on what there is."""
        self.controller.exports.pass_once()

    def pass_minutes(self, minutes: int, *devices: str) -> None:
        """Let time pass in which devices measure only the heat; hand on after each minute."""
        for _ in range(minutes):
            self.clock.advance(60)
            for device in devices:
                point = GaugePoint(
                    metric=TEMPERATURE, minute=self.minute, attributes={},
                    count=1, total=50.0, least=50.0, greatest=50.0,
                )  # fmt: skip
                self.send(device, point)
            self.hand_on()

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Serve the API over HTTP; yields its address."""
        server = HttpServer("127.0.0.1", 0)
        server.start(self.controller.app)
        try:
            yield f"http://127.0.0.1:{server.port}"
        finally:
            server.stop()
