"""Several workers and the version before on a real agent, as its policy asks for them."""

from __future__ import annotations

import json
import os

import psutil
import pytest

from tests.integration.test_agent_models import desire, outcome, state
from tests.simulators.agent_process import Controller, Device, null_package
from tests.simulators.endpoint_client import Client
from tests.simulators.patience import until
from wire.policy import PolicySpec, Sharing
from wire.presence import Hello

pytestmark = pytest.mark.broker

OLD, NEW, BROKEN = (
    null_package("1.0.0"),
    null_package("2.0.0"),
    null_package("3.0.0", wrong=True),
)
SHARING = PolicySpec(kind="rules", dwell_s=0.2, sharing=Sharing(workers=2, keep_previous=True))


def workers(device: Device) -> int:
    """Return how many worker processes run."""
    assert device.process is not None
    children = psutil.Process(device.process.pid).children()
    return sum("agent.serve.worker" in command_line(child) for child in children)


def command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it ends at this moment
        return ""


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="a worker needs a processor")
def test_a_policy_gets_its_workers_and_the_version_before_stays(
    device: Device, controller: Controller
) -> None:
    controller.chunks.add(*OLD.blobs, *NEW.blobs, *BROKEN.blobs)
    device.start()
    until(lambda: controller.all("hello", Hello), "a hello")
    desire(controller, 1, state(1, OLD, SHARING))
    assert outcome(controller, "digits", 1).outcome == "succeeded"
    until(lambda: workers(device) == 2, "two workers")
    desire(controller, 2, state(2, NEW, SHARING))
    assert outcome(controller, "digits", 2).outcome == "succeeded"
    until(lambda: workers(device) == 3, "two workers, and one of the version before")
    client = Client(device)
    for path, release in (
        ("digits", "digits:2.0.0"),
        ("digits/versions/1.0.0", "digits:1.0.0"),
        ("digits/versions/2.0.0", "digits:2.0.0"),
    ):
        status, answer = client.infer(path)
        assert (status, answer["parameters"]["release"]) == (200, release)
    text = device.command("status").stdout
    assert "2 of 2 asked for" in text
    assert "digits:1.0.0, for requests that name it" in text
    status = json.loads(device.command("status", "--json").stdout)
    assert (status["workers"], status["kept"]) == (2, "digits:1.0.0")

    desire(controller, 3, state(3, BROKEN, SHARING))
    assert outcome(controller, "digits", 3).outcome == "failed"
    assert client.infer("digits")[1]["parameters"]["release"] == "digits:2.0.0"
    desire(controller, 4, state(3, BROKEN, PolicySpec(kind="rules", dwell_s=0.2)))
    until(lambda: workers(device) == 1, "one worker")
    assert client.infer("digits/versions/1.0.0")[0] == 404
    assert client.infer("digits")[0] == 200
