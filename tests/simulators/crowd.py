"""Clients that ask for inference without a pause, and know what each variant has to answer."""

from __future__ import annotations

import http.client
import json
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from runtime_adapters.protocol import Tensor
from tests.simulators.patience import PATIENCE_S, until
from tests.simulators.rig import body_of


@dataclass
class Crowd:
    """Clients that ask without a pause, each on one connection that it keeps."""

    port: int
    expected: dict[str, Tensor]
    answers: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)

    def ask(self) -> None:
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        body, headers = body_of()
        try:
            client.connect()
            connection = client.sock
            while not self.stopping.is_set():
                client.request("POST", "/v2/models/digits/infer", body=body, headers=headers)
                response = client.getresponse()
                self.judge(response, response.read())
            if client.sock is not connection:
                self.faults.append("the connection was not kept")
        except (OSError, http.client.HTTPException) as exc:
            self.faults.append(repr(exc))
        client.close()

    def judge(self, response: http.client.HTTPResponse, content: bytes) -> None:
        if response.status != 200:
            self.faults.append(f"{response.status} {content[:100]!r}")
            return
        length = int(response.headers["Inference-Header-Content-Length"])
        name = json.loads(content[:length])["parameters"]["variant"]
        self.answers[name] += 1
        values = np.frombuffer(content[length:], "<f4")
        if not np.allclose(values, self.expected[name].ravel(), rtol=1e-6):
            self.faults.append(f"not the answer of {name}")

    def __enter__(self) -> Self:
        self._threads = [threading.Thread(target=self.ask, daemon=True) for _ in range(4)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        for thread in self._threads:
            thread.join()

    def wait_for(self, more: int) -> None:
        """Wait until so many more requests have been answered."""
        aim = self.answers.total() + more
        until(lambda: self.answers.total() >= aim or self.faults, "answers")
        assert self.answers.total() >= aim, self.faults
