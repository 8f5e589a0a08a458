"""Reads the energy that the device took, where it has a counter.

Rules:
- Of the counters of a processor only those of whole packages count; the others are parts of them.
- A counter that only root may read is none.

Source:
    Linux: Documentation/power/powercap/powercap.rst, `energy_uj` and `max_energy_range_uj`;
    Documentation/hwmon/sysfs-interface.rst, `energy[1-*]_input`, in microjoules.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

from telemetry.device.sensors.files import (
    KernelFiles,
    children,
    number_once,
    plain_name,
    text_once,
)

MAX_COUNTERS: Final = 8
UJ_PER_J: Final = 1e6
_PACKAGE: Final = re.compile(r"package-\d+")
_POWERCAP: Final = re.compile(r"[a-z-]+:\d+")
_HWMON: Final = re.compile(r"hwmon\d+")
_INPUT: Final = re.compile(r"energy\d+_input")


class _Counter(NamedTuple):
    name: str
    path: str
    range_uj: int
    """After what it begins again; 0 where that is not known."""


class EnergyMeters:
    """The energy counters of a device.

    Args:
        files: Reads the kernel's files.
        sysfs: Where sysfs is mounted.
    """

    def __init__(self, files: KernelFiles, sysfs: str) -> None:
        self._files = files
        self._sysfs = sysfs
        self._counters: list[_Counter] = []
        self._before_uj: dict[str, int] = {}

    @property
    def has_some(self) -> bool:
        """Whether there is one that may be read."""
        return bool(self._counters)

    def scan(self) -> None:
        """Find the counters that may be read."""
        found = [
            _Counter(text_once(f"{zone}/name"), f"{zone}/energy_uj", _range_uj(zone))
            for zone in children(f"{self._sysfs}/class/powercap", _POWERCAP)
            if _PACKAGE.fullmatch(text_once(f"{zone}/name"))
        ]
        for chip in children(f"{self._sysfs}/class/hwmon", _HWMON):
            for path in children(chip, _INPUT):
                label = text_once(path.replace("_input", "_label")) or Path(path).name
                found.append(_Counter(f"{text_once(f'{chip}/name')}-{label}", path, 0))
        readable = [one for one in found if number_once(one.path) is not None]
        self._counters = readable[:MAX_COUNTERS]

    def read(self) -> dict[str, float]:
        """Return the energy since the last reading by counter, in joules; none at the first."""
        grown: dict[str, float] = {}
        for counter in self._counters:
            now_uj = self._files.number(counter.path)
            before_uj = self._before_uj.get(counter.path)
            if now_uj is None:
                continue
            self._before_uj[counter.path] = now_uj
            if before_uj is None:
                continue
            if now_uj < before_uj and not counter.range_uj:
                continue  # it began again, and nobody knows after what
            wrapped_uj = counter.range_uj if now_uj < before_uj else 0
            name = plain_name(counter.name)
            grown[name] = grown.get(name, 0.0) + (now_uj + wrapped_uj - before_uj) / UJ_PER_J
        return grown


def _range_uj(zone: str) -> int:
    return number_once(f"{zone}/max_energy_range_uj") or 0
