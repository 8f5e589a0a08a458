"""Reads what changes slowly or only counts: disks, network, energy. For once in ten seconds or so.

psutil knows most of this, but its import takes 4.8 MiB of the supervisor's 30 and it reads the same
files of the kernel; so it is the reference of the tests and not a part of the device.

Rules:
- A counter gives its growth since the last reading: nothing at the first, and nothing if it went
  back, as it does when an interface is made anew.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from telemetry.device.sensors.energy import EnergyMeters
from telemetry.device.sensors.files import KernelFiles
from telemetry.device.sensors.pressure import stall_ratio
from telemetry.device.sensors.traffic import Traffic, TrafficCounters


class HostReading(NamedTuple):
    """What happened since the last reading, and what is free; empty or None where unknown."""

    traffic: Traffic
    energy_j: dict[str, float]
    disk_free_bytes: int | None
    io_stall_ratio: float | None
    """Share of the last 10 s in which at least one task waited for a disk."""


class HostSensors:
    """The disks, the network and the energy counters of a device. Not thread-safe.

    Args:
        disk: A path on the disk whose free space counts.
        sysfs_root: Where sysfs is mounted.
        procfs_root: Where procfs is mounted.
    """

    def __init__(
        self, disk: Path, *, sysfs_root: Path = Path("/sys"), procfs_root: Path = Path("/proc")
    ) -> None:
        self._disk = disk
        self._procfs = str(procfs_root)
        self._files = KernelFiles()
        self._traffic = TrafficCounters(self._files, str(sysfs_root))
        self._energy = EnergyMeters(self._files, str(sysfs_root))
        self._before = Traffic({}, {}, {})

    @property
    def has_energy(self) -> bool:
        """Whether there is a counter of energy that may be read."""
        return self._energy.has_some

    def scan(self) -> None:
        """Find what there is to read."""
        self._files.close()
        self._traffic.scan()
        self._energy.scan()

    def read(self) -> HostReading:
        """Return what happened since the last reading."""
        before, now = self._before, self._traffic.read()
        self._before = now
        return HostReading(
            traffic=Traffic(*(growth(old, new) for old, new in zip(before, now, strict=True))),
            energy_j=self._energy.read(),
            disk_free_bytes=self._free_bytes(),
            io_stall_ratio=stall_ratio(self._files.read(f"{self._procfs}/pressure/io"), b"some"),
        )

    def _free_bytes(self) -> int | None:
        try:
            found = os.statvfs(self._disk)
        except OSError:
            return None
        return found.f_bavail * found.f_frsize


def growth(before: dict[str, int], now: dict[str, int]) -> dict[str, int]:
    """Return how much counters grew, of those that were there before and did not go back."""
    return {
        name: new - before[name] for name, new in now.items() if new >= before.get(name, new + 1)
    }
