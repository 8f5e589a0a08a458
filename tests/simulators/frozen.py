"""Workers that are busy for as long as a test wants: a frozen process answers nobody.

```
with frozen(worker):              # whoever asks it waits
    ...
                                  # it goes on, and all are answered
```
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from agent.serve.pool import Prepared
from agent.serve.scheduler import Scheduler
from agent.serve.worker_process import WorkerProcess
from tests.simulators.patience import until
from tests.simulators.rig import Rig


def active_of(rig: Rig) -> Prepared:
    """Return what answers requests now."""
    active = rig.server.active
    assert active is not None
    return active


@contextmanager
def frozen(worker: WorkerProcess) -> Iterator[None]:
    """Freeze a worker for the length of a `with` block."""
    os.kill(worker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(worker.pid, signal.SIGCONT)


def until_busy(worker: WorkerProcess, scheduler: Scheduler, *, waiting: int = 0) -> None:
    """Wait until a frozen worker is asked by one and others wait for it.

    Args:
        worker: The worker.
        scheduler: Its scheduler.
        waiting: How many others.
    """
    until(worker._turn.locked, "a request to a frozen worker")
    until(lambda: scheduler.waiting == waiting, f"{waiting} who wait for a frozen worker")
