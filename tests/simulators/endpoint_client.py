"""An application that asks the endpoint of an agent, a connection for each request."""

from __future__ import annotations

import contextlib
import http.client
import json
from typing import Any

from tests.simulators.agent_process import Device, X
from tests.simulators.patience import PATIENCE_S


class Client:
    """Asks the endpoint of a device."""

    def __init__(self, device: Device) -> None:
        host, _, port = device.ask("status")["endpoint"].rpartition(":")
        self.address = (host, int(port))

    def ask(
        self, method: str, path: str, document: object = None, **headers: str
    ) -> tuple[int, Any]:
        body = None if document is None else json.dumps(document)
        connection = http.client.HTTPConnection(*self.address, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            content = response.read()
        return response.status, json.loads(content) if content else None

    def text(self, path: str) -> str:
        """Return what a path answers."""
        connection = http.client.HTTPConnection(*self.address, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            connection.request("GET", path)
            return connection.getresponse().read().decode()

    def infer(self, model: str) -> tuple[int, Any]:
        tensor = {"name": "x", "datatype": "FP32", "shape": [3, 4], "data": X.ravel().tolist()}
        return self.ask("POST", f"/v2/models/{model}/infer", {"inputs": [tensor]})

    def serves(self, model: str) -> str | None:
        """Return the release that answers for a model; None if none does."""
        status, answer = self.infer(model)
        return str(answer["parameters"]["release"]) if status == 200 else None
