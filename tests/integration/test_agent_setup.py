"""What an agent tells whose device is not complete: a runtime or the enrolment token is missing."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.simulators.agent_process import FIRST, TOKEN, Controller, Device
from tests.simulators.broker import running_broker
from tests.simulators.patience import until
from wire.presence import Hello

pytestmark = pytest.mark.broker


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Device, Controller]]:
    """Return a device that is not started, and its controller."""
    with running_broker() as broker:
        controller, device = Controller(broker), Device(tmp_path, broker)
        try:
            yield device, controller
        finally:
            if device.process is not None:
                device.end(signal.SIGKILL)
            controller.transport.close()


def logged(device: Device, event: str) -> dict[str, Any]:
    return until(
        lambda: next((line for line in device.log if line["action"] == event), None),
        f"{event} in the log",
    )


def test_it_says_which_runtimes_of_its_profile_it_has(pair: tuple[Device, Controller]) -> None:
    device, controller = pair
    device.set_runtimes("null", "abacus")
    device.start()
    hello = until(lambda: controller.all("hello", Hello), "a hello")[0]
    assert (hello.profile.runtimes, hello.runtimes) == (("null", "abacus"), ("null",))
    told = controller.event("start", lambda e: "missing" in e.data)
    assert told.data["missing"] == ["abacus"]
    assert "pip install 'edgefleet[abacus]'" in told.reason
    controller.desire(1, FIRST)
    assert controller.outcome(1).outcome == "succeeded"


def test_a_missing_token_file_is_named_until_there_is_one(pair: tuple[Device, Controller]) -> None:
    device, controller = pair
    token = device.directory / "token"
    token.unlink()
    device.start()
    reason = logged(device, "refused")["reason"]
    assert f"cannot read the enrolment token {token}: no such file" in reason
    assert "fleet token create" in reason
    token.write_text(f"{TOKEN}\n")
    until(lambda: controller.all("hello", Hello), "a hello")
    # An enrolled device needs its token no more.
    token.unlink()
    device.end(signal.SIGTERM)
    before = len(controller.all("hello", Hello))
    device.start()
    until(lambda: len(controller.all("hello", Hello)) > before, "another hello")


def test_an_endpoint_for_other_machines_without_tls_is_refused_or_said(
    pair: tuple[Device, Controller],
) -> None:
    device, _ = pair
    (device.directory / "infer.token").write_text("s3cret\n")
    everywhere = 'port = 0\nhost = "0.0.0.0"\ntoken_file = "infer.token"\n'
    config = device.config_path.read_text().replace("port = 0\n", everywhere)
    device.config_path.write_text(config)
    refused = device.command("run")
    assert refused.returncode == 2
    assert "endpoint.host 0.0.0.0 is not local: set cert_file, or clear_text" in refused.stderr
    device.config_path.write_text(config + "clear_text = true\n")
    device.start()
    assert "the endpoint has no TLS" in logged(device, "clear-text")["reason"]
    assert logged(device, "ready")["endpoint"].startswith("0.0.0.0:")


def test_a_file_for_tls_that_cannot_be_used_is_named_and_ends_no_serving(
    pair: tuple[Device, Controller],
) -> None:
    device, controller = pair
    config = device.config_path.read_text()
    encrypted = config.replace("[broker]\n", '[broker]\nca_file = "other.pem"\n')
    device.config_path.write_text(encrypted)
    ca_file = device.directory / "other.pem"
    fault = ""
    for content, reason in ((None, "no such file or directory"), ("x", "it holds no certificate")):
        if content is not None:
            ca_file.write_text(content)
        refused = device.command("run")
        assert refused.returncode == 2
        fault = f"cannot use the file {ca_file}, which broker.ca_file names: {reason}"
        assert refused.stderr.splitlines()[-1] == (
            f"fleet-agent: {fault}; copy ca.pem from the controller's directory there"
        )
    device.config_path.write_text(config)
    device.start()
    until(lambda: controller.all("hello", Hello), "a hello")
    controller.desire(1, FIRST)
    assert controller.outcome(1).outcome == "succeeded"
    device.end(signal.SIGTERM)
    device.config_path.write_text(encrypted)
    device.start()
    refusal = until(
        lambda: [r for r in device.log if r["action"] == "refused" and fault in r["reason"]],
        lambda: f"the refusal: {device.log}",
    )
    assert refusal
    # The connection is tried before that line is written.
    (ready,) = until(
        lambda: [r for r in device.log if r["action"] == "ready"][1:], "the second start"
    )
    assert ready["serving"]["digits"][1] is not None
