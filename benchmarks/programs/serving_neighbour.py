"""A device that serves its neighbours: `serving_neighbour.py STATE PORT BYTES_PER_S`.

It has the modules of the agent's supervisor in memory, and the part of it that serves. Each line of
its input is answered by one with the seconds that it has been on a processor, and its memory.
"""

from __future__ import annotations

import io
import os
import sys
import time
from pathlib import Path

import agent.app.daemon  # noqa: F401 - its modules are in memory before anything is measured
from agent.app.config import AgentConfig
from agent.app.sharing import make_sharing
from agent.install.slots import Slots
from agent.log import Log
from agent.peers.settings import PeerSettings
from benchmarks.transfers.usage import forget_peak, peak_mb
from telemetry.device.recorder import Recorder
from tests.simulators.packages import TRUST
from wire.clock import SystemClock
from wire.health import HealthSnapshot

state, port, bytes_per_s = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
clock = SystemClock()
slots = Slots(state)
forget_peak(os.getpid())
before_mb = peak_mb(os.getpid())
sharing = make_sharing(
    AgentConfig(
        device="cam-1",
        state_dir=state,
        profile=state,
        trust=state,
        peers=PeerSettings(listen=f"127.0.0.1:{port}", bytes_per_s=bytes_per_s),
    ),
    TRUST,
    slots,
    is_coming=lambda _sha256: False,
    health=lambda: HealthSnapshot(at_s=clock.now_s()),
    log=Log(clock, io.StringIO()),
    recorder=Recorder(clock),
    clock=clock,
)
if sharing is None:
    sys.exit("it serves nobody")
sharing.start()
print(flush=True)
for _ in sys.stdin:
    print(time.process_time(), peak_mb(os.getpid()) - before_mb, flush=True)
sharing.stop()
