"""One device: a real `fleet-agent run`, and how its power goes.

Rules:
- A power cut ends the agent, its workers and all that they started by SIGKILL, within a moment.
- A device is known by its home directory, which every process of it inherits.
- What a kill cannot lose is not lost: the kernel still writes what was written. Which writes a real
  power cut may lose is the matter of crash-state tests, not of this one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from examples.digits.box import BIN, Box
from examples.digits.box import Device as BoxDevice

END_S: Final = 30.0
STEP_S: Final = 0.005


class ClosedError(Exception):
    """A device was to start after the end of the run."""


class Call(NamedTuple):
    """A system call by a number: at the moment when the agent makes it, its power goes."""

    names: str
    """One kind of calls, as strace names them."""

    number: int
    """Which of them, counted for each thread and each name."""


CALLS: Final = {
    "rename": 28,
    "fsync": 40,
    "fdatasync": 24,
    "unlink,rmdir": 16,
    "mkdir,symlink": 12,
    "ftruncate,fchmod": 30,
    "pwrite64": 24,
    "write": 600,
}
"""What changes files, and about how many of each a start and an install make in one thread."""


class PowerDevice:
    """A device whose power can go.

    Args:
        box: Whose environment it has.
        made: Its files.
    """

    def __init__(self, box: Box, made: BoxDevice) -> None:
        self.name = made.name
        self.port = made.port
        self.config = made.config
        directory = made.config.parent
        self.state_dir = directory / "state"
        self.home = directory / "home"
        self.temporary = directory / "tmp"
        for place in (self.home, self.temporary):
            place.mkdir()
        self._log = box.logs / f"{made.name}.log"
        self._command = [str(BIN / "fleet-agent"), "run", "--config", str(made.config)]
        self._environment = box.environment | {
            "PYTHONOPTIMIZE": "2",
            "HOME": str(self.home),
            "TMPDIR": str(self.temporary),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self.started_s = 0.0
        """When it was started last, on the monotonic clock."""

        self.is_closed = False
        """Whether the run has ended; what its device does then is no fault of it."""

    def start(self, cut_at: Call | None = None) -> None:
        """Start the agent.

        Args:
            cut_at: The call at which its power goes, by strace; None if it goes by `cut`.

        Raises:
            ClosedError: The run has ended.
        """
        if self.is_closed:
            raise ClosedError(f"{self.name}: the run has ended")
        command = self._command
        if cut_at is not None:
            # With --seccomp-bpf, strace 6.1 counts no further than the first call.
            command = [
                "strace", "-f", "-qqq", "-o", "/dev/null",
                "-e", f"trace={cut_at.names}", "-e", "signal=none",
                "-e", f"inject={cut_at.names}:signal=SIGKILL:when={cut_at.number}", "--", *command,
            ]  # fmt: skip
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=self._environment, start_new_session=True,
            )  # fmt: skip
        self.started_s = time.monotonic()

    @property
    def is_running(self) -> bool:
        """Whether the agent runs."""
        return self._process is not None and self._process.poll() is None

    def cut(self) -> None:
        """Let the power go, whether or not the agent still runs.

        Raises:
            TimeoutError: A process of the device is still there.
        """
        process, self._process = self._process, None
        if process is None:
            return
        family = []
        with contextlib.suppress(psutil.Error):
            family = psutil.Process(process.pid).children(recursive=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for each in family:
            with contextlib.suppress(psutil.Error):
                each.kill()
        process.wait(END_S)
        end_s = time.monotonic() + END_S
        while left := self.processes():  # what the family started meanwhile
            for each in left:
                with contextlib.suppress(psutil.Error):
                    each.kill()
            if time.monotonic() > end_s:
                raise TimeoutError(f"{self.name}: {left} cannot be killed")
            time.sleep(STEP_S)

    def stop(self) -> list[str]:
        """End the agent as a user does; return what is left of it afterwards."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
        left = self.processes()
        for each in left:
            with contextlib.suppress(psutil.Error):
                each.kill()
        return [f"{self.name}: {each}" for each in left]

    def close(self) -> list[str]:
        """Let the device never start again; return what was left of it."""
        self.is_closed = True
        return self.stop()

    def processes(self) -> list[psutil.Process]:
        """Return what runs of the device."""
        mark = f"HOME={self.home}\0".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError, psutil.Error):
                    if mark in (entry / "environ").read_bytes():
                        found.append(psutil.Process(int(entry.name)))
        return found

    def open_files(self) -> int:
        """Return how many files its processes have open."""
        found = 0
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                found += process.num_fds()
        return found
