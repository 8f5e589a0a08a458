"""Runs one executable to its end, within a time, and keeps the end of what it said.

Rules:
- It gets no descriptor of the agent, an empty standard input, and only the environment that it is
  given. No shell is between.
- It leads a process group. The group is killed when the time is over, when the agent stops, and
  also after it has ended: what it left behind ends with it. A process that has made a session of
  its own is not in the group. What cannot be killed is not waited for.
- If it cannot be started for a reason that passes, it counts as one that says later.
- What it writes is read as it comes, and only the last of it is kept.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from agent.install.hooks.names import LATER_STATUS
from agent.serve.spawning import kill_group
from wire.clock import Clock

KEPT_BYTES: Final = 2048
READ_BYTES: Final = 65_536
LAST_READS: Final = 16
"""What a pipe can still hold; a process that left the group could write for ever."""

SLICE_S: Final = 0.05
"""Longest time without a look at its end, the limit and the stop of the agent."""

NO_STATUS: Final = 1
"""Stands for the exit status of what was killed, or could not be started."""

KILLED_S: Final = 5.0
"""How long what was killed may take to end; an agent that stops must not wait for ever."""

UNKILLABLE: Final = (
    "it does not end and cannot be killed: it may have changed its user; end it by hand, and let "
    "no hook change its user"
)
PASSING: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.ETXTBSY})
"""Faults of a start that say nothing about the hook: the device is short of something, or somebody
is writing the file."""

MAX_LINE: Final = 200


class Ran(NamedTuple):
    """How an executable ended."""

    status: int
    """Its exit status, or what stands for it."""

    why: str
    """The same for people, such as `exit status 3` or `it did not end within 60 s`."""

    output: str
    """The end of what it wrote to its standard output and standard error."""

    @property
    def text(self) -> str:
        """How it ended, with the last line that it wrote."""
        lines = self.output.split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        shown = "".join(char if char.isprintable() else "?" for char in last)[:MAX_LINE]
        return f"{self.why}: {shown}" if shown else self.why


def run(
    command: Path,
    environment: Mapping[str, str],
    *,
    timeout_s: float,
    clock: Clock,
    check: Callable[[], None],
) -> Ran:
    """Run an executable without arguments.

    Args:
        command: The executable.
        environment: All variables that it gets.
        timeout_s: How long it may run.
        clock: For the limit.
        check: Called often; raises to end it.

    Returns:
        How it ended.
    """
    try:
        process, reading = _started(command, environment)
    except OSError as exc:
        fault = (exc.strerror or str(exc)).lower()
        if exc.errno in PASSING:
            return Ran(LATER_STATUS, f"it cannot be run now: {fault}", "")
        return Ran(NO_STATUS, f"it cannot be run: {fault}", "")
    output = _Output(reading)
    end_s = clock.monotonic_s() + timeout_s
    in_time = True
    try:
        while in_time and not _has_ended(process.pid):
            check()
            output.read(SLICE_S)
            in_time = clock.monotonic_s() < end_s
    finally:
        kill_group(process.pid)  # not waited for yet, so the number is still its own
        has_ended = _has_gone(process)
        output.close()
    if not has_ended:
        return Ran(NO_STATUS, UNKILLABLE, output.text)
    if not in_time:
        return Ran(NO_STATUS, f"it did not end within {timeout_s:g} s", output.text)
    return Ran(*_ending(process.returncode), output.text)


def _started(command: Path, environment: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], int]:
    """Start an executable; return it and the end of the pipe at which its output comes.

    Raises:
        OSError: It cannot be started.
    """
    reading, writing = os.pipe()
    try:
        process = subprocess.Popen(
            [command],
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=writing,
            env=dict(environment),
            cwd="/",
            start_new_session=True,
        )
    except OSError:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return process, reading


def _has_gone(process: subprocess.Popen[bytes]) -> bool:
    """Wait for what was killed; tell whether it has ended."""
    try:
        process.wait(KILLED_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _has_ended(pid: int) -> bool:
    """Tell whether a child has ended, without taking its number from it."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _ending(code: int) -> tuple[int, str]:
    if code >= 0:
        return code, f"exit status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return NO_STATUS, f"it was ended by {name}"


class _Output:
    """The end of what comes through a pipe.

    Args:
        reading: Descriptor of its reading end.
    """

    def __init__(self, reading: int) -> None:
        os.set_blocking(reading, False)
        self._reading = reading
        self._kept = b""
        self._poll = select.poll()
        self._poll.register(reading, select.POLLIN)

    @property
    def text(self) -> str:
        return self._kept.decode(errors="replace")

    def read(self, timeout_s: float) -> None:
        """Wait for something and read it, once; wait also when nothing can come any more."""
        if self._poll.poll(timeout_s * 1000):
            self._take()

    def close(self) -> None:
        """Read what is left of it."""
        for _ in range(LAST_READS):
            if not self._take():
                break
        os.close(self._reading)

    def _take(self) -> bool:
        try:
            data = os.read(self._reading, READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._poll = select.poll()  # which then only waits
        self._kept = (self._kept + data)[-KEPT_BYTES:]
        return bool(data)
