"""What an agent's endpoint offers besides inference, as its configuration asks for it.

The agent has no broker here and serves nothing: the paths do not need a model.
"""

from __future__ import annotations

import http.client
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.simulators.agent_process import At, Device
from tests.simulators.patience import PATIENCE_S, until
from tests.simulators.shared_memory import shared

Started = Callable[[str], tuple[Device, http.client.HTTPConnection]]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    """Starts the agent with more settings of the endpoint; returns it and a connection."""
    device = Device(tmp_path, At(1))
    connections = []

    def start(settings: str) -> tuple[Device, http.client.HTTPConnection]:
        with device.config_path.open("a") as file:
            file.write(settings)
        device.start()
        until(lambda: device.log and device.reasons("start"), "the start of the agent")
        until(lambda: any(line["action"] == "ready" for line in device.log), "the agent")
        host, _, port = device.ask("status")["endpoint"].rpartition(":")
        connections.append(http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S))
        return device, connections[-1]

    yield start
    for connection in connections:
        connection.close()
    if device.process is not None:
        device.end(signal.SIGKILL)


def test_prometheus_is_answered_where_it_is_asked_for(started: Started) -> None:
    device, client = started("metrics = true\n")
    device.set_temperature_c(55)

    def scraped() -> dict[str, str]:
        client.request("GET", "/metrics")
        response = client.getresponse()
        lines = response.read().decode().splitlines()
        assert response.status == 200
        return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))

    until(lambda: scraped().get("edgefleet_temperature_celsius") == "55.0", "the temperature")
    assert scraped()["edgefleet_ready"] == "0.0"
    assert any('device="dev-1"' in name for name in scraped())


def test_without_the_setting_there_are_no_metrics(started: Started) -> None:
    _, client = started("")
    client.request("GET", "/metrics")
    assert client.getresponse().status == 501


def test_pages_of_allowed_origins_may_ask(started: Started) -> None:
    _, client = started('allow_origins = ["https://panel.example"]\n')
    for origin, allowed in (("https://panel.example", True), ("https://other.example", False)):
        client.request("GET", "/v2", headers={"Origin": origin})
        response = client.getresponse()
        response.read()
        assert response.headers["Access-Control-Allow-Origin"] == (origin if allowed else None)
        assert response.headers["Vary"] == "Origin"


def test_shared_memory_is_registered_where_it_is_on(started: Started) -> None:
    _, client = started("shared_memory_bytes = 4096\n")
    with shared(4096) as memory:
        wanted = json.dumps({"key": memory.key, "byte_size": 4096})
        client.request("POST", "/v2/systemsharedmemory/region/io/register", wanted)
        response = client.getresponse()
        assert (response.status, response.read()) == (200, b"")
        client.request("GET", "/v2")
        assert "system_shared_memory" in json.loads(client.getresponse().read())["extensions"]
