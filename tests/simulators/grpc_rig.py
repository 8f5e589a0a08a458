"""The gRPC process over an endpoint, and what a test sees of it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import msgspec

from agent.grpc_endpoint.keeper import GrpcKeeper
from agent.grpc_endpoint.settings import BODY_BYTES
from agent.grpc_endpoint.setup import Setup
from agent.log import Log
from agent.serve.http.endpoint import Endpoint
from tests.simulators.patience import until
from wire.clock import SystemClock

CLOCK = SystemClock()
PLAIN = Setup(
    address="127.0.0.1:0",
    endpoint_path="",
    token=None,
    cert_file=None,
    key_file=None,
    client_ca_file=None,
    max_message_bytes=BODY_BYTES,
    calls=16,
)


class Events:
    """Takes what the supervisor records."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def observe(self, metric: str, value: float, attributes: Any) -> None: ...

    def add(self, metric: str, amount: float, attributes: Any) -> None: ...

    def event(self, kind: str, reason: str, data: Any) -> None:
        assert (kind, data) == ("grpc", {"code": "agent.endpoint"})
        self.reasons.append(reason)


class GrpcRig:
    """A gRPC process in front of an endpoint.

    Args:
        directory: Where the private socket is; a short path.
        endpoint: Answers; it has been started.
        changes: To the setup.
    """

    def __init__(self, directory: Path, endpoint: Endpoint, **changes: Any) -> None:
        place = directory / "private.sock"
        setup = msgspec.structs.replace(PLAIN, endpoint_path=str(place), **changes)
        self.events, self._log = Events(), io.StringIO()
        self.keeper = GrpcKeeper(
            setup, lambda: endpoint.start_private(place), self.events, Log(CLOCK, self._log), CLOCK
        )
        self.keeper.start()

    @property
    def address(self) -> str:
        """Where it serves; waits until it does."""
        return until(lambda: self.keeper.address, "the gRPC process to serve")

    @property
    def pid(self) -> int:
        """The process that serves; waits until it does."""
        assert self.address
        pid: int = until(lambda: self.lines, "a line of the log")[-1]["pid"]
        return pid

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Lines of the agent's log."""
        return [json.loads(line) for line in self._log.getvalue().splitlines()]

    def stop(self) -> None:
        self.keeper.stop()


def is_running(pid: int) -> bool:
    """Tell whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def peak_bytes(pid: int) -> int:
    """Return the greatest resident size that a process had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
