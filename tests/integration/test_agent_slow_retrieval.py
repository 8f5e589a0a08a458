"""A real agent whose only source is too slow: it goes on, and everybody sees why it takes long."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.field.slow_link import SlowLink
from tests.simulators.agent_process import Controller, Device, bring_to_serve, null_package
from tests.simulators.broker import RunningBroker
from tests.simulators.patience import until
from wire.installs import InstallReport

pytestmark = pytest.mark.broker

LINK_BYTES_PER_S = 100_000
LEAST = 1_000_000
LARGE = null_package("2.0.0", padding_bytes=500_000)


@pytest.fixture
def far_device(
    tmp_path: Path, anonymous_broker: RunningBroker, controller: Controller
) -> Iterator[Device]:
    """Return a device that asks for more than its link carries."""
    link = SlowLink(anonymous_broker.port, LINK_BYTES_PER_S).start()
    device = Device(tmp_path, link)
    with device.config_path.open("a") as config:
        config.write(f"[delivery]\nleast_bytes_per_s = {LEAST}\nslow_window_s = 1\n")
    try:
        bring_to_serve(device, controller)
        yield device
    finally:
        if device.process is not None:
            device.end(signal.SIGKILL)
        link.stop()


def test_a_source_that_is_slow_and_alone_brings_the_release_and_is_told(
    far_device: Device, controller: Controller
) -> None:
    controller.desire(2, LARGE)
    found = controller.event("slow")
    assert found.data["source"] == "mqtt"
    assert found.data["other"] == ""
    assert found.data["least_bytes_per_s"] == LEAST
    assert found.reason.startswith("slow retrieval: mqtt (the controller) brings ")

    def shown() -> str:
        waits: str = far_device.ask("status")["waits_for"]
        return waits

    assert until(shown, "it is shown").startswith("slow retrieval: mqtt")
    assert controller.outcome(2).outcome == "succeeded"
    told = [r for r in controller.all("report", InstallReport) if r.revision == 2]
    assert any(
        r.detail.startswith("slow retrieval: mqtt")
        for r in told
        if (r.phase, r.outcome) == ("fetching", "running")
    )
    assert shown() == ""
    assert far_device.infer()[0]["release"] == "digits:2.0.0"
