"""Reads what acts against heat: fans that turn, or a slower processor or graphics unit.

Three sources may slow the device down: the kernel by a cooling device, an x86 processor by itself,
and a Raspberry Pi's firmware.

Rules:
- If one source says yes, the answer is yes. The answer is no only if all sources that the scan
  found say no.
- A cooling device counts if it reduces speed; a fan does not.
- An x86 processor has a counter of how often it began to throttle. The answer is yes if the counter
  rose since the last reading, and unknown at the first reading.

Source:
    Linux: Documentation/ABI/testing/sysfs-class-thermal; for the names drivers/thermal/
    cpufreq_cooling.c, cpuidle_cooling.c, devfreq_cooling.c, drivers/acpi/processor_thermal.c;
    drivers/thermal/intel/therm_throt.c for the counters;
    Documentation/driver-api/thermal/intel_powerclamp.rst: -1 while it injects nothing.
    Jetson Linux: the cooling devices `*-throttle-alert`.
    Raspberry Pi: documentation of `vcgencmd get_throttled`, bits 1 to 3; the kernel's
    drivers/firmware/raspberrypi.c shows the same number in hexadecimal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from telemetry.device.sensors.files import KernelFiles, children, number_once, read_once, text_once

CAPPED_THROTTLED_OR_SOFT_LIMIT: Final = 0b1110
POWERCLAMP: Final = "intel_powerclamp"
_SLOWS: Final = re.compile(
    rf"Processor|(thermal-)?(cpufreq|idle|cpuidle|devfreq)-.*|.*-throttle-alert|{POWERCLAMP}"
)
_FAN: Final = re.compile(r".*fan.*", re.IGNORECASE)
_COOLING: Final = re.compile(r"cooling_device\d+")
_CPU: Final = re.compile(r"cpu\d+")
_FIRMWARE: Final = re.compile(r".*:firmware")
_HEXADECIMAL: Final = re.compile(rb"(?:0x)?([0-9a-f]{1,8})\s*")


class CoolingReading(NamedTuple):
    """What acts against heat; None where that is unknown."""

    throttled: bool | None
    fan_ratio: float | None


class _Device(NamedTuple):
    """A cooling device of the kernel's."""

    state: str
    kind: str
    greatest: int


class Cooling:
    """Everything that cools the device or slows it down.

    Args:
        files: Reads the kernel's files.
        sysfs: Where sysfs is mounted.
    """

    def __init__(self, files: KernelFiles, sysfs: str) -> None:
        self._files = files
        self._sysfs = sysfs
        self._fans: list[_Device] = []
        self._brakes: list[_Device] = []
        self._counters: list[str] = []
        self._counts: dict[str, int] = {}
        self._firmware: list[str] = []

    def scan(self) -> None:
        """Find the fans, and the sources that may slow the device down."""
        devices = [
            _Device(f"{path}/cur_state", text_once(f"{path}/type"), greatest)
            for path in children(f"{self._sysfs}/class/thermal", _COOLING)
            if (greatest := number_once(f"{path}/max_state") or 0) > 0
        ]
        self._fans = [device for device in devices if _FAN.fullmatch(device.kind)]
        self._brakes = [device for device in devices if _SLOWS.fullmatch(device.kind)]
        cores = [
            f"{path}/thermal_throttle"
            for path in children(f"{self._sysfs}/devices/system/cpu", _CPU)
        ]
        # Every core of a package counts the package's throttling; one of them is enough.
        counters = [f"{path}/core_throttle_count" for path in cores]
        counters += [f"{path}/package_throttle_count" for path in cores[:1]]
        self._counters = [path for path in counters if read_once(path) is not None]
        self._firmware = [
            f"{path}/get_throttled"
            for path in children(f"{self._sysfs}/bus/platform/devices", _FIRMWARE)
            if read_once(f"{path}/get_throttled") is not None
        ]

    def read(self) -> CoolingReading:
        """Read the fans and the sources."""
        return CoolingReading(throttled=self._throttled(), fan_ratio=self._fan_ratio())

    def _throttled(self) -> bool | None:
        answers = set(self._answers())
        if True in answers:
            return True
        return None if None in answers or not answers else False

    def _fan_ratio(self) -> float | None:
        """Return the state of the fastest fan, or None if a fan cannot be read."""
        fastest: float | None = None
        for fan in self._fans:
            ratio = self._ratio(fan)
            if ratio is None:
                return None
            fastest = max(ratio, fastest or 0.0)
        return fastest

    def _ratio(self, device: _Device) -> float | None:
        state = self._files.number(device.state)
        if state == -1 and device.kind == POWERCLAMP:
            return 0.0
        return (
            state / device.greatest if state is not None and 0 <= state <= device.greatest else None
        )

    def _answers(self) -> Iterator[bool | None]:
        for brake in self._brakes:
            ratio = self._ratio(brake)
            yield None if ratio is None else ratio > 0.0
        for path in self._counters:
            yield self._rose(path)
        for path in self._firmware:
            flags = _HEXADECIMAL.fullmatch(self._files.read(path) or b"")
            yield int(flags[1], 16) & CAPPED_THROTTLED_OR_SOFT_LIMIT != 0 if flags else None

    def _rose(self, path: str) -> bool | None:
        count = self._files.number(path)
        before = self._counts.get(path)
        if count is None:
            return None
        self._counts[path] = count
        return None if before is None or count < before else count > before
