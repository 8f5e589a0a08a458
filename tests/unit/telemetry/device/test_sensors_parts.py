"""Each kind of sensor: what it can say, and what happens when it is lost, odd or back again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from telemetry.device.sensors.reader import RESCAN_S
from telemetry.device.sensors.thermometer import FROZEN_S
from tests.unit.telemetry.device.sensor_board import Board
from wire.profile import ThermalLimits

Boards = Callable[[str], Board]
COOLING = "sys/class/thermal/cooling_device1/cur_state"
THROTTLE = "sys/devices/system/cpu/cpu{}/thermal_throttle/{}_throttle_count"
FIRMWARE = "sys/bus/platform/devices/soc:firmware/get_throttled"
BATTERY = "sys/class/power_supply/BAT0"
GROUP = "sys/fs/cgroup"


@pytest.fixture
def board(tmp_path: Path) -> Boards:
    return lambda name: Board(tmp_path, name)


@pytest.mark.parametrize(
    ("state", "throttled"),
    [("0", False), ("1", True), ("8", True), ("9", None), ("-1", None), ("", None), ("on", None)],
)
def test_a_cooling_device_of_the_processor(
    board: Boards, state: str, throttled: bool | None
) -> None:
    rock = board("rk3588")
    rock.write("sys/class/thermal/cooling_device2/cur_state", "0")
    rock.write(COOLING, state)
    assert rock.read().throttled is throttled


def test_a_processor_that_began_to_throttle_since_the_last_reading(board: Boards) -> None:
    laptop = board("x86-laptop")
    assert laptop.read().throttled is None, "nothing to compare with"
    assert laptop.read().throttled is False
    laptop.write(THROTTLE.format(5, "core"), "12")
    assert [laptop.read().throttled for _ in range(2)] == [True, False]
    laptop.write(THROTTLE.format(0, "package"), "25")
    assert laptop.read().throttled is True
    laptop.write(THROTTLE.format(5, "core"), "0")
    assert laptop.read().throttled is None, "a counter that goes back counts nothing"
    assert laptop.read().throttled is False
    laptop.write(THROTTLE.format(5, "core"), "many")
    assert laptop.read().throttled is None


@pytest.mark.parametrize(
    ("flags", "throttled"),
    [
        ("0", False),
        ("f0001", False),  # a low voltage alone, and what was once
        ("2", True),
        ("50004", True),
        ("0x8", True),
        ("-2", None),
        ("throttled", None),
        ("123456789", None),
    ],
)
def test_the_firmware_of_a_raspberry_pi(board: Boards, flags: str, throttled: bool | None) -> None:
    pi = board("rpi4")
    pi.write(FIRMWARE, flags)
    assert pi.read().throttled is throttled


def test_a_fan_that_is_lost_is_not_at_rest(board: Boards) -> None:
    pi = board("rpi4")
    assert pi.read().fan_ratio == 0.25
    pi.write("sys/class/thermal/cooling_device0/cur_state", "5")
    assert pi.read().fan_ratio is None
    pi.remove("sys/class/thermal/cooling_device0")
    assert pi.read().fan_ratio is None


def test_cores_that_share_a_frequency_count_by_their_number(board: Boards) -> None:
    rock = board("rk3588")
    for policy, khz in {0: 1_800_000, 4: 1_200_000, 6: 1_200_000}.items():
        rock.write(f"sys/devices/system/cpu/cpufreq/policy{policy}/scaling_max_freq", str(khz))
    expected = (4 * 1.8 + 4 * 1.2) / (4 * 1.8 + 4 * 2.4)
    assert rock.read().cpu_frequency_limit_ratio == pytest.approx(expected)


@pytest.mark.parametrize(
    ("before", "after", "busy"),
    [
        ("cpu  100 0 0 100 0 0 0 0 0 0", "cpu  150 0 0 150 0 0 0 0 0 0", 0.5),
        ("cpu  100 0 0 100 0 0 0 0 0 0", "cpu  100 0 0 110 40 0 0 0 0 0", 0.0),
        ("cpu  100 0 0 100 0 0 0 0 0 0", "cpu  100 0 0 100 0 0 0 50 0 0", 1.0),
        ("cpu  100 0 0 100 0 0 0 0 0 0", "cpu  100 0 0 100 0 0 0 0 0 0", None),
        ("cpu  100 0 0 100 0 0 0 0 0 0", "cpu  90 0 0 110 0 0 0 0 0 0", None),
        ("cpu  100 0 0 100 0 0 0 0 0 0", "cpu  190 0 0 90 0 0 0 0 0 0", None),
        ("cpu  100 0 0 100 0 0 0 0 0 0", "cpu  100 0 0", None),
        ("cpu0 100 0 0 100 0 0 0 0 0 0", "cpu0 150 0 0 150 0 0 0 0 0 0", None),
    ],
)
def test_how_busy_the_cores_were(
    board: Boards, before: str, after: str, busy: float | None
) -> None:
    pi = board("rpi4")
    pi.write("proc/stat", before)
    assert pi.read().cpu_busy_ratio is None
    pi.write("proc/stat", after)
    assert pi.read().cpu_busy_ratio == busy


@pytest.mark.parametrize(
    ("line", "ratio"),
    [
        ("some avg10=100.00 avg60=0.00 avg300=0.00 total=0", 1.0),
        ("some avg10=100.01 avg60=0.00 avg300=0.00 total=0", None),
        ("some avg10=-1.00 avg60=0.00 avg300=0.00 total=0", None),
        ("some avg10=nan avg60=0.00 avg300=0.00 total=0", None),
        ("full avg10=1.00 avg60=0.00 avg300=0.00 total=0", None),
        ("", None),
    ],
)
def test_waiting_for_a_core(board: Boards, line: str, ratio: float | None) -> None:
    pi = board("rpi4")
    pi.write("proc/pressure/cpu", line)
    assert pi.read().cpu_stall_ratio == ratio


def test_the_narrowest_of_the_limits_above_this_process_counts(board: Boards) -> None:
    pi = board("rpi4")
    pi.write("proc/self/cgroup", "9:memory:/old\n0::/system.slice/agent.service")
    for group, limit, used in (
        ("system.slice", 1_000_000_000, 300_000_000),
        ("system.slice/agent.service", 900_000_000, 500_000_000),
    ):
        pi.write(f"{GROUP}/{group}/memory.max", str(limit))
        pi.write(f"{GROUP}/{group}/memory.high", "max")
        pi.write(f"{GROUP}/{group}/memory.current", str(used))
    health = pi.read()
    assert (health.memory_available_bytes, health.memory_total_bytes) == (400_000_000, 900_000_000)
    pi.write(f"{GROUP}/system.slice/agent.service/memory.current", "950000000")
    assert pi.read().memory_available_bytes == 0
    pi.write(f"{GROUP}/system.slice/agent.service/memory.current", "some")
    assert pi.read().memory_available_bytes is None, "not what the others leave"


@pytest.mark.parametrize("group", ["/../other", "relative", "", "/" + "a/" * 40])
def test_a_control_group_elsewhere_limits_nothing_here(board: Boards, group: str) -> None:
    box = board("container")
    box.write("proc/self/cgroup", f"0::{group}")
    assert box.read().memory_total_bytes == 16173156 * 1024


def test_a_limit_that_is_none(board: Boards) -> None:
    box = board("container")
    box.write(f"{GROUP}/memory.max", "max")
    assert box.read().memory_available_bytes == 12021980 * 1024


def test_a_gauge_that_talks_nonsense(board: Boards) -> None:
    phone = board("phone-sdm845")
    gauge = "sys/class/power_supply/bq27411-0"
    for name, text in {"capacity": "20160", "voltage_now": "65410000000", "temp": "-2731"}.items():
        phone.write(f"{gauge}/{name}", text)
    health = phone.read()
    assert health.battery_ratio is health.battery_energy_j is health.power_mw is None


def test_a_charge_over_full(board: Boards) -> None:
    laptop = board("x86-laptop")
    laptop.write(f"{BATTERY}/energy_now", "54000000")
    assert laptop.read().battery_energy_j == 50.0 * 3600
    laptop.write(f"{BATTERY}/energy_now", "56000000")
    assert laptop.read().battery_energy_j is None
    laptop.write(f"{BATTERY}/energy_now", "-1")
    assert laptop.read().battery_energy_j is None
    laptop.write(f"{BATTERY}/energy_full", "0")
    assert laptop.read().battery_capacity_j is None


def test_a_battery_that_is_pulled_out_is_unknown_and_one_put_in_is_found(board: Boards) -> None:
    laptop = board("x86-laptop")
    assert laptop.read().battery_ratio == 0.43
    laptop.remove(BATTERY)
    assert laptop.read().battery_ratio is None
    for name, text in {"type": "Battery", "capacity": "90", "status": "Charging"}.items():
        laptop.write(f"sys/class/power_supply/BAT7/{name}", text)
    health = laptop.read(after_s=RESCAN_S)
    assert (health.battery_ratio, health.battery_discharging) == (0.9, False)


def test_an_empty_bay_is_no_battery(board: Boards) -> None:
    laptop = board("x86-laptop")
    laptop.write("sys/class/power_supply/BAT1/type", "Battery")
    laptop.write("sys/class/power_supply/BAT1/present", "0")
    assert laptop.read().battery_ratio == 0.43
    laptop.write("sys/class/power_supply/BAT1/present", "1")
    assert laptop.read().battery_ratio is None, "there is one now, and it says nothing"


def test_graphics_that_are_lost_are_not_idle(board: Boards) -> None:
    jetson = board("jetson-orin-nano")
    assert jetson.read().gpu_busy_ratio == 0.123
    jetson.write("sys/class/devfreq/17000000.gpu/device/load", "1001")
    jetson.write("sys/class/devfreq/17000000.gpu/cur_freq", "none")
    health = jetson.read()
    assert health.gpu_busy_ratio is health.gpu_frequency_ratio is None


def test_the_busier_of_two_graphics_units_counts(board: Boards) -> None:
    laptop = board("x86-laptop")
    laptop.write("sys/class/drm/card0/device/gpu_busy_percent", "99")
    laptop.write("sys/class/drm/card0/device/tile0/gt0/freq0/act_freq", "600")
    laptop.write("sys/class/drm/card0/device/tile0/gt0/freq0/rp0_freq", "1200")
    health = laptop.read()
    assert (health.gpu_busy_ratio, health.gpu_frequency_ratio) == (0.99, 0.5)
    laptop.write("sys/class/drm/card0/device/gpu_busy_percent", "101")
    assert laptop.read().gpu_busy_ratio is None, "the other may be the idle one"


def test_a_number_that_another_sensor_took_over_is_not_the_processors(board: Boards) -> None:
    pi = board("rpi4")
    assert pi.read().temperature_c == 61.342
    pi.write("sys/class/thermal/thermal_zone0/type", "iwlwifi_1")
    assert pi.read(after_s=RESCAN_S).temperature_c is None
    pi.write("sys/class/thermal/thermal_zone0/type", "cpu-thermal")
    assert pi.read(after_s=RESCAN_S).temperature_c == 61.342


def test_what_stood_in_for_a_lost_sensor_leaves_when_it_is_back(board: Boards) -> None:
    laptop = board("x86-laptop")
    zone = laptop.root / "sys/class/thermal/thermal_zone4"
    assert laptop.read().temperature_c == 65.0
    zone.rename(laptop.root / "away")
    assert [laptop.read(after_s=RESCAN_S).temperature_c for _ in range(2)] == [None, None]
    (laptop.root / "away").rename(zone)
    assert laptop.read(after_s=RESCAN_S).temperature_c == 65.0
    laptop.remove("sys/class/thermal/thermal_zone0")
    assert laptop.read().temperature_c == 65.0


def test_each_zone_has_its_own_scale(tmp_path: Path) -> None:
    board = Board(tmp_path, "imx8mm", ThermalLimits(nominal_c=50.0, severe_c=100.0))
    zone = "sys/class/thermal/thermal_zone1"
    board.write(f"{zone}/type", "soc-thermal")
    board.write(f"{zone}/temp", "70000")
    health = board.read()
    assert (health.temperature_c, health.severe_c) == (70.0, 85.0)
    assert health.headroom == (66.0 - 50.0) / (85.0 - 50.0), "the cooler one is nearer to its limit"


def test_a_zone_that_hangs_while_the_load_changes_is_lost(board: Boards) -> None:
    pi = board("rpi4")
    pi.write("sys/class/thermal/thermal_zone0/temp", "61000")
    pi.read()
    pi.write("sys/class/thermal/thermal_zone0/temp", "60000")
    user = idle = 0
    temperatures = []
    for second in range(int(FROZEN_S) + 120):
        user, idle = (user + 1, idle + 99) if second < FROZEN_S / 2 else (user + 99, idle + 1)
        pi.write("proc/stat", f"cpu  {user} 0 0 {idle} 0 0 0 0 0 0")
        temperatures.append(pi.read().temperature_c)
    assert temperatures[: int(FROZEN_S)] == [60.0] * int(FROZEN_S)
    assert temperatures[-1] is None
    pi.write("sys/class/thermal/thermal_zone0/temp", "66000")
    assert pi.read().temperature_c == 66.0


def test_a_clock_that_goes_back_costs_no_reading(board: Boards) -> None:
    laptop = board("x86-laptop")
    first = laptop.read()
    laptop.clock.steady_s -= 5000.0
    laptop.clock.wall_s -= 5000.0
    again = laptop.read()
    assert again.at_s < first.at_s
    assert (again.temperature_c, again.battery_ratio) == (65.0, 0.43)
    laptop.write("sys/class/thermal/thermal_zone4/temp", "-5000")
    assert laptop.read().temperature_c is None, "a jump is a jump"
