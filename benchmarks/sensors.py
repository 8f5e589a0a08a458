"""What a look at the sensors costs: processor time of one reading, on each board of the test data.

The boards are trees of files on a disk; what a driver takes to answer on a real board comes on top.
On this machine's own sysfs and procfs the peer is psutil, asked for what it knows of the same.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil

from benchmarks.harness import Row, against, alone, main
from telemetry.device.sensors import Sensors
from wire.clock import SystemClock
from wire.profile import DeviceProfile

BOARDS: Final = Path(__file__).parents[1] / "tests" / "data" / "sysfs"
PROFILE: Final = DeviceProfile(
    name="any", architecture="x86_64", memory_bytes=1, storage_bytes=1, runtimes=("null",)
)
READINGS: Final = 100
MICROSECONDS: Final = 1e6
SECOND_AIM_US: Final = 2000.0
"""A fifth of a percent of one core, at one reading a second."""


def measure(quick: bool) -> list[Row]:
    """Read every board, and this machine beside psutil."""
    rounds = 3 if quick else 9
    here = _sensors(Path("/sys"), Path("/proc"))
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(_processor_us(here.read))
        theirs.append(_processor_us(_psutil))
    rows = [against("this machine", ours, theirs, unit="us", peer="psutil")]
    for board in sorted(path for path in BOARDS.iterdir() if path.is_dir()):
        sensors = _sensors(board / "sys", board / "proc")
        taken = [_processor_us(sensors.read) for _ in range(rounds)]
        rows.append(alone(board.name, taken, unit="us", at_most=SECOND_AIM_US))
    return rows


def _sensors(sysfs: Path, procfs: Path) -> Sensors:
    sensors = Sensors(PROFILE, SystemClock(), sysfs_root=sysfs, procfs_root=procfs)
    sensors.read()
    return sensors


def _psutil() -> None:
    psutil.virtual_memory()
    psutil.cpu_percent()
    psutil.getloadavg()
    psutil.sensors_temperatures()
    psutil.sensors_fans()
    psutil.sensors_battery()


def _processor_us(read: Callable[[], object]) -> float:
    """Return the processor time of one reading, the median of some."""
    taken = []
    for _ in range(READINGS):
        began_s = time.thread_time()
        read()
        taken.append(time.thread_time() - began_s)
    return statistics.median(taken) * MICROSECONDS


if __name__ == "__main__":
    sys.exit(main("A look at the sensors", measure))
