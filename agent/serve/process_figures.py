"""What the kernel tells of a process, with few calls: it is asked every second."""

from __future__ import annotations

import os
from typing import Final

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def rss_bytes(pid: int) -> int:
    """Return the resident size of a process, in bytes; 0 when it has ended.

    Args:
        pid: The process.
    """
    try:
        pages = _read(f"/proc/{pid}/statm").split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * PAGE_BYTES


def processor_ticks(pid: int) -> int | None:
    """Return the processor time of a process; None if it has ended or waits for the disk.

    Args:
        pid: The process.
    """
    try:
        # The name of the program stands in parentheses and may hold spaces.
        fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] == b"D" else int(fields[11]) + int(fields[12])


def _read(path: str) -> bytes:
    """Read a file of the kernel.

    Raises:
        OSError: It is not there.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, PAGE_BYTES)
    finally:
        os.close(descriptor)
