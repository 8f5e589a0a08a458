"""A real agent tells why it did what, and what surrounded it, also when it is gone."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.replay.traces import trace_from_bytes
from tests.simulators.agent_process import FIRST, Controller, Device
from tests.simulators.broker import running_broker
from tests.simulators.patience import PATIENCE_S, until
from wire.presence import Hello

pytestmark = pytest.mark.broker

VARIANTS = {
    "source": "a test",
    "variants": [
        {"name": "best", "latency_p50_ms": 40.0, "peak_memory_bytes": 1, "accuracy": 0.99},
        {"name": "small", "latency_p50_ms": 5.0, "peak_memory_bytes": 1, "accuracy": 0.9},
    ],
}


@pytest.fixture
def controller() -> Iterator[Controller]:
    """Play the controller of one device."""
    with running_broker() as broker:
        controller = Controller(broker)
        yield controller
        controller.transport.close()


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[tuple[Device, Controller]]:
    """Return a device that serves the first package, and its controller."""
    with running_broker() as broker:
        controller, device = Controller(broker), Device(tmp_path, broker)
        try:
            device.start()
            until(lambda: controller.all("hello", Hello), "a hello")
            controller.desire(1, FIRST)
            assert controller.outcome(1).outcome == "succeeded"
            yield device, controller
        finally:
            if device.process is not None:
                device.end(signal.SIGKILL)
            controller.transport.close()


def test_reasons_outlive_delivery_and_the_agent(serving: tuple[Device, Controller]) -> None:
    device, controller = serving
    device.set_temperature_c(84)
    controller.event("switch", lambda e: e.data["to"] == "small")
    asked = device.command("why", "--since", "15m")
    assert asked.stderr == ""
    device.end(signal.SIGKILL)
    stored = device.command("why", "--since", "15m")
    assert (stored.returncode, stored.stderr) == (
        0, "fleet-agent: no agent answers; these are the events that it stored\n"
    )  # fmt: skip
    assert stored.stdout.startswith(asked.stdout)
    assert "switch best -> small: hot: the cheapest variant\n    cost: " in stored.stdout
    assert "    release: digits:1.0.0\n" in stored.stdout
    assert "headroom=0.975" in stored.stdout
    assert re.search(r"    not best: slower: [45]\.\d+ against 0\.\d+ ms\n", stored.stdout)
    device.start()
    until(lambda: controller.all("hello", Hello)[1:], "a second hello")
    events = json.loads(device.command("why", "--since", "15m", "--json").stdout)
    hot = [e for e in events if e["kind"] == "switch" and e["data"]["from"] == "best"]
    assert [e["data"]["to"] for e in hot] == ["small"]
    assert [e["kind"] for e in events].count("start") == 2


def test_what_surrounds_a_serving_device_is_recorded_and_replayed(
    serving: tuple[Device, Controller], tmp_path: Path
) -> None:
    device, _ = serving
    device.set_temperature_c(60)
    # The board's sensors are files; processes are the machine's own.
    config = device.config_path.read_text().replace('procfs_root = "proc"', 'procfs_root = "/proc"')
    (tmp_path / "recorder.toml").write_text(config)
    done, answers = threading.Event(), [0]

    def ask_on() -> None:
        while not done.is_set():
            device.infer()
            answers[0] += 1

    asking = threading.Thread(target=ask_on)
    asking.start()
    try:
        recorded = subprocess.run(
            [sys.executable, "-P", "-m", "agent", "record", str(tmp_path / "lab.jsonl"),
             "--config", str(tmp_path / "recorder.toml"), "--for", "4s", "--every", "200ms"],
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
    finally:
        done.set()
        asking.join()
    assert recorded.returncode == 0, recorded.stderr
    assert "20 ticks, 4 s" in recorded.stdout
    assert "served      best 4 s" in recorded.stdout
    trace = trace_from_bytes((tmp_path / "lab.jsonl").read_bytes())
    assert (trace.header.name, trace.header.origin, len(trace.ticks)) == ("lab", "recorded", 20)
    assert "best served first" in trace.header.source
    demand = sum(tick.inputs.demand_per_s for tick in trace.ticks) * trace.header.period_s
    assert 0 < demand <= answers[0]
    # The null runtime takes far less than the 40 ms that this variant declares.
    assert trace.ticks[-1].inputs.slowdown < 0.5
    seen = [t.sensed for t in trace.ticks if t.sensed is not None and t.sensed.temperature_c]
    assert {s.temperature_c for s in seen} == {60.0}
    (tmp_path / "variants.json").write_text(json.dumps(VARIANTS))
    replayed = subprocess.run(
        [sys.executable, "-P", "-m", "agent", "replay", str(tmp_path / "lab.jsonl"),
         "--variants", str(tmp_path / "variants.json"), "--pin", "best", "--json"],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert replayed.returncode == 0, replayed.stderr
    steps = json.loads(replayed.stdout)["replay"]["steps"]
    assert all(abs(step["temperature_c"] - 60.0) < 2.0 for step in steps)
