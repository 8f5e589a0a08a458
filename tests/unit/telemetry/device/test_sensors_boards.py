"""What each kind of device says about itself, in our units."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.unit.telemetry.device.sensor_board import BOARDS, Board
from wire.health import HealthSnapshot
from wire.profile import ThermalLimits

KIB = 1024
EXPECTED = {
    "rpi4": HealthSnapshot(
        at_s=0,
        temperature_c=61.342,
        headroom=(61.342 - 50.0) / (80.0 - 50.0),
        severe_c=80.0,
        throttled=False,  # it was once; it is not now
        fan_ratio=0.25,
        cpu_frequency_ratio=1_500_000 / 1_800_000,
        cpu_frequency_limit_ratio=1.0,
        cpu_busy_ratio=0.25,
        load_ratio=0.25,
        memory_available_bytes=3401216 * KIB,
        memory_total_bytes=3884360 * KIB,
    ),
    "jetson-orin-nano": HealthSnapshot(
        at_s=0,
        temperature_c=48.812,  # the junction, not the processor's own zone
        headroom=(48.812 - 50.0) / (80.0 - 50.0),
        severe_c=80.0,
        throttled=False,
        fan_ratio=1 / 3,
        cpu_frequency_ratio=(4 * 729_600 + 2 * 1_510_400) / (6 * 1_510_400),
        cpu_frequency_limit_ratio=1.0,
        cpu_busy_ratio=0.25,
        cpu_stall_ratio=0.0052,
        load_ratio=0.15,
        memory_available_bytes=6012344 * KIB,
        memory_total_bytes=7802112 * KIB,
        memory_stall_ratio=0.0,
        memory_full_stall_ratio=0.0,
        gpu_frequency_ratio=306_000_000 / 624_750_000,
        gpu_busy_ratio=0.123,
    ),
    "rk3588": HealthSnapshot(
        at_s=0,
        temperature_c=86.923,
        headroom=(86.923 - 50.0) / (80.0 - 50.0),
        severe_c=80.0,
        throttled=True,
        fan_ratio=1.0,
        cpu_frequency_ratio=(4 * 1_800_000 + 4 * 1_608_000) / (4 * 1_800_000 + 4 * 2_400_000),
        cpu_frequency_limit_ratio=(4 * 1_800_000 + 4 * 1_608_000) / (4 * 1_800_000 + 4 * 2_400_000),
        cpu_busy_ratio=0.25,
        cpu_stall_ratio=0.3861,
        load_ratio=1.02,
        memory_available_bytes=5123344 * KIB,
        memory_total_bytes=8053063 * KIB,
        memory_stall_ratio=0.0125,
        memory_full_stall_ratio=0.004,
        gpu_frequency_ratio=0.3,
        gpu_busy_ratio=0.12,
    ),
    "imx8mm": HealthSnapshot(
        at_s=0,
        temperature_c=66.0,
        headroom=(66.0 - 50.0) / (80.0 - 50.0),
        severe_c=80.0,
        throttled=False,
        cpu_frequency_ratio=1_200_000 / 1_800_000,
        cpu_frequency_limit_ratio=1.0,
        cpu_busy_ratio=0.25,
        load_ratio=0.1,
        memory_available_bytes=1612344 * KIB,
        memory_total_bytes=2014240 * KIB,
    ),
    "visionfive2": HealthSnapshot(
        at_s=0,
        temperature_c=52.315,
        headroom=(52.315 - 50.0) / (80.0 - 50.0),
        severe_c=80.0,
        throttled=False,
        cpu_frequency_ratio=0.5,
        cpu_frequency_limit_ratio=1.0,
        cpu_busy_ratio=0.25,
        load_ratio=0.025,
        memory_available_bytes=3512000 * KIB,
        memory_total_bytes=3978176 * KIB,
    ),
    "x86-minipc": HealthSnapshot(
        at_s=0,
        temperature_c=59.05,  # the hotter of two; not the case, the radio or the firmware's 20
        headroom=(59.05 - 50.0) / (80.0 - 50.0),
        severe_c=80.0,
        throttled=False,  # intel_powerclamp at -1 is idle, and no counter rose
        fan_ratio=1.0,
        cpu_frequency_ratio=0.25,
        cpu_frequency_limit_ratio=1.0,
        cpu_busy_ratio=0.25,
        cpu_stall_ratio=0.0,
        load_ratio=0.05,
        memory_available_bytes=6512000 * KIB,
        memory_total_bytes=7834624 * KIB,
        memory_stall_ratio=0.0,
        memory_full_stall_ratio=0.0,
        gpu_frequency_ratio=0.4,
    ),
    "x86-laptop": HealthSnapshot(
        at_s=0,
        temperature_c=65.0,  # not the chipset, not the radio, not the case
        headroom=0.5,
        severe_c=80.0,
        throttled=False,
        cpu_frequency_ratio=0.4,
        cpu_frequency_limit_ratio=0.8,
        cpu_busy_ratio=0.25,
        cpu_stall_ratio=0.025,
        load_ratio=0.5,
        battery_ratio=0.43,  # not the mouse's
        battery_discharging=True,
        battery_energy_j=21.5 * 3600,
        battery_capacity_j=50.0 * 3600,
        power_mw=8770.0,
        memory_available_bytes=9021980 * KIB,
        memory_total_bytes=16173156 * KIB,
        memory_stall_ratio=0.0075,
        memory_full_stall_ratio=0.0025,
        gpu_busy_ratio=0.37,
    ),
    "phone-sdm845": HealthSnapshot(
        at_s=0,
        temperature_c=43.3,  # not the radio
        headroom=(43.3 - 50.0) / (80.0 - 50.0),
        severe_c=80.0,
        throttled=False,
        cpu_frequency_ratio=(4 * 902_400 + 4 * 1_056_000) / (4 * 1_766_400 + 4 * 2_803_200),
        cpu_frequency_limit_ratio=1.0,
        cpu_busy_ratio=0.25,
        cpu_stall_ratio=0.011,
        load_ratio=0.2,
        battery_ratio=0.8,
        battery_discharging=True,
        battery_energy_j=2.64 * 4.0 * 3600,
        battery_capacity_j=3.3 * 4.0 * 3600,
        power_mw=1400.0,
        memory_available_bytes=3612344 * KIB,
        memory_total_bytes=7741440 * KIB,
        memory_stall_ratio=0.0,
        memory_full_stall_ratio=0.0,
        gpu_frequency_ratio=257 / 710,
    ),
    "container": HealthSnapshot(
        at_s=0,
        cpu_busy_ratio=0.25,
        load_ratio=0.8,
        memory_available_bytes=(512 - 384 + 64) * KIB * KIB,
        memory_total_bytes=512 * KIB * KIB,
    ),
}


def work_a_quarter(board: Board) -> None:
    """Let the device be busy for a quarter of a second on one core."""
    path = board.root / "proc/stat"
    words = path.read_text().split(maxsplit=6)
    words[1] = str(int(words[1]) + 25)
    words[4] = str(int(words[4]) + 75)
    path.write_text(" ".join([words[0] + " ", *words[1:]]))


@pytest.mark.parametrize("name", BOARDS)
def test_a_device(name: str, tmp_path: Path) -> None:
    board = Board(tmp_path, name, ThermalLimits(nominal_c=50.0, severe_c=80.0))
    board.read()
    work_a_quarter(board)
    health = msgspec.structs.asdict(board.read())
    assert health.pop("at_s") == board.clock.now_s()
    expected = msgspec.structs.asdict(EXPECTED[name])
    del expected["at_s"]
    assert health == pytest.approx(expected)


@pytest.mark.parametrize("name", BOARDS)
def test_what_a_device_says_goes_through_json(name: str, tmp_path: Path) -> None:
    health = Board(tmp_path, name).read()
    assert msgspec.json.decode(msgspec.json.encode(health), type=HealthSnapshot) == health


def test_a_snapshot_of_the_first_release_is_read() -> None:
    old = b'{"at_s":1.0,"temperature_c":61.3,"headroom":0.4,"load_ratio":0.25}'
    health = msgspec.json.decode(old, type=HealthSnapshot)
    assert (health.headroom, health.throttled) == (0.4, None)


@pytest.mark.parametrize(
    ("name", "severe_c"),
    [
        ("imx8mm", 85.0),
        ("rk3588", 85.0),  # the passive trip point that the kernel holds, not the first
        ("phone-sdm845", 95.0),
        ("visionfive2", 85.0),
        ("x86-laptop", 85.0),  # placeholders
        ("rpi4", 85.0),  # nothing but where it shuts down
    ],
)
def test_without_limits_in_the_profile_the_kernel_says_what_is_severe(
    name: str, severe_c: float, tmp_path: Path
) -> None:
    assert Board(tmp_path, name).read().severe_c == severe_c


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("name", BOARDS)
def test_few_files_stay_open_and_none_after_the_sensors_are_gone(name: str, tmp_path: Path) -> None:
    before = open_files()
    board = Board(tmp_path, name)
    for _ in range(5):
        board.read(after_s=60.0)
    assert 0 < open_files() - before < 50
    del board
    assert open_files() == before


def test_every_recorded_device_is_tested() -> None:
    assert set(EXPECTED) == set(BOARDS)
