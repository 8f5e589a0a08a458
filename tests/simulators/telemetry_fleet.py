"""A controller in this process with an hour of telemetry, whose API answers on loopback.

```
with answering(tmp_path) as served:
    served.ok("telemetry", "query", "temperature_c", "--by", "site")
```
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from controller.api.server import HttpServer
from telemetry.histogram import ExponentialHistogram
from tests.simulators.controller_fleet import API_TOKEN, Fleet
from tests.simulators.stack import Done, fleet_here, fleet_on_terminal
from wire import topics
from wire.clock import SystemClock
from wire.codec import to_msgpack
from wire.telemetry import (
    Event,
    GaugePoint,
    HistogramPoint,
    Point,
    SumPoint,
    TelemetryBatch,
)
from wire.transport import Received

MINUTES = 60
DEVICES = {"cam-1": "berlin", "cam-2": "berlin", "cam-3": "hamburg"}
VARIANTS = ("fp32", "int8 \N{MOVIE CAMERA} \u30ab\u30e1\u30e9")
"""The second one has characters that take two columns each."""


@dataclass
class Served:
    """A controller whose API answers."""

    fleet: Fleet
    server: HttpServer
    token_file: Path

    @property
    def where(self) -> tuple[str, ...]:
        """The options that say where it is."""
        url = f"http://{self.server.host}:{self.server.port}"
        return ("--url", url, "--token-file", str(self.token_file))

    def run(self, *words: str, terminal: bool = False) -> Done:
        return fleet_here(*words, *self.where, terminal=terminal)

    def ok(self, *words: str, terminal: bool = False) -> Done:
        done = self.run(*words, terminal=terminal)
        assert done.code == 0, done.err
        return done

    def on_terminal(self, *words: str, columns: int = 100, **changes: str) -> Done:
        return fleet_on_terminal(*words, *self.where, columns=columns, **changes)


@contextmanager
def answering(directory: Path) -> Iterator[Served]:
    """Serve the API of a fleet with an hour of telemetry, for the length of a `with` block."""
    fleet = Fleet(f"sqlite:///{directory / 'fleet.db'}", directory)
    # Commands ask for the last hour by their own clock.
    fleet.clock.correct(SystemClock().now_s() - fleet.clock.now_s())
    server = HttpServer("127.0.0.1", 0)
    token_file = directory / "api.token"
    token_file.write_text(API_TOKEN)
    try:
        for name, site in DEVICES.items():
            fleet.enrol(name, site=site)
            measure(fleet, name)
        server.start(fleet.controller.app)
        yield Served(fleet, server, token_file)
    finally:
        server.stop()
        fleet.close()


def measure(fleet: Fleet, device: str) -> None:
    """Let a device report an hour, in which it becomes warmer and slower."""
    now = int(fleet.clock.now_s() // 60)
    warmer = 1.0 + 0.2 * list(DEVICES).index(device)
    points: list[Point] = []
    for minute in range(now - MINUTES + 1, now + 1):
        share = 1 - (now - minute) / MINUTES
        heat = warmer * (50 + 20 * share + 3 * math.sin(minute / 4))
        points.append(
            GaugePoint(
                metric="temperature_c", minute=minute, attributes={}, count=1, total=heat,
                least=heat, greatest=heat,
            )
        )  # fmt: skip
        points.append(
            SumPoint(
                metric="install_bytes_total", minute=minute, attributes={"source": "http"},
                value=3e5 * share,
            )
        )  # fmt: skip
        for variant, base_ms in zip(VARIANTS, (20.0, 8.0), strict=True):
            histogram = ExponentialHistogram()
            for number in range(1, 11):
                histogram.add(base_ms * warmer * (1 + share) * (1 + number / 20))
            named = {"variant": variant, "release": "digits:1"}
            points.append(
                HistogramPoint(
                    metric="inference_latency_ms", minute=minute, attributes=named,
                    blob=histogram.to_bytes(),
                )
            )  # fmt: skip
    started = Event(
        at_s=fleet.clock.now_s() - 60, kind="start", reason="the agent begins",
        data={"to": "fp32", "cost": {"variants": 2}},
    )  # fmt: skip
    batch = TelemetryBatch(
        device=device, boot_id="b", sequence=1, points=tuple(points), events=(started,)
    )
    fleet.hub.deliver(Received(topics.up(device, "telemetry"), to_msgpack(batch)))
