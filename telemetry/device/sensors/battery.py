"""Reads the energy in the battery and the power that the device draws from it.

Rules:
- If a device has several batteries, the reading is known only when all of them are known.
- An empty bay and the battery of a peripheral, such as a mouse, do not count.
- An energy that is more than a tenth above that of a full battery is a wrong reading.

Source:
    Linux: Documentation/ABI/testing/sysfs-class-power. Microwatts, microwatt hours, microamperes,
    microampere hours, microvolts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from telemetry.device.sensors.files import KernelFiles, children, text_once

FULL_PERCENT: Final = 100
MAX_POWER_MW: Final = 1_000_000.0
MAX_ENERGY_J: Final = 1e9
MAX_MICROVOLTS: Final = 10**9
OVERFULL: Final = 1.1
JOULES_PER_MICROWATT_HOUR: Final = 3.6e-3
JOULES_PER_MICROAMPERE_HOUR_MICROVOLT: Final = 3.6e-9
_ANY: Final = re.compile(r".+")
_DISCHARGING: Final = {
    b"Discharging": True,
    b"Charging": False,
    b"Not charging": False,
    b"Full": False,
}


class BatteryReading(NamedTuple):
    """The reading of one battery, or of all together; None where it is unknown."""

    ratio: float | None = None
    discharging: bool | None = None
    power_mw: float | None = None
    energy_j: float | None = None
    capacity_j: float | None = None


class Batteries:
    """The batteries that feed a device.

    Args:
        files: Reads the kernel's files.
        directory: Where the kernel lists power supplies.
    """

    def __init__(self, files: KernelFiles, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._paths: list[str] = []

    def scan(self) -> None:
        """Find the batteries."""
        self._paths = [
            path
            for path in children(self._directory, _ANY)
            if text_once(f"{path}/type") == "Battery" and text_once(f"{path}/scope") != "Device"
        ]

    def read(self) -> BatteryReading:
        """Return the charge of all batteries together."""
        cells = [
            self._cell(path) for path in self._paths if self._files.number(f"{path}/present") != 0
        ]
        if not cells:
            return BatteryReading()
        ratio = _sum(cell.ratio for cell in cells)
        states = {cell.discharging for cell in cells}
        known: bool | None = None if None in states else False
        return BatteryReading(
            ratio=None if ratio is None else ratio / len(cells),
            discharging=True if True in states else known,
            power_mw=_sum(cell.power_mw for cell in cells),
            energy_j=_sum(cell.energy_j for cell in cells),
            capacity_j=_sum(cell.capacity_j for cell in cells),
        )

    def _cell(self, path: str) -> BatteryReading:
        percent = self._files.number(f"{path}/capacity")
        status = (self._files.read(f"{path}/status") or b"").strip()
        discharging = _DISCHARGING.get(status)
        microvolts = self._files.number(f"{path}/voltage_now")
        if microvolts is not None and not 0 < microvolts <= MAX_MICROVOLTS:
            microvolts = None
        capacity_j = self._joules(path, "full", microvolts)
        energy_j = self._joules(path, "now", microvolts)
        if energy_j is not None and capacity_j is not None:
            # A battery may hold a little more than the capacity that its gauge has learnt.
            energy_j = min(energy_j, capacity_j) if energy_j <= OVERFULL * capacity_j else None
        return BatteryReading(
            ratio=percent / FULL_PERCENT
            if percent is not None and 0 <= percent <= FULL_PERCENT
            else None,
            discharging=discharging,
            power_mw=self._draw_mw(path, microvolts, discharging=discharging),
            energy_j=energy_j,
            capacity_j=capacity_j or None,
        )

    def _draw_mw(
        self, path: str, microvolts: int | None, *, discharging: bool | None
    ) -> float | None:
        """Return the power that is drawn from a battery; 0 while it charges."""
        if discharging is None:
            return None
        if not discharging:
            return 0.0
        microwatts: float | None = self._files.number(f"{path}/power_now")
        if microwatts is None:
            microamperes = self._files.number(f"{path}/current_now")
            if microamperes is None or microvolts is None:
                return None
            microwatts = microamperes * microvolts / 1e6
        # Some drivers give the current out of the battery as a negative number.
        milliwatts = abs(microwatts) / 1000
        return milliwatts if milliwatts <= MAX_POWER_MW else None

    def _joules(self, path: str, name: str, microvolts: int | None) -> float | None:
        """Return an energy, from the energy file or else from charge times the present voltage."""
        joules: float | None = None
        microwatt_hours = self._files.number(f"{path}/energy_{name}")
        if microwatt_hours is not None:
            joules = microwatt_hours * JOULES_PER_MICROWATT_HOUR
        elif microvolts is not None:
            microampere_hours = self._files.number(f"{path}/charge_{name}")
            if microampere_hours is not None:
                joules = microampere_hours * microvolts * JOULES_PER_MICROAMPERE_HOUR_MICROVOLT
        return joules if joules is not None and 0.0 <= joules <= MAX_ENERGY_J else None


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum, or None if one of the values is unknown."""
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total
