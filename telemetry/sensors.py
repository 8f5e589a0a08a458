"""How hot, full and busy this device is, from the kernel's own files.

Rules:
- A reading that is missing, unreadable or absurd is None: unknown is never cool, full or free.
- A zone of the processor that was read once and is lost now makes the temperature unknown: the
  zones that are left may be the cool ones.
- Nothing here raises because of what a file holds.

Source:
    Linux: Documentation/ABI/testing/sysfs-class-thermal, sysfs-class-power,
    Documentation/admin-guide/pm/cpufreq.rst, proc(5). Units: millidegrees Celsius, microwatts,
    microamperes, microvolts, kilohertz, kibibytes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from wire.clock import Clock
from wire.health import HealthSnapshot
from wire.profile import DeviceProfile

COLDEST_C = -30.0
HOTTEST_C = 150.0
JUMP_C = 60.0
JUMP_S = 5.0
"""Silicon and its heat sink do not change by more than `JUMP_C` within `JUMP_S`: a loose wire
does."""

FULL_PERCENT = 100
MAX_POWER_MW = 1_000_000.0
MAX_FREQUENCY_RATIO = 1.5
"""A boost may exceed the nominal greatest frequency a little; more is a misreading."""

MAX_FILE_BYTES = 8192
"""What is needed of /proc/meminfo stands in its first lines."""

_PROCESSOR = re.compile(r"cpu|soc|pkg|core|cluster|big|little", re.IGNORECASE)
_NOT_PROCESSOR = re.compile(r"batt|wifi|wlan|nvme|pch|charg|int3400|skin|modem|pmic", re.IGNORECASE)
_CPU = re.compile(r"cpu\d+")


class _Reading(NamedTuple):
    celsius: float
    at_s: float
    """Monotonic."""

    def is_contradicted_by(self, celsius: float, now_s: float) -> bool:
        """Tell whether a later reading cannot be true if this one was."""
        return now_s - self.at_s < JUMP_S and abs(celsius - self.celsius) > JUMP_C


class _Battery(NamedTuple):
    ratio: float | None
    discharging: bool | None
    power_mw: float | None


class Sensors:
    """Reads the device's sensors; remembers what each zone said before.

    Args:
        profile: Its thermal limits give the scale of the headroom.
        clock: For the time of a reading and the speed of its change.
        sysfs_root: Where sysfs is mounted.
        procfs_root: Where procfs is mounted.
    """

    def __init__(
        self,
        profile: DeviceProfile,
        clock: Clock,
        *,
        sysfs_root: Path = Path("/sys"),
        procfs_root: Path = Path("/proc"),
    ) -> None:
        self._profile = profile
        self._clock = clock
        self._sysfs = sysfs_root
        self._procfs = procfs_root
        self._zones: dict[Path, _Reading] = {}

    def read(self) -> HealthSnapshot:
        """Return how the device is now."""
        temperature_c = self._temperature_c()
        battery = self._battery()
        available_bytes, total_bytes = self._memory_bytes()
        cpus = _children(self._sysfs / "devices/system/cpu", _CPU)
        return HealthSnapshot(
            at_s=self._clock.now_s(),
            temperature_c=temperature_c,
            headroom=self._headroom(temperature_c),
            cpu_frequency_ratio=_frequency_ratio(cpus),
            battery_ratio=battery.ratio,
            battery_discharging=battery.discharging,
            power_mw=battery.power_mw,
            memory_available_bytes=available_bytes,
            memory_total_bytes=total_bytes,
            load_ratio=self._load_ratio(len(cpus) or self._profile.cpu_count),
        )

    def _temperature_c(self) -> float | None:
        """Return the hottest of the processor's zones, or None if one of them is lost.

        A zone that never gave a possible value, such as that of a unit without power, is ignored.
        """
        present = _processor_zones(self._sysfs / "class/thermal")
        readings = {zone: self._zone_c(zone) for zone in {*present, *self._zones}}
        lost = [zone for zone, celsius in readings.items() if celsius is None]
        if any(zone in self._zones for zone in lost):
            return None
        return max((celsius for celsius in readings.values() if celsius is not None), default=None)

    def _zone_c(self, zone: Path) -> float | None:
        """Return a zone's temperature, or None if it is not to be believed."""
        millidegrees = _read_int(zone / "temp")
        if millidegrees is None:
            return None
        celsius = millidegrees / 1000
        now_s = self._clock.monotonic_s()
        before = self._zones.get(zone)
        if not COLDEST_C <= celsius <= HOTTEST_C:
            return None
        if before is not None and before.is_contradicted_by(celsius, now_s):
            return None
        self._zones[zone] = _Reading(celsius, now_s)
        return celsius

    def _headroom(self, temperature_c: float | None) -> float | None:
        if temperature_c is None:
            return None
        limits = self._profile.thermal
        return (temperature_c - limits.nominal_c) / (limits.severe_c - limits.nominal_c)

    def _battery(self) -> _Battery:
        """Return the charge of all batteries together; peripherals' batteries are not ours."""
        supplies = _children(self._sysfs / "class/power_supply", re.compile(r".+"))
        cells = [
            _read_battery(path)
            for path in supplies
            if _read_text(path / "type") == "Battery" and _read_text(path / "scope") != "Device"
        ]
        if not cells:
            return _Battery(None, None, None)
        ratios = [cell.ratio for cell in cells if cell.ratio is not None]
        powers = [cell.power_mw for cell in cells if cell.power_mw is not None]
        states = {cell.discharging for cell in cells}
        known: bool | None = None if None in states else False
        return _Battery(
            ratio=sum(ratios) / len(ratios) if len(ratios) == len(cells) else None,
            discharging=True if True in states else known,
            power_mw=sum(powers) if len(powers) == len(cells) else None,
        )

    def _memory_bytes(self) -> tuple[int | None, int | None]:
        text = _read_text(self._procfs / "meminfo") or ""
        lines = (line.partition(":") for line in text.splitlines())
        fields = {name: rest.split() for name, _, rest in lines}
        total = _kibibytes(fields.get("MemTotal"))
        available = _kibibytes(fields.get("MemAvailable"))
        if total is None or available is None or available > total:
            return None, total
        return available, total

    def _load_ratio(self, cpu_count: int) -> float | None:
        words = (_read_text(self._procfs / "loadavg") or "").split()
        try:
            load = float(words[0]) / cpu_count
        except (IndexError, ValueError):
            return None
        return load if 0.0 <= load < float("inf") else None


def _processor_zones(directory: Path) -> list[Path]:
    """Return the zones that measure the processor; if none says so, all that may."""
    zones = {
        path: _read_text(path / "type") or ""
        for path in _children(directory, re.compile(r"thermal_zone\d+"))
    }
    named = [
        path
        for path, kind in zones.items()
        if _PROCESSOR.search(kind) and not _NOT_PROCESSOR.search(kind)
    ]
    return named or [path for path, kind in zones.items() if not _NOT_PROCESSOR.search(kind)]


def _frequency_ratio(cpus: list[Path]) -> float | None:
    """Return the mean present frequency of all processors over the mean greatest one."""
    present_khz = 0
    greatest_khz = 0
    for cpu in cpus:
        now = _read_int(cpu / "cpufreq/scaling_cur_freq")
        most = _read_int(cpu / "cpufreq/cpuinfo_max_freq")
        if now is not None and most is not None and 0 < now <= most * MAX_FREQUENCY_RATIO:
            present_khz += now
            greatest_khz += most
    return min(present_khz / greatest_khz, 1.0) if greatest_khz else None


def _read_battery(path: Path) -> _Battery:
    percent = _read_int(path / "capacity")
    status = _read_text(path / "status")
    discharging = {
        "Discharging": True,
        "Charging": False,
        "Not charging": False,
        "Full": False,
    }.get(status or "")
    return _Battery(
        ratio=percent / FULL_PERCENT
        if percent is not None and 0 <= percent <= FULL_PERCENT
        else None,
        discharging=discharging,
        power_mw=_draw_mw(path, discharging=discharging),
    )


def _draw_mw(path: Path, *, discharging: bool | None) -> float | None:
    """Return what is drawn from a battery; while it charges that is nothing."""
    if discharging is None:
        return None
    if not discharging:
        return 0.0
    microwatts: float | None = _read_int(path / "power_now")
    if microwatts is None:
        microamperes = _read_int(path / "current_now")
        microvolts = _read_int(path / "voltage_now")
        if microamperes is None or microvolts is None:
            return None
        microwatts = microamperes * microvolts / 1e6
    # Some drivers give the current out of the battery as a negative number.
    milliwatts = abs(microwatts) / 1000
    return milliwatts if milliwatts <= MAX_POWER_MW else None


def _children(directory: Path, pattern: re.Pattern[str]) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if pattern.fullmatch(path.name))
    except OSError:
        return []


def _read_text(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES).decode("ascii", errors="replace").strip()
    except OSError:
        return None


def _read_int(path: Path) -> int | None:
    text = _read_text(path)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def _kibibytes(words: list[str] | None) -> int | None:
    if not words or not words[0].isdigit():
        return None
    return int(words[0]) * 1024
