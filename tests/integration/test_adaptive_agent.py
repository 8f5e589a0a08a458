"""A real agent under the policy `adaptive`: what its worker shows decides what serves."""

from __future__ import annotations

import contextlib
import signal

import pytest

from agent.errors import ControlError
from tests.simulators.agent_process import Controller, Device
from tests.simulators.patience import until

POLICY = """
[policy]
kind = "adaptive"
dwell_s = 0.2

[policy.objective]
deadline_ms = 20.0
"""


@pytest.fixture
def adaptive(device: Device) -> Device:
    """Have a device choose by an objective, whatever the controller says."""
    device.config_path.write_text(
        device.config_path.read_text().replace("[broker]", POLICY + "[broker]")
    )
    return device


def test_what_a_device_takes_for_the_golden_samples_counts_not_what_was_declared(
    adaptive: Device,
    serving: Device,
    controller: Controller,
) -> None:
    # Declared are 40 ms against a deadline of 20; this machine needs about four.
    assert serving.ask("status")["variant"] == "best"
    event = controller.event("switch", lambda e: e.data["to"] == "best")
    assert event.reason.startswith("install: ")
    measured = {v["name"]: v["latency_p50_ms"] for v in serving.ask("variants")}
    assert 0 < measured["best"] < 20
    assert serving.ask("figures")["declared_ms"] == 40.0
    serving.end(signal.SIGKILL)
    serving.start()

    def serves_again() -> bool:
        with contextlib.suppress(ControlError):
            return serving.ask("status")["variant"] is not None
        return False

    until(serves_again, "an agent that serves again")
    again = {v["name"]: v["latency_p50_ms"] for v in serving.ask("variants")}
    assert again == measured


def test_what_the_workers_show_is_in_the_reasons(
    adaptive: Device,
    serving: Device,
    controller: Controller,
) -> None:
    def learnt() -> bool:
        for _ in range(20):
            serving.infer()
        return bool(serving.ask("figures")["answered"] > 100)

    until(learnt, "a hundred answers")
    serving.command("pin", "small")
    inputs = controller.event("switch", lambda e: e.data["to"] == "small").data["inputs"]
    assert isinstance(inputs, dict)
    assert inputs["demand_per_s"] > 0
    assert inputs["slowdown"] != 1.0
