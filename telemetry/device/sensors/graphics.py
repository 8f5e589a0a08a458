"""Reads how fast and how busy the graphics unit is, where the kernel shows it.

Rules:
- If there are several units, the greatest value of each kind counts.
- If a unit gave a value at the scan and gives no possible one now, the reading is unknown.

Source:
    Linux: Documentation/ABI/testing/sysfs-class-devfreq (hertz; Rockchip's `load` is
    "12@400000000Hz", in percent); Documentation/gpu/amdgpu/thermal.rst (`gpu_busy_percent`); i915's
    `gt_act_freq_mhz` and `gt_RP0_freq_mhz`; xe's drivers/gpu/drm/xe/xe_gt_freq.c.
    Jetson Linux: the graphics unit's `load`, in thousandths.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from telemetry.device.sensors.files import KernelFiles, children, number_once, read_once

MAX_FREQUENCY_RATIO: Final = 1.5
PERCENT: Final = 100
THOUSANDTHS: Final = 1000
_UNIT: Final = re.compile(r".*(?:gpu|mali|g3d|v3d|kgsl|ga10b|gv11b|gp10b|gm20b).*", re.IGNORECASE)
_CARD: Final = re.compile(r"card\d+")
_LEADING: Final = re.compile(rb"(\d{1,18})(?:@\d+Hz)?\s*")
_INTEL: Final = (
    ("gt_act_freq_mhz", "gt_RP0_freq_mhz"),
    ("device/tile0/gt0/freq0/act_freq", "device/tile0/gt0/freq0/rp0_freq"),
)


class GraphicsReading(NamedTuple):
    """Readings of the graphics unit; None where a value is unknown."""

    frequency_ratio: float | None
    busy_ratio: float | None


class _Gauge(NamedTuple):
    path: str
    full: int


class Graphics:
    """The graphics units of a device.

    Args:
        files: Reads the kernel's files.
        sysfs: Where sysfs is mounted.
    """

    def __init__(self, files: KernelFiles, sysfs: str) -> None:
        self._files = files
        self._sysfs = sysfs
        self._frequencies: list[_Gauge] = []
        self._loads: list[_Gauge] = []

    def scan(self) -> None:
        """Find the files that can be read."""
        units = children(f"{self._sysfs}/class/devfreq", _UNIT)
        cards = children(f"{self._sysfs}/class/drm", _CARD)
        self._frequencies = [*_devfreq_frequencies(units), *_card_frequencies(cards)]
        candidates = [
            *(_Gauge(f"{unit}/device/load", THOUSANDTHS) for unit in units),
            *(_Gauge(f"{unit}/load", PERCENT) for unit in units),
            *(_Gauge(f"{card}/device/gpu_busy_percent", PERCENT) for card in cards),
        ]
        self._loads = [gauge for gauge in candidates if _LEADING.fullmatch(_seen(gauge))]

    def read(self) -> GraphicsReading:
        """Read the graphics units."""
        return GraphicsReading(
            frequency_ratio=self._greatest(self._frequencies, MAX_FREQUENCY_RATIO),
            busy_ratio=self._greatest(self._loads, 1.0),
        )

    def _greatest(self, gauges: list[_Gauge], most: float) -> float | None:
        greatest: float | None = None
        for gauge in gauges:
            found = _LEADING.fullmatch(self._files.read(gauge.path) or b"")
            ratio = int(found[1]) / gauge.full if found else most + 1.0
            if ratio > most:
                return None
            greatest = min(max(ratio, greatest or 0.0), 1.0)
        return greatest


def _devfreq_frequencies(units: list[str]) -> Iterator[_Gauge]:
    for unit in units:
        # `max_freq` is the frequency that is allowed now; the table has all that are possible.
        table = (read_once(f"{unit}/available_frequencies") or b"").split()
        full = max((int(word) for word in table if word.isdigit()), default=0)
        full = full or number_once(f"{unit}/max_freq") or 0
        if full > 0 and read_once(f"{unit}/cur_freq"):
            yield _Gauge(f"{unit}/cur_freq", full)


def _card_frequencies(cards: list[str]) -> Iterator[_Gauge]:
    for card in cards:
        for present, greatest in _INTEL:
            full = number_once(f"{card}/{greatest}") or 0
            if full > 0 and read_once(f"{card}/{present}"):
                yield _Gauge(f"{card}/{present}", full)


def _seen(gauge: _Gauge) -> bytes:
    return read_once(gauge.path) or b""
