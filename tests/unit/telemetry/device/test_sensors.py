"""Readings come out in our units; what is lost or absurd is unknown, never cool."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from telemetry.device.sensors import Sensors
from telemetry.device.sensors.reader import system_utc_offset_s
from tests.unit.telemetry.device.manual_clock import ManualClock
from tests.unit.telemetry.device.sensor_board import Board
from wire.health import HealthSnapshot
from wire.profile import DeviceProfile

ZONE = "sys/class/thermal/thermal_zone0/temp"
BATTERY = "sys/class/power_supply/BAT0"


@pytest.fixture
def board(tmp_path: Path) -> Callable[[str], Board]:
    return lambda name: Board(tmp_path, name)


def test_a_device_without_sensors_knows_nothing(board: Callable[[str], Board]) -> None:
    pi = board("rpi4")
    for name in ("sys", "proc"):
        pi.remove(name)
    assert pi.read() == HealthSnapshot(at_s=pi.clock.now_s())


@pytest.mark.parametrize("text", ["-30001", "150001", "", "hot", "1" * 9000, "\xff"])
def test_an_absurd_temperature_is_unknown(board: Callable[[str], Board], text: str) -> None:
    pi = board("rpi4")
    assert pi.read().temperature_c is not None
    pi.write(ZONE, text)
    health = pi.read()
    assert health.temperature_c is health.headroom is None


@pytest.mark.parametrize("text", ["-30000", "150000"])
def test_the_limits_themselves_are_possible(board: Callable[[str], Board], text: str) -> None:
    pi = board("rpi4")
    pi.write(ZONE, text)
    assert pi.read().temperature_c == int(text) / 1000


def test_a_jump_is_unknown_until_it_lasts(board: Callable[[str], Board]) -> None:
    pi = board("rpi4")
    pi.write(ZONE, "30000")
    assert pi.read().temperature_c == 30.0
    pi.write(ZONE, "95000")
    assert [pi.read().temperature_c for _ in range(4)] == [None] * 4
    assert pi.read().temperature_c == 95.0, "five seconds are enough for a real fire"


def test_a_zone_that_is_lost_is_not_replaced_by_a_cooler_one(board: Callable[[str], Board]) -> None:
    pi = board("rpi4")
    pi.write("sys/class/thermal/thermal_zone1/type", "cpu-thermal1")
    pi.write("sys/class/thermal/thermal_zone1/temp", "40000")
    assert pi.read().temperature_c == 61.342
    pi.remove("sys/class/thermal/thermal_zone0")
    assert pi.read().temperature_c is None
    pi.write("sys/class/thermal/thermal_zone0/type", "cpu-thermal")
    pi.write(ZONE, "62000")
    assert pi.read().temperature_c == 62.0


def test_a_zone_that_never_worked_is_ignored(board: Callable[[str], Board]) -> None:
    pi = board("rpi4")
    pi.write("sys/class/thermal/thermal_zone1/type", "gpu-cluster")
    pi.write("sys/class/thermal/thermal_zone1/temp", "-274000")
    assert pi.read().temperature_c == 61.342


def test_without_a_named_processor_zone_the_others_count(board: Callable[[str], Board]) -> None:
    laptop = board("x86-laptop")
    laptop.remove("sys/class/thermal/thermal_zone4")
    assert laptop.read().temperature_c == 27.8


@pytest.mark.parametrize(
    ("capacity", "status", "ratio", "discharging"),
    [
        ("100", "Full", 1.0, False),
        ("50", "Charging", 0.5, False),
        ("50", "Not charging", 0.5, False),
        ("50", "Unknown", 0.5, None),
        ("101", "Discharging", None, True),
        ("-1", "Discharging", None, True),
        ("", "", None, None),
    ],
)
def test_a_battery(
    board: Callable[[str], Board],
    capacity: str,
    status: str,
    ratio: float | None,
    discharging: bool | None,
) -> None:
    laptop = board("x86-laptop")
    laptop.write(f"{BATTERY}/capacity", capacity)
    laptop.write(f"{BATTERY}/status", status)
    health = laptop.read()
    assert (health.battery_ratio, health.battery_discharging) == (ratio, discharging)


def test_power_from_current_and_voltage(board: Callable[[str], Board]) -> None:
    laptop = board("x86-laptop")
    laptop.remove(f"{BATTERY}/power_now")
    laptop.write(f"{BATTERY}/current_now", "-500000")
    assert laptop.read().power_mw == pytest.approx(0.5 * 11.4 * 1000)
    laptop.write(f"{BATTERY}/current_now", "500000000000")
    assert laptop.read().power_mw is None
    laptop.remove(f"{BATTERY}/voltage_now")
    assert laptop.read().power_mw is None
    laptop.write(f"{BATTERY}/status", "Charging")
    assert laptop.read().power_mw == 0.0


def test_two_batteries_are_known_only_together(board: Callable[[str], Board]) -> None:
    laptop = board("x86-laptop")
    second = "sys/class/power_supply/BAT1"
    for name, text in {"type": "Battery", "capacity": "57", "status": "Charging"}.items():
        laptop.write(f"{second}/{name}", text)
    health = laptop.read()
    assert (health.battery_ratio, health.battery_discharging) == (0.5, True)
    laptop.remove(f"{second}/capacity")
    assert laptop.read().battery_ratio is None


@pytest.mark.parametrize(
    ("meminfo", "available", "total"),
    [
        ("MemTotal: 100 kB\nMemAvailable: 40 kB", 40960, 102400),
        ("MemTotal: 100 kB\nMemAvailable: 101 kB", None, 102400),
        ("MemTotal: 100 kB\nMemFree: 40 kB", None, 102400),
        ("MemTotal: x kB\nMemAvailable: 40 kB", None, None),
        ("MemTotal:\nMemAvailable", None, None),
    ],
)
def test_memory(
    board: Callable[[str], Board], meminfo: str, available: int | None, total: int | None
) -> None:
    pi = board("rpi4")
    pi.write("proc/meminfo", meminfo)
    health = pi.read()
    assert (health.memory_available_bytes, health.memory_total_bytes) == (available, total)


@pytest.mark.parametrize("text", ["", "x", "nan", "inf", "-1.0"])
def test_a_load_that_cannot_be_is_unknown(board: Callable[[str], Board], text: str) -> None:
    pi = board("rpi4")
    pi.write("proc/loadavg", text)
    assert pi.read().load_ratio is None


def test_a_frequency_that_cannot_be_is_left_out(board: Callable[[str], Board]) -> None:
    pi = board("rpi4")
    for cpu, khz in enumerate(("0", "9000000", "fast")):
        pi.write(f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq", khz)
    assert pi.read().cpu_frequency_ratio == pytest.approx(1500 / 1800)
    pi.remove("sys/devices/system/cpu/cpu3/cpufreq")
    assert pi.read().cpu_frequency_ratio is None


def test_a_boost_is_full_speed(board: Callable[[str], Board]) -> None:
    pi = board("rpi4")
    for cpu in range(4):
        pi.write(f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq", "1900000")
    assert pi.read().cpu_frequency_ratio == 1.0


@pytest.mark.parametrize(("zone", "offset_s"), [("UTC0", 0.0), ("IST-5:30", 19_800.0)])
def test_local_time_is_that_of_the_device(
    monkeypatch: pytest.MonkeyPatch, zone: str, offset_s: float
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert system_utc_offset_s(1e9) == offset_s
        assert system_utc_offset_s(1e300) == 0.0
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_reading_has_the_local_time() -> None:
    board = DeviceProfile(name="here", architecture="x86_64", memory_bytes=1, storage_bytes=1)
    clock = ManualClock()
    health = Sensors(board, clock, utc_offset_s=lambda _: -3600.0).read()
    assert health.local_s == (clock.now_s() - 3600.0) % 86_400.0


def test_this_very_machine_can_be_read() -> None:
    board = DeviceProfile(name="here", architecture="x86_64", memory_bytes=1, storage_bytes=1)
    health = Sensors(board, ManualClock()).read()
    assert health.memory_total_bytes is None or health.memory_total_bytes > 0
