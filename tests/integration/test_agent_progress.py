"""A real agent on a slow link tells how far its transfer is, and at the end what came which way."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from runtime_adapters.golden import save_golden
from tests.field.slow_link import SlowLink
from tests.simulators.agent_process import MODELS, Controller, Device, bring_to_serve, reference
from tests.simulators.broker import RunningBroker
from tests.simulators.packages import SignedPackage, package, variant
from tests.simulators.patience import until
from wire.installs import InstallReport
from wire.messages import decode_message
from wire.package.golden import Golden, Tolerance
from wire.package.index import CHUNK_BYTES, asset_uri
from wire.telemetry import SumPoint, TelemetryBatch
from wire.topics import parse_up

pytestmark = pytest.mark.broker

ROWS = np.random.default_rng(1).standard_normal((20_000, 4), dtype=np.float32)
LINK_BYTES_PER_S = 160_000


def large_package() -> SignedPackage:
    """Return a package of 640 KB, most of it golden samples."""
    files = save_golden({"x": ROWS}, reference(variant("best"), MODELS["best"], ROWS))
    golden = Golden(
        asset=asset_uri(files),
        samples=len(ROWS),
        tolerances={"y": Tolerance(absolute=1e-5, relative=1e-4)},
    )
    made = variant("best", accuracy=0.99, latency_ms=5.0, golden=golden)
    return package(
        "2.0.0",
        [(made, MODELS["best"])],
        assets={asset_uri(files): files},
        chunk_bytes=CHUNK_BYTES,
    )


LARGE = large_package()


@pytest.fixture
def far_device(
    tmp_path: Path, anonymous_broker: RunningBroker, controller: Controller
) -> Iterator[Device]:
    """Return a device that serves behind a slow link."""
    link = SlowLink(anonymous_broker.port, LINK_BYTES_PER_S).start()
    device = Device(tmp_path, link)
    try:
        bring_to_serve(device, controller)
        yield device
    finally:
        if device.process is not None:
            device.end(signal.SIGKILL)
        link.stop()


def counted(controller: Controller) -> dict[str, float]:
    """Return what the device counted in telemetry since its start, by source."""
    sums: dict[str, float] = {}
    batches: dict[int, TelemetryBatch] = {}
    for heard in list(controller.heard):
        if parse_up(heard.topic).kind == "telemetry":
            batch = decode_message(heard.payload, TelemetryBatch, packed=True)
            batches[batch.sequence] = batch
    for batch in batches.values():
        for point in batch.points:
            if isinstance(point, SumPoint) and point.metric == "install_bytes_total":
                source = point.attributes["source"]
                sums[source] = sums.get(source, 0.0) + point.value
    return sums


def test_a_slow_transfer_is_told_while_it_runs_and_when_it_is_over(
    far_device: Device, controller: Controller
) -> None:
    controller.event("install")
    until(lambda: counted(controller), "the figures of the first install")
    before = counted(controller)
    controller.desire(2, LARGE)

    def with_rate() -> InstallReport | None:
        reports = controller.all("report", InstallReport)
        told = [r for r in reports if r.revision == 2 and isinstance(r.rate_bytes_per_s, float)]
        return told[-1] if told else None

    running = until(with_rate, "a report with a rate")
    controller.chunks.tamper = lambda _chunk: None  # the controller falls silent
    assert (running.phase, running.outcome) == ("fetching", "running")
    assert isinstance(running.rate_bytes_per_s, float)
    assert 0 < running.rate_bytes_per_s < 2 * LINK_BYTES_PER_S
    assert 0 < running.done_bytes < running.total_bytes
    assert isinstance(running.bytes_by_source, dict)
    assert sum(running.bytes_by_source.values()) == running.done_bytes
    shown = far_device.command("status").stdout
    (line,) = [line for line in shown.splitlines() if line.startswith("install")]
    assert line.split()[1] == "fetching"
    assert "KiB (" in line
    assert "KiB/s by mqtt" in line
    status = far_device.ask("status")["transfer"]
    assert status["total_bytes"] == running.total_bytes
    assert status["done_bytes"] >= running.done_bytes
    controller.chunks.tamper = lambda chunk: chunk
    ended = controller.outcome(2)
    assert (ended.outcome, ended.done_bytes) == ("succeeded", ended.total_bytes)
    assert isinstance(ended.bytes_by_source, dict)
    assert sum(ended.bytes_by_source.values()) == ended.total_bytes
    assert far_device.ask("status")["transfer"] is None
    told = controller.event("install", lambda e: e.data["revision"] == 2)
    assert told.data["bytes_by_source"] == ended.bytes_by_source
    assert told.data["duration_s"] > 0
    wanted = {
        source: before.get(source, 0) + size for source, size in ended.bytes_by_source.items()
    }
    until(lambda: counted(controller) == wanted, "the bytes in telemetry")
