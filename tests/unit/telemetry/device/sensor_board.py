"""A copy of a device's sysfs and procfs whose files a test may change."""

from __future__ import annotations

import shutil
from pathlib import Path

from telemetry.device.sensors import Sensors
from tests.unit.telemetry.device.manual_clock import ManualClock
from wire.health import HealthSnapshot
from wire.profile import DeviceProfile, ThermalLimits

RECORDED = Path(__file__).parents[3] / "data" / "sysfs"
BOARDS = sorted(path.name for path in RECORDED.iterdir() if path.is_dir())


def overwrite(path: Path, content: bytes) -> None:
    """Replace what a file holds; a file that is emptied first is flushed to the disk each time."""
    path.touch()
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()


class Board:
    """A device at rest until a test changes its files or moves its clock."""

    def __init__(self, root: Path, name: str, thermal: ThermalLimits | None = None) -> None:
        self.root = root / name
        shutil.copytree(RECORDED / name, self.root, symlinks=True)
        self.clock = ManualClock()
        self.profile = DeviceProfile(
            name="board",
            architecture="aarch64",
            memory_bytes=1,
            storage_bytes=1,
            thermal=thermal or ThermalLimits(),
        )
        self.sensors = self.restarted()

    def restarted(self) -> Sensors:
        """Return sensors that remember nothing."""
        return Sensors(
            self.profile,
            self.clock,
            sysfs_root=self.root / "sys",
            procfs_root=self.root / "proc",
            utc_offset_s=lambda _: 0.0,
        )

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        overwrite(path, f"{text}\n".encode())

    def remove(self, name: str) -> None:
        path = self.root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    def read(self, after_s: float = 1.0) -> HealthSnapshot:
        self.clock.sleep(after_s)
        return self.sensors.read()
