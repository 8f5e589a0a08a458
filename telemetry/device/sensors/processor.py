"""Reads the processor's present and allowed frequency, and how busy it is.

Rules:
- A core whose frequency cannot be read or is impossible is left out: it may be switched off.
- Cores that share a frequency are read once and weighted by their number.
- The busy share refers to the time between two readings. It is unknown at the first reading and
  after the counters went back.

Source:
    Linux: Documentation/admin-guide/pm/cpufreq.rst (kilohertz); Documentation/filesystems/proc.rst,
    section 1.8, /proc/stat: user nice system idle iowait irq softirq steal, then guest time,
    which user and nice hold already.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from typing import Final, NamedTuple

from telemetry.device.sensors.files import KernelFiles, children, number_once
from telemetry.device.sensors.pressure import stall_ratio

MAX_FREQUENCY_RATIO: Final = 1.5
"""A boost may exceed the nominal greatest frequency a little; a higher value is a wrong reading."""

STAT_BYTES: Final = 512
"""The first line of /proc/stat, for all cores together, is shorter than this."""

_CPU: Final = re.compile(r"cpu\d+")
_TIMES: Final = re.compile(rb"cpu +(\d{1,20}(?: \d{1,20}){7})[ \n]")
_LOAD: Final = re.compile(rb"(\d{1,7}\.\d\d) ")


class ProcessorReading(NamedTuple):
    """Readings of the processor; None where a value is unknown."""

    frequency_ratio: float | None
    limit_ratio: float | None
    busy_ratio: float | None
    stall_ratio: float | None
    load_ratio: float | None


class _Policy(NamedTuple):
    """Cores that share a frequency."""

    path: str
    cores: int
    greatest_khz: int


class _Times(NamedTuple):
    idle: int
    total: int


class Processor:
    """The cores of a device.

    Args:
        files: Reads the kernel's files.
        sysfs: Where sysfs is mounted.
        procfs: Where procfs is mounted.
        cpu_count: The number of cores if sysfs does not list them.
    """

    def __init__(self, files: KernelFiles, sysfs: str, procfs: str, cpu_count: int) -> None:
        self._files = files
        self._sysfs = sysfs
        self._procfs = procfs
        self._profile_count = cpu_count
        self._cpu_count = cpu_count
        self._policies: list[_Policy] = []
        self._times: _Times | None = None

    def scan(self) -> None:
        """Find the cores, and which of them share a frequency."""
        cpus = children(f"{self._sysfs}/devices/system/cpu", _CPU)
        self._cpu_count = len(cpus) or self._profile_count
        shared = Counter(os.path.realpath(f"{cpu}/cpufreq") for cpu in cpus)
        self._policies = [
            _Policy(path, cores, greatest_khz)
            for path, cores in shared.items()
            if (greatest_khz := number_once(f"{path}/cpuinfo_max_freq") or 0) > 0
        ]

    def read(self) -> ProcessorReading:
        """Read the processor."""
        return ProcessorReading(
            frequency_ratio=self._ratio("scaling_cur_freq"),
            limit_ratio=self._ratio("scaling_max_freq"),
            busy_ratio=self._busy_ratio(),
            stall_ratio=stall_ratio(self._files.read(f"{self._procfs}/pressure/cpu"), b"some"),
            load_ratio=self._load_ratio(),
        )

    def _ratio(self, name: str) -> float | None:
        """Return the mean of a frequency over all cores, divided by the mean of their greatest."""
        present_khz = greatest_khz = 0
        for policy in self._policies:
            khz = self._files.number(f"{policy.path}/{name}")
            if khz is not None and 0 < khz <= policy.greatest_khz * MAX_FREQUENCY_RATIO:
                present_khz += khz * policy.cores
                greatest_khz += policy.greatest_khz * policy.cores
        return min(present_khz / greatest_khz, 1.0) if greatest_khz else None

    def _busy_ratio(self) -> float | None:
        before = self._times
        self._times = now = _times(self._files.read(f"{self._procfs}/stat", STAT_BYTES))
        if before is None or now is None:
            return None
        idle, total = now.idle - before.idle, now.total - before.total
        return 1.0 - idle / total if 0 <= idle <= total and total > 0 else None

    def _load_ratio(self) -> float | None:
        found = _LOAD.match(self._files.read(f"{self._procfs}/loadavg") or b"")
        return float(found[1]) / self._cpu_count if found else None


def _times(stat: bytes | None) -> _Times | None:
    found = _TIMES.match(stat or b"")
    if not found:
        return None
    times = [int(word) for word in found[1].split()]
    return _Times(idle=times[3] + times[4], total=sum(times))
