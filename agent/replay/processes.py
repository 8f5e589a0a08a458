"""Reads from procfs how busy the processor was, and how much of it the workers took.

Rules:
- What cannot be read is None or left out; no content of a file raises an error here.

Source:
    proc(5): /proc/stat, /proc/[pid]/stat fields 4, 14 and 15, /proc/[pid]/statm. The time of guests
    is within that of users, so it is not counted twice.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

MAX_FILE_BYTES: Final = 256 * 1024
"""Enough for /proc/stat: the lines of the processors come first."""

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
BUSY_COLUMNS: Final = (0, 1, 2, 5, 6, 7)
"""user, nice, system, irq, softirq, steal; not idle and iowait."""


class ProcessorTime(NamedTuple):
    """The time of the processors since the device started."""

    busy_s: float
    """Busy time, mean over all processors."""

    cores: int


class ProcessUsage(NamedTuple):
    """The processor time and the memory of some processes."""

    processor_s: dict[int, float]
    """Processor time by process."""

    held_bytes: int
    """Memory that would be free without them: memory shared with others is not counted."""


def read_processor(procfs: Path) -> ProcessorTime | None:
    """Return the time of the processors; None if the kernel does not report it."""
    rows = [line.split() for line in _lines(procfs / "stat") if line.startswith("cpu")]
    try:
        ticks = [int(rows[0][1 + column]) for column in BUSY_COLUMNS]
    except (IndexError, ValueError):
        return None
    cores = max(len(rows) - 1, 1)
    return ProcessorTime(sum(ticks) / TICKS_PER_S / cores, cores)


def read_descendants(procfs: Path, pid: int) -> ProcessUsage:
    """Return the usage of all descendants of a process, without the process itself.

    Args:
        procfs: Where procfs is mounted.
        pid: The process.

    Returns:
        Their usage; zero if there are none.
    """
    stats = _stats(procfs)
    below = {pid}
    # A child may have a smaller number than its parent, so one pass may miss some.
    while found := {child for child, (parent, _) in stats.items() if parent in below} - below:
        below |= found
    below.discard(pid)
    spent = {child: stats[child][1] for child in below}
    return ProcessUsage(spent, sum(_held_bytes(procfs, child) for child in below))


def _stats(procfs: Path) -> dict[int, tuple[int, float]]:
    """Return the parent and the processor time of every process."""
    found = {}
    try:
        numbers = [int(name) for name in os.listdir(procfs) if name.isdigit()]  # noqa: PTH208
    except OSError:
        return {}
    for number in numbers:
        # The name may contain spaces and brackets; it ends at the last bracket.
        words = "".join(_lines(procfs / str(number) / "stat")).rpartition(")")[2].split()
        try:
            found[number] = int(words[1]), (int(words[11]) + int(words[12])) / TICKS_PER_S
        except (IndexError, ValueError):
            continue
    return found


def _held_bytes(procfs: Path, pid: int) -> int:
    words = "".join(_lines(procfs / str(pid) / "statm")).split()
    try:
        return max(int(words[1]) - int(words[2]), 0) * PAGE_BYTES
    except (IndexError, ValueError):
        return 0


def _lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES).decode("ascii", errors="replace").splitlines()
    except OSError:
        return []
