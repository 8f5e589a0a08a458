"""Serves a package at the agent's own endpoint: `our_endpoint.py PACKAGE MAX_BATCH [WORKERS]`.

Prints its port, and ends with its input.
"""

from __future__ import annotations

import sys
from pathlib import Path

from agent.ports import Running
from agent.serve.http.endpoint import Endpoint
from agent.serve.model_server import ModelServer
from agent.serve.served import Alone
from agent.serve.settings import Mode, ServingSettings
from telemetry.device.recorder import Recorder
from wire.clock import SystemClock
from wire.package.manifest import manifest_from_bytes


def main(package: Path, max_batch: int, workers: int) -> None:
    """Serve the package's first variant."""
    clock = SystemClock()
    settings = ServingSettings(mode=Mode(max_batch=max_batch), processors=workers)
    server = ModelServer(Recorder(clock), clock, settings=settings)
    variant = manifest_from_bytes((package / "manifest.json").read_bytes()).variants[0]
    server.switch_to(package, "d" * 64, variant)
    server.run_requests(Running(workers=workers))
    for _ in range(workers):
        server.supervise()
    endpoint = Endpoint(Alone(server.router))
    endpoint.start()
    print(endpoint.address.rpartition(":")[2], flush=True)
    sys.stdin.read()
    endpoint.stop()
    server.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if sys.argv[3:] else 1)
