"""A real agent that is hot: what it says, what waits, and what survives its end."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
from typing import Any

import pytest

from agent.errors import ControlError
from tests.simulators.agent_process import Controller, Device, X
from tests.simulators.patience import PATIENCE_S, until

pytestmark = pytest.mark.broker


def ask(device: Device, method: str, path: str, document: object = None) -> tuple[int, Any, Any]:
    host, _, port = str(device.ask("status")["endpoint"]).rpartition(":")
    client = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
    client.request(method, path, None if document is None else json.dumps(document))
    response = client.getresponse()
    content = json.loads(response.read())
    client.close()
    return response.status, content, response.headers


def infer(device: Device, **parameters: Any) -> tuple[int, Any, Any]:
    tensor = {"name": "x", "datatype": "FP32", "shape": [3, 4], "data": X.ravel().tolist()}
    document = {"inputs": [tensor], "parameters": parameters}
    return ask(device, "POST", "/v2/models/digits/infer", document)


def serves(device: Device) -> bool:
    with contextlib.suppress(ControlError):
        return device.ask("status")["variant"] is not None
    return False


def test_what_a_hot_device_put_off_durably_is_answered_after_its_end(
    serving: Device, controller: Controller
) -> None:
    assert infer(serving)[0] == 200
    serving.set_temperature_c(84)
    until(lambda: serving.ask("status")["levers"]["defer"], "the levers")
    status, accepted, headers = infer(serving, deferrable=True, durable=True)
    assert (status, accepted["state"]) == (202, "waiting")
    path = headers["Location"]
    lost = infer(serving, deferrable=True)[2]["Location"]
    assert serving.ask("status")["deferred"] == 2
    shown = serving.command("status").stdout
    assert "levers" in shown
    assert "requests are not joined, deferrable requests wait, sampling" in shown
    assert "(heat: headroom" in shown
    assert ask(serving, "GET", "/v2/health/advice")[1]["defer"] is True

    serving.end(signal.SIGKILL)
    serving.start()
    until(lambda: serves(serving), "an agent that serves again")
    assert ask(serving, "GET", path)[0] == 202
    assert ask(serving, "GET", lost)[0] == 404, "it was not asked to survive"

    serving.set_temperature_c(50)
    status, answer, _ = until(
        lambda: found if (found := ask(serving, "GET", path))[0] != 202 else None, "the answer"
    )
    assert status == 200
    assert answer["outputs"] == infer(serving)[1]["outputs"]
    assert serving.ask("status")["levers"]["causes"] == []
    assert serving.ask("status")["deferred"] == 0
    assert ask(serving, "DELETE", path)[0] == 200
    assert list((serving.config.state_dir / "deferred").iterdir()) == []
    controller.event("switch", lambda e: e.data["to"] == "small")
