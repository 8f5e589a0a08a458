"""What processes use: processor time, peak memory, bytes that they read and wrote.

Rules:
- Mosquitto reads and writes its sockets by `read` and `write`, so the kernel's count of both is the
  count of its traffic: what it read is what controller and devices sent to it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

MB: Final = 1e6
KIB: Final = 1024
NS_PER_S: Final = 1e9
FORGET_PEAK: Final = "5"
"""To /proc/PID/clear_refs: the peak of the memory is from now on today's; see proc(5)."""

BUSY: Final = "import time\nend = time.monotonic() + {limit_s}\nwhile time.monotonic() < end: pass"


def cpu_s(process: psutil.Process) -> float:
    """Return the time that the threads which a process has now were on a processor.

    The kernel's usual figure comes in steps of 10 ms, which is long for a small file.

    Args:
        process: The process; one that is gone has no threads.
    """
    tasks = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / NS_PER_S


def forget_peak(pid: int) -> None:
    """Let a process's peak of memory begin anew.

    Args:
        pid: The process.
    """
    Path(f"/proc/{pid}/clear_refs").write_text(FORGET_PEAK)


def peak_mb(pid: int) -> float:
    """Return the most memory that a process had since its peak was forgotten, in MB.

    Args:
        pid: The process.
    """
    return _field(Path(f"/proc/{pid}/status"), "VmHWM") * KIB / MB


def traffic_bytes(pid: int) -> tuple[int, int]:
    """Return how many bytes a process has read and written.

    Args:
        pid: The process.
    """
    place = Path(f"/proc/{pid}/io")
    return _field(place, "rchar"), _field(place, "wchar")


def _field(place: Path, name: str) -> int:
    for line in place.read_text().splitlines():
        key, _, rest = line.partition(":")
        if key == name:
            return int(rest.split()[0])
    raise KeyError(name)


@contextlib.contextmanager
def busy_neighbours(*, per_core: int, limit_s: float) -> Iterator[None]:
    """Keep every core busy with something else.

    Args:
        per_core: How many processes for each core.
        limit_s: They end by themselves after this time.
    """
    command = [sys.executable, "-I", "-S", "-c", BUSY.format(limit_s=limit_s)]
    neighbours = [subprocess.Popen(command) for _ in range(per_core * (os.cpu_count() or 1))]
    try:
        yield
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()
