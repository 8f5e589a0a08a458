"""Reads the processor's temperature and how close it is to throttling.

Rules:
- If a zone once gave trusted readings and gives none now, the temperature is unknown, because the
  other zones may be the cool ones. The same holds if another sensor took the zone's place.
- Headroom is 1.0 at the severe trip point. That is the lower of the profile's `severe_c` and the
  zone's own passive trip point. If the profile has the default limits, only the zone's own counts.
  A hot or critical trip point, where the kernel shuts down, is the upper limit.
- If a zone has several passive trip points, the last one counts: the kernel holds the zone there.
- Each zone has its own scale; the device's headroom is that of the zone nearest to its limit.
- A trip point that is not within `TRIPS_C`, or not above nominal, does not count: firmware puts
  such values into trip points that it does not use.

Source:
    Linux: Documentation/ABI/testing/sysfs-class-thermal (millidegrees Celsius);
    Documentation/driver-api/thermal/power_allocator.rst: the first passive trip point switches
    the governor on, the last is the temperature that it aims at.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import msgspec

from telemetry.device.sensors.files import KernelFiles, children, number_once, text_once
from telemetry.device.sensors.thermometer import Thermometer
from wire.profile import ThermalLimits

MAX_TRIPS: Final = 16
TRIPS_C: Final = (60.0, 125.0)
LOAD_MEAN_S: Final = 60.0
_ZONE: Final = re.compile(r"thermal_zone\d+")
_PROCESSOR: Final = re.compile(
    r"cpu|soc|pkg|package|core|cluster|big|little|^tj\b", re.IGNORECASE | re.ASCII
)
_NOT_PROCESSOR: Final = re.compile(
    r"batt|wifi|wlan|nvme|pch|charg|int3400|skin|modem|pmic", re.IGNORECASE | re.ASCII
)


class HeatReading(NamedTuple):
    """The combined reading of the processor's zones; None where a value is unknown."""

    temperature_c: float | None = None
    headroom: float | None = None
    severe_c: float | None = None


class ZoneReading(NamedTuple):
    """The reading of one zone that is trusted."""

    kind: str
    """What the driver calls the zone, such as `cpu-thermal`."""

    temperature_c: float
    headroom: float


class _Key(NamedTuple):
    path: str
    kind: str


class _Zone(msgspec.Struct):
    severe_c: float
    thermometer: Thermometer = msgspec.field(default_factory=Thermometer)


class ThermalZones:
    """The thermal zones of a device.

    Args:
        files: Reads the kernel's files.
        directory: Where the kernel lists its zones.
        limits: The profile's limits.
    """

    def __init__(self, files: KernelFiles, directory: str, limits: ThermalLimits) -> None:
        self._files = files
        self._directory = directory
        self._limits = limits
        self.zones: list[ZoneReading] = []
        """What each zone said at the last reading."""

        self._kinds: dict[str, str] = {}
        self._zones: dict[_Key, _Zone] = {}
        self._load: float | None = None
        self._read_at_s = 0.0

    def scan(self) -> None:
        """Find the zones and their trip points."""
        self._kinds = {path: text_once(f"{path}/type") for path in children(self._directory, _ZONE)}
        present = [_Key(path, self._kinds[path]) for path in _processor_zones(self._kinds)]
        known = {
            key: zone
            for key, zone in self._zones.items()
            if zone.thermometer.counts and self._kinds.get(key.path) != key.kind
        }
        for key in present:
            zone = known[key] = self._zones.get(key, _Zone(self._limits.severe_c))
            zone.severe_c = severe_c(_trips_c(key.path), self._limits)
        self._zones = known

    def read(self, now_s: float, busy_ratio: float | None) -> HeatReading:
        """Read all zones.

        Args:
            now_s: Monotonic.
            busy_ratio: Share of the processor that has been busy since the last reading.

        Returns:
            The temperature and the headroom.
        """
        load = self._mean_load(now_s, busy_ratio)
        temperature_c: float | None = None
        worst = HeatReading()
        lost = False
        self.zones = []
        for key, zone in self._zones.items():
            thermometer = zone.thermometer
            celsius = thermometer.judge(self._celsius(key), now_s, load)
            if celsius is None:
                lost = lost or thermometer.counts
                continue
            headroom = self._headroom(celsius, zone.severe_c)
            self.zones.append(ZoneReading(key.kind, celsius, headroom))
            temperature_c = celsius if temperature_c is None else max(temperature_c, celsius)
            if worst.headroom is None or headroom > worst.headroom:
                worst = HeatReading(headroom=headroom, severe_c=zone.severe_c)
        return HeatReading() if lost else worst._replace(temperature_c=temperature_c)

    def _celsius(self, key: _Key) -> float | None:
        if self._kinds.get(key.path, key.kind) != key.kind:
            return None
        millidegrees = self._files.number(f"{key.path}/temp")
        return None if millidegrees is None else millidegrees / 1000

    def _headroom(self, celsius: float, severe_c: float) -> float:
        nominal_c = self._limits.nominal_c
        return (celsius - nominal_c) / (severe_c - nominal_c)

    def _mean_load(self, now_s: float, busy_ratio: float | None) -> float | None:
        """Return the load of the last minute or so: a short load does not change a temperature."""
        weight = min(max(now_s - self._read_at_s, 0.0) / LOAD_MEAN_S, 1.0)
        self._read_at_s = now_s
        if busy_ratio is not None:
            before = busy_ratio if self._load is None else self._load
            self._load = before + (busy_ratio - before) * weight
        return self._load


def severe_c(trips_c: dict[str, list[float]], limits: ThermalLimits) -> float:
    """Return the temperature at which a zone's headroom is 1.0.

    Args:
        trips_c: The zone's trip points by their type.
        limits: The profile's limits.

    Returns:
        The severe trip point, above `limits.nominal_c`.
    """
    least_c, greatest_c = max(TRIPS_C[0], limits.nominal_c), TRIPS_C[1]
    possible = {
        kind: [c for c in found if least_c < c <= greatest_c] for kind, found in trips_c.items()
    }
    passive = possible.get("passive", [])
    candidates = [*possible.get("hot", []), *possible.get("critical", []), *passive[-1:]]
    if not passive or limits != ThermalLimits():
        candidates.append(limits.severe_c)
    return min(candidates)


def _trips_c(zone: str) -> dict[str, list[float]]:
    """Return a zone's trip points by their type, in rising order."""
    found: dict[str, list[float]] = {}
    for number in range(MAX_TRIPS):
        kind = text_once(f"{zone}/trip_point_{number}_type")
        millidegrees = number_once(f"{zone}/trip_point_{number}_temp")
        if not kind:
            break
        if millidegrees is not None:
            found.setdefault(kind, []).append(millidegrees / 1000)
    return {kind: sorted(temperatures) for kind, temperatures in found.items()}


def _processor_zones(kinds: dict[str, str]) -> list[str]:
    """Return the zones that name the processor; if none does, all that may measure it."""
    possible = {path: kind for path, kind in kinds.items() if not _NOT_PROCESSOR.search(kind)}
    named = [path for path, kind in possible.items() if _PROCESSOR.search(kind)]
    return named or list(possible)
