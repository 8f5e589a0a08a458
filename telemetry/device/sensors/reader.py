"""Reads all sensors of a device at once, cheaply enough to do it every second.

Rules:
- A reading that is missing, unreadable or absurd is None: an unknown value never means cool, full
  or free.
- The reader raises no error because of a file's content.
- The reader looks for sensors again every `RESCAN_S`. It then sees a new sensor; a removed sensor
  is unknown at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from telemetry.device.sensors.battery import Batteries
from telemetry.device.sensors.cooling import Cooling
from telemetry.device.sensors.files import KernelFiles
from telemetry.device.sensors.graphics import Graphics
from telemetry.device.sensors.heat import ThermalZones, ZoneReading
from telemetry.device.sensors.memory import Memory
from telemetry.device.sensors.processor import Processor
from wire.clock import Clock
from wire.health import HealthSnapshot
from wire.profile import DeviceProfile

RESCAN_S: Final = 60.0


def system_utc_offset_s(at_s: float) -> float:
    """Return local time minus UTC in the machine's time zone.

    Args:
        at_s: Wall time in seconds since the epoch.

    Returns:
        The offset in seconds; 0 for a time that the machine's calendar does not have.
    """
    try:
        return float(time.localtime(at_s).tm_gmtoff)
    except (OverflowError, OSError, ValueError):
        return 0.0


class Sensors:
    """Reads the device's sensors and keeps the earlier readings of each. Not thread-safe.

    Args:
        profile: Its thermal limits give the scale of the headroom.
        clock: Gives the time of a reading and the speed of its change.
        sysfs_root: Where sysfs is mounted.
        procfs_root: Where procfs is mounted.
        utc_offset_s: Gives local time minus UTC at a wall time, in seconds.
    """

    def __init__(
        self,
        profile: DeviceProfile,
        clock: Clock,
        *,
        sysfs_root: Path = Path("/sys"),
        procfs_root: Path = Path("/proc"),
        utc_offset_s: Callable[[float], float] = system_utc_offset_s,
    ) -> None:
        self._utc_offset_s = utc_offset_s
        sysfs, procfs = str(sysfs_root), str(procfs_root)
        self._clock = clock
        self._files = files = KernelFiles()
        self._zones = ThermalZones(files, f"{sysfs}/class/thermal", profile.thermal)
        self._cooling = Cooling(files, sysfs)
        self._processor = Processor(files, sysfs, procfs, profile.cpu_count)
        self._batteries = Batteries(files, f"{sysfs}/class/power_supply")
        self._memory = Memory(files, sysfs, procfs)
        self._graphics = Graphics(files, sysfs)
        self._scanned_at_s: float | None = None

    def read(self) -> HealthSnapshot:
        """Return the readings of all sensors."""
        now_s = self._clock.monotonic_s()
        if self._scanned_at_s is None or not 0.0 <= now_s - self._scanned_at_s < RESCAN_S:
            self._scan()
            self._scanned_at_s = now_s
        processor = self._processor.read()
        heat = self._zones.read(now_s, processor.busy_ratio)
        cooling = self._cooling.read()
        battery = self._batteries.read()
        memory = self._memory.read()
        graphics = self._graphics.read()
        at_s = self._clock.now_s()
        return HealthSnapshot(
            at_s=at_s,
            utc_offset_s=self._utc_offset_s(at_s),
            temperature_c=heat.temperature_c,
            headroom=heat.headroom,
            severe_c=heat.severe_c,
            throttled=cooling.throttled,
            fan_ratio=cooling.fan_ratio,
            cpu_frequency_ratio=processor.frequency_ratio,
            cpu_frequency_limit_ratio=processor.limit_ratio,
            cpu_busy_ratio=processor.busy_ratio,
            cpu_stall_ratio=processor.stall_ratio,
            load_ratio=processor.load_ratio,
            battery_ratio=battery.ratio,
            battery_discharging=battery.discharging,
            battery_energy_j=battery.energy_j,
            battery_capacity_j=battery.capacity_j,
            power_mw=battery.power_mw,
            memory_available_bytes=memory.available_bytes,
            memory_total_bytes=memory.total_bytes,
            memory_stall_ratio=memory.stall_ratio,
            memory_full_stall_ratio=memory.full_stall_ratio,
            gpu_frequency_ratio=graphics.frequency_ratio,
            gpu_busy_ratio=graphics.busy_ratio,
        )

    @property
    def zones(self) -> list[ZoneReading]:
        """What each thermal zone of the processor said at the last reading."""
        return self._zones.zones

    def _scan(self) -> None:
        # Otherwise the descriptors of removed files would stay open.
        self._files.close()
        for part in (
            self._zones,
            self._cooling,
            self._processor,
            self._batteries,
            self._memory,
            self._graphics,
        ):
            part.scan()
