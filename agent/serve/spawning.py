"""How a worker process is started: its command, its environment, its two links to the supervisor.

Rules:
- A worker gets only those parts of the supervisor's environment that it needs, and so no secrets.
- A worker leads a process group, in which the processes that its runtime starts are, too: they end
  with it. A terminal's signals reach the supervisor alone, which ends its workers itself.
- Nothing here imports NumPy or a runtime.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from typing import BinaryIO, Final

from agent.serve.errors import WorkerLoadError

KEPT_ENVIRONMENT: Final = (
    "PATH",
    "HOME",
    "LANG",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "NUMBA_CACHE_DIR",
)


def spawn(threads: int) -> tuple[subprocess.Popen[bytes], socket.socket, BinaryIO]:
    """Start a worker process.

    Args:
        threads: Threads that libraries may start on their own.

    Returns:
        The process, our end of its socket pair, the writing end of its lifeline.

    Raises:
        WorkerLoadError: The system cannot start another process.
    """
    ours, theirs = socket.socketpair()
    reading, writing = os.pipe()
    lifeline = os.fdopen(writing, "wb", buffering=0)
    command = [sys.executable, "-P", "-m", "agent.serve.worker.process"]
    try:
        process = subprocess.Popen(
            [*command, "--fd", str(theirs.fileno()), "--lifeline", str(reading)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environment(threads),
            pass_fds=(theirs.fileno(), reading),
            start_new_session=True,
        )
    except OSError as exc:
        ours.close()
        lifeline.close()
        raise WorkerLoadError(f"cannot start a worker process: {exc.strerror}") from exc
    finally:
        theirs.close()
        os.close(reading)
    return process, ours, lifeline


def kill_group(leader: int) -> None:
    """Kill a worker and the processes that it has started.

    Args:
        leader: The worker, which has not been waited for, or only just now: its number is not used
            again while the group has processes.
    """
    with contextlib.suppress(OSError):  # there are none left
        os.killpg(leader, signal.SIGKILL)


def how_it_ended(code: int) -> str:
    """Return how a worker ended, for its obituary.

    Args:
        code: Its exit code; negative for a signal.
    """
    if code >= 0:
        return f"the worker ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:  # Python has no names for most real-time signals
        name = f"signal {-code}"
    return f"the worker was ended by {name}"


def environment(threads: int) -> dict[str, str]:
    """Return the environment of a process that runs a model.

    Args:
        threads: Threads that libraries may start on their own.

    Returns:
        What it needs of the supervisor's environment, and the number of threads.
    """
    kept = {name: os.environ[name] for name in KEPT_ENVIRONMENT if name in os.environ}
    return kept | {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
