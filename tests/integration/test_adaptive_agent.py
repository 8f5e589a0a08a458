"""A real agent under the policy `adaptive`: what its worker shows decides what serves."""

from __future__ import annotations

import time

import pytest

from tests.integration.test_agent import (  # noqa: F401 - fixtures
    Controller,
    Device,
    anonymous_broker,
    controller,
    device,
    serving,
    until,
)

POLICY = """
[policy]
kind = "adaptive"
dwell_s = 0.2

[policy.objective]
deadline_ms = 20.0
"""


@pytest.fixture
def adaptive(device: Device) -> Device:  # noqa: F811 - a fixture of that name
    """Have a device choose by an objective, whatever the controller says."""
    device.config_path.write_text(
        device.config_path.read_text().replace("[broker]", POLICY + "[broker]")
    )
    return device


def test_a_device_that_is_faster_than_declared_takes_the_better_variant(
    adaptive: Device,
    serving: Device,  # noqa: F811 - a fixture of that name
    controller: Controller,  # noqa: F811 - a fixture of that name
) -> None:
    # Declared are 40 ms against 20: nobody knows better before the first requests.
    assert serving.ask("status")["variant"] == "small"
    verdicts = {v["name"]: v["verdict"] for v in serving.ask("variants")}
    assert "in time for 20 ms with probability" in verdicts["best"]

    def asked_until_best() -> bool:
        for _ in range(20):
            serving.infer()
            time.sleep(0.01)
        return bool(serving.ask("status")["variant"] == "best")

    until(asked_until_best, "the better variant")
    event = controller.event("switch", lambda e: e.data["to"] == "best")
    assert "keeps the objective" in event.reason
    inputs = event.data["inputs"]
    assert isinstance(inputs, dict)
    assert inputs["slowdown"] < 0.5
    assert inputs["demand_per_s"] > 0
    assert event.data["cost"]["gap"] is False
