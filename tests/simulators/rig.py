"""The endpoint over real workers of the null runtime, and how a client asks it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from agent.ports import SignedPort
from agent.serve.http.endpoint import Endpoint
from agent.serve.model_server import ModelServer
from agent.serve.served import Alone
from agent.serve.settings import ServingSettings
from runtime_adapters.protocol import Limits, Tensor
from runtime_adapters.registry import open_session
from telemetry.device.recorder import Recorder
from tests.simulators.packages import package, variant
from wire.clock import SystemClock
from wire.package.variant import Variant

CLOCK = SystemClock()
DIGEST = "d" * 64
NAMES = ("first", "second", "third")
SEEDS = {name: b'{"seed": %d}' % number for number, name in enumerate(NAMES)}
INPUT = np.arange(4, dtype=np.float32).reshape(1, 4)
SETTINGS = ServingSettings(infer_timeout_s=1.0, drain_s=5.0)


class Rig:
    """A serving endpoint over a package of null variants."""

    def __init__(
        self,
        directory: Path,
        *,
        settings: ServingSettings = SETTINGS,
        signed: SignedPort | None = None,
        offers: Mapping[str, Any] | None = None,
    ) -> None:
        self.directory = directory
        self.recorder = Recorder(CLOCK)
        self.server = ModelServer(
            self.recorder, CLOCK, device="dev-1", settings=settings, signed=signed
        )
        self.endpoint = Endpoint(Alone(self.server.router), **(offers or {}))
        self.endpoint.start()

    def use(self, chosen: Variant) -> None:
        """Switch to a variant."""
        content = SEEDS.get(chosen.name, b"{}")
        package("1.0", [(chosen, content)]).write_to(self.directory)
        self.server.switch_to(self.directory, DIGEST, chosen)

    @property
    def pid(self) -> int:
        active = self.server.active
        assert active is not None
        return active.worker.pid

    @property
    def port(self) -> int:
        return int(self.endpoint.address.rpartition(":")[2])

    def client(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)

    def expected(self, name: str) -> Tensor:
        """Return what a variant answers to `INPUT`."""
        session = open_session(self.directory / f"variants/{name}", variant(name).info, Limits())
        return session.infer({"x": INPUT})["y"]

    def stop(self) -> None:
        self.endpoint.stop()
        self.server.stop()


def body_of(values: Tensor = INPUT) -> tuple[bytes, dict[str, str]]:
    header = {
        "inputs": [
            {
                "name": "x",
                "datatype": "FP32",
                "shape": list(values.shape),
                "parameters": {"binary_data_size": values.nbytes},
            }
        ],
        "parameters": {"binary_data_output": True},
    }
    content = json.dumps(header).encode()
    return content + values.tobytes(), {"Inference-Header-Content-Length": str(len(content))}


def infer(client: http.client.HTTPConnection, path: str = "/v2/models/digits/infer") -> Any:
    """Ask once; return the status, the variant that answered and its output."""
    body, headers = body_of()
    client.request("POST", path, body=body, headers=headers)
    response = client.getresponse()
    content = response.read()
    if response.status != 200:
        return response.status, json.loads(content)["error"], None
    length = int(response.headers["Inference-Header-Content-Length"])
    document = json.loads(content[:length])
    assert document["parameters"]["release"] == "digits:1.0"
    assert document["parameters"]["device"] == "dev-1"
    return 200, document["parameters"]["variant"], np.frombuffer(content[length:], "<f4")
