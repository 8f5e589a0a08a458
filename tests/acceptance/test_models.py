"""A real controller, broker and agent with two models: rolled out, changed, killed and removed."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agent.errors import ControlError
from controller.app.home import CA_FILE
from controller.broker.install import locate
from examples.digits.box import free_port
from tests.simulators.agent_process import DEVICE, Device, X, null_package
from tests.simulators.packages import TRUST
from tests.simulators.patience import PATIENCE_S, until
from tests.simulators.stack import Stack, fleet
from tests.simulators.stack_devices import publish

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("cli"), pytest.mark.timeout(1200)]

PACKAGES = (
    null_package("1.0.0"),
    null_package("2.0.0"),
    null_package("4.0.0", name="speech"),
    null_package("5.0.0", name="speech", wrong=True),
)


class Address(NamedTuple):
    """Where a device finds its broker."""

    port: int


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """Run a controller with the keys of the tests, and publish all releases."""
    if locate(Path("/nowhere")) is None:
        pytest.skip("Mosquitto is not installed")
    made = Stack(home=tmp_path / "home", api_port=free_port(), broker_port=free_port())
    ports = ("--api-port", str(made.api_port), "--broker-port", str(made.broker_port))
    assert fleet("init", str(made.home), *ports).code == 0
    (made.home / "keys/director.key").write_bytes(b"d" * 32)
    (made.home / "trust.json").write_bytes(TRUST.to_bytes())
    try:
        made.start()
        for release in PACKAGES:
            publish(made, release)
        yield made
    finally:
        for process in made.processes:
            process.kill()
            process.wait()


@pytest.fixture
def device(stack: Stack, tmp_path: Path) -> Iterator[Device]:
    """Run an agent that is enrolled and has nothing yet."""
    (tmp_path / "device").mkdir()
    made = Device(tmp_path / "device", Address(stack.broker_port))
    (made.directory / "token").write_text(stack.ok("token", "create").out)
    shutil.copy(stack.home / CA_FILE, made.directory)
    config = made.config_path.read_text()
    made.config_path.write_text(config.replace("[broker]", f'[broker]\nca_file = "{CA_FILE}"'))
    try:
        made.start()
        until(lambda: shown(stack).get("online"), "the device")
        yield made
    finally:
        if made.process is not None:
            made.end(signal.SIGKILL)


def shown(stack: Stack) -> dict[str, Any]:
    done = stack.fleet("device", "show", DEVICE, "--json")
    return dict(done.json) if done.code == 0 else {}


def releases(stack: Stack) -> dict[str, str | None]:
    """Return the release of each model, as the controller knows it."""
    return {model["name"]: model["release"] for model in shown(stack).get("models", ())}


def infer(device: Device, model: str) -> tuple[int, Any]:
    host, _, port = device.ask("status")["endpoint"].rpartition(":")
    tensor = {"name": "x", "datatype": "FP32", "shape": [3, 4], "data": X.ravel().tolist()}
    connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
    with closing(connection):
        connection.request("POST", f"/v2/models/{model}/infer", json.dumps({"inputs": [tensor]}))
        response = connection.getresponse()
        return response.status, json.loads(response.read())


def serves(device: Device, model: str) -> str:
    try:
        status, answer = infer(device, model)
    except (ControlError, OSError):  # it is starting
        return ""
    return str(answer["parameters"]["release"]) if status == 200 else ""


def test_two_models_are_led_by_themselves_and_serve_beside_each_other(
    stack: Stack, device: Device
) -> None:
    # Two rollouts run on the device at the same time.
    for release in ("digits:1.0.0", "speech:4.0.0"):
        stack.ok("rollout", "create", release)
    until(
        lambda: releases(stack) == {"digits": "digits:1.0.0", "speech": "speech:4.0.0"},
        lambda: f"both: {shown(stack)}",
    )
    assert (serves(device, "digits"), serves(device, "speech")) == ("digits:1.0.0", "speech:4.0.0")

    until(
        lambda: (
            {each["state"] for each in stack.ok("rollout", "list", "--json").json} == {"succeeded"}
        ),
        "the end of both rollouts",
    )

    # A bad release of one goes back, and the other never notices.
    failed = stack.fleet("rollout", "create", "speech:5.0.0", "--watch")
    assert failed.code == 1
    assert (serves(device, "digits"), serves(device, "speech")) == ("digits:1.0.0", "speech:4.0.0")
    done = stack.fleet("rollout", "create", "digits:2.0.0", "--watch")
    assert done.code == 0, done.out + done.err
    until(lambda: serves(device, "digits") == "digits:2.0.0", "the second release")

    # A policy for one model.
    stack.ok("policy", "set", "quick", "--model", "speech", "--deadline-ms", "50")
    until(
        lambda: (
            (device.ask("status", model="speech")["policy"].get("objective") or {}).get(
                "deadline_ms"
            )
            == 50
        ),
        "the policy",
    )
    assert device.ask("status", model="digits")["policy"].get("objective") is None

    # Both come back after a kill, and the controller sees no drift.
    device.end(signal.SIGKILL)
    device.start()
    until(
        lambda: (
            [serves(device, name) for name in ("digits", "speech")]
            == ["digits:2.0.0", "speech:4.0.0"]
        ),
        "both after a restart",
    )
    until(lambda: shown(stack).get("drifted") is False, lambda: f"no drift: {shown(stack)}")

    # One is removed.
    stack.ok("model", "remove", "speech")
    until(lambda: infer(device, "speech")[0] == 404, "the removal")
    until(lambda: releases(stack) == {"digits": "digits:2.0.0"}, lambda: str(shown(stack)))
    assert serves(device, "digits") == "digits:2.0.0"
    typo = stack.fleet("rollout", "create", "digit:2.0.0")
    assert typo.code != 0
    assert "digits" in typo.err, "it says which exist"
