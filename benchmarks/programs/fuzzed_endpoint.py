"""Serves a model at an endpoint that waits only shortly: `fuzzed_endpoint.py FOLDER`.

Prints its port and the right answer. For each line of its input it prints the worker's process id.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from agent.serve.http.connections import EndpointLimits
from agent.serve.http.endpoint import Endpoint
from agent.serve.served import Alone
from tests.simulators.packages import variant
from tests.simulators.rig import Rig


def main(folder: Path) -> None:
    """Serve until the input ends."""
    rig = Rig(folder)
    rig.endpoint.stop()
    limits = EndpointLimits(head_timeout_s=0.5, body_timeout_s=0.5)
    rig.endpoint = Endpoint(Alone(rig.server.router), limits=limits)
    rig.endpoint.start()
    rig.use(variant("first"))
    right = rig.expected("first").tobytes().hex()
    print(json.dumps({"port": rig.port, "right": right}), flush=True)
    for _ in sys.stdin:
        rig.server.supervise()
        print(rig.pid, flush=True)
    rig.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
