"""How much memory is left, for the device and for this process's control group.

Rules:
- The available memory is the least of what the device has left and what each limit above this
  process leaves. If the usage under a limit cannot be read, the available memory is unknown.
- Files that a control group read and did not use again do not count as used memory, because the
  kernel drops them first.

Source:
    Linux: proc(5), /proc/meminfo (kibibytes); Documentation/admin-guide/cgroup-v2.rst, "Memory
    Interface Files" (bytes); Documentation/accounting/psi.rst.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from telemetry.device.sensors.files import KernelFiles, number_once, read_once
from telemetry.device.sensors.pressure import stall_ratio

KIBIBYTE: Final = 1024
MAX_DEPTH: Final = 16
MAX_BYTES: Final = 2**50
"""A pebibyte: a larger value is a wrong reading or means that there is no limit."""

_TOTAL: Final = re.compile(rb"^MemTotal: +(\d{1,15}) kB$", re.MULTILINE)
_AVAILABLE: Final = re.compile(rb"^MemAvailable: +(\d{1,15}) kB$", re.MULTILINE)
_CACHED: Final = re.compile(rb"^inactive_file (\d{1,18})$", re.MULTILINE)
_GROUP: Final = re.compile(rb"^0::(/[^\n]*)$", re.MULTILINE)


class MemoryReading(NamedTuple):
    """Readings of the memory; None where a value is unknown."""

    available_bytes: int | None
    total_bytes: int | None
    stall_ratio: float | None
    full_stall_ratio: float | None


class Memory:
    """The memory of a device.

    Args:
        files: Reads the kernel's files.
        sysfs: Where sysfs is mounted.
        procfs: Where procfs is mounted.
    """

    def __init__(self, files: KernelFiles, sysfs: str, procfs: str) -> None:
        self._files = files
        self._sysfs = sysfs
        self._procfs = procfs
        self._limits: dict[str, int] = {}
        """The limit of each control group by its directory, in bytes."""

    def scan(self) -> None:
        """Find the limits that apply to this process."""
        self._limits = {}
        for group in self._groups():
            found = [number_once(f"{group}/memory.{name}") for name in ("max", "high")]
            limits = [limit for limit in found if limit is not None and 0 < limit < MAX_BYTES]
            if limits:
                self._limits[group] = min(limits)

    def read(self) -> MemoryReading:
        """Read the memory."""
        available, total = self._device_bytes()
        if total is not None:
            total = min([total, *self._limits.values()])
        for group, limit in self._limits.items():
            used = self._used_bytes(group)
            if available is None or used is None:
                available = None
                break
            available = min(available, max(limit - used, 0))
        pressure = self._files.read(f"{self._procfs}/pressure/memory")
        return MemoryReading(
            available, total, stall_ratio(pressure, b"some"), stall_ratio(pressure, b"full")
        )

    def _device_bytes(self) -> tuple[int | None, int | None]:
        text = self._files.read(f"{self._procfs}/meminfo")
        total, available = _bytes(_TOTAL, text), _bytes(_AVAILABLE, text)
        if total is None or available is None or available > total:
            return None, total
        return available, total

    def _used_bytes(self, group: str) -> int | None:
        used = self._files.number(f"{group}/memory.current")
        if used is None or used < 0:
            return None
        cached = _CACHED.search(self._files.read(f"{group}/memory.stat") or b"")
        return max(used - int(cached[1]), 0) if cached else used

    def _groups(self) -> list[str]:
        """Return the directories of this process's control group and of those above it."""
        found = _GROUP.search(read_once(f"{self._procfs}/self/cgroup") or b"")
        path = PurePosixPath(found[1].decode("utf-8", errors="replace")) if found else None
        # A process in another namespace sees an outer group as ../.., which it cannot read.
        if path is None or ".." in path.parts or len(path.parts) > MAX_DEPTH:
            return []
        return [f"{self._sysfs}/fs/cgroup{group}" for group in (path, *path.parents)]


def _bytes(pattern: re.Pattern[bytes], text: bytes | None) -> int | None:
    found = pattern.search(text or b"")
    size = int(found[1]) * KIBIBYTE if found else 0
    return size if 0 < size < MAX_BYTES else None
