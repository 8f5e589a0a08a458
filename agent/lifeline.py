"""How a process of the agent ends with the supervisor, which holds the other end of a pipe."""

from __future__ import annotations

import fcntl
import os
import select
import signal


def hang_on(lifeline: int) -> None:
    """Let the kernel end this process, and its group, when the other end of a pipe is closed.

    A pipe with O_ASYNC sends a signal when its last writer closes it: here SIGKILL, which also ends
    a process that is stopped. A thread would need the interpreter lock, which native code may hold.
    """
    process = os.getpid()
    # A negative number names the group; one that others lead is not ours to end.
    owner = -process if os.getpgrp() == process else process
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, owner)
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)
    # The signal tells of a change, not of a pipe that broke while this process was starting.
    if select.select([lifeline], [], [], 0)[0]:
        os.kill(owner, signal.SIGKILL)
