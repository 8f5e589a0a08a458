"""How a process of the agent lets everything else on the device go first."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

NICE: Final = 19
OOM_SCORE: Final = "1000"


def stand_back() -> None:
    """Let everything else on the device have the processor, the disk and the memory first.

    Threads that start later do the same. Without memory this process is the first to be ended.
    """
    with contextlib.suppress(OSError):
        os.nice(NICE)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)
