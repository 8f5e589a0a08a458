"""The life of a worker's process: its start, how it hangs, its end and what is said of that.

Rules:
- Only the end of a process frees all its memory. What it has started ends with it.
- A worker that hangs (`agent.serve.hang_watch`) is ended long before the limit for a slow one.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading

from agent.serve import process_figures
from agent.serve.hang_watch import HangWatch
from agent.serve.spawning import how_it_ended, kill_group, spawn


class WorkerLife:
    """A process that runs a model, from its start on. For any thread.

    Args:
        threads: Threads that libraries may start on their own.

    Raises:
        WorkerLoadError: The system cannot start another process.
    """

    def __init__(self, threads: int) -> None:
        self._process, self.socket, self._lifeline = spawn(threads)
        self._watch = HangWatch()
        self._lock = threading.Lock()
        self.hang = ""
        """Why it was ended, if it hung."""

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def end_if_hung(self, asked_s: float | None, *, now_s: float, usual_s: float) -> None:
        """End the process if it hangs; called about once a second.

        Args:
            asked_s: Since when it has the request that it runs; None while it has none.
            now_s: The time of this look.
            usual_s: How long a turn usually takes.
        """
        ticks = None if asked_s is None else process_figures.processor_ticks(self.pid)
        hang = self._watch.look(asked_s, ticks, now_s=now_s, usual_s=usual_s)
        if hang:
            self.hang = hang
            kill_group(self.pid)

    def end(self, grace_s: float) -> None:
        """Wait for the process to end by itself, and end it; calling it twice is safe.

        Args:
            grace_s: How long it may take to end by itself.
        """
        with self._lock:
            if self._lifeline.closed:
                return
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_s)
            kill_group(self.pid)  # also what the worker left behind
            self._process.wait()
            self._lifeline.close()

    def obituary(self) -> str:
        """Return how the process ended; waits until it has."""
        return self.hang or how_it_ended(self._process.wait())
