"""Whatever a sensor says that cannot be is unknown: never cool, full, free or idle."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.unit.telemetry.device.sensor_board import Board, overwrite

NONSENSE: Final = {
    "nan": b"nan\n",
    "infinite": b"inf\n",
    "minus-infinite": b"-inf\n",
    "empty": b"",
    "blank": b"\n",
    "text": b"warm\n",
    "zeros": b"\0" * 16,
    "two-numbers": b"61000\n61000\n",
    "fraction": b"61.5\n",
    "exponent": b"1e3\n",
    "hexadecimal": b"0x61\n",
    "signs": b"--61000\n",
    "digits-without-end": b"9" * 5000,
    "not-ascii": "\uff16\uff11\n".encode(),
    "nothing": None,
}
"""Contents of a file that should hold one whole number; None for no file."""


HEXADECIMAL: Final = ("exponent", "hexadecimal")


class Gauge(NamedTuple):
    """A file of a device, and the readings that come from it alone."""

    board: str
    path: str
    readings: tuple[str, ...]
    impossible: tuple[str, ...] = ()
    """Whole numbers that it cannot hold."""


SUPPLY: Final = "sys/class/power_supply/BAT0"
CPU: Final = "sys/devices/system/cpu"
GAUGES: Final = {
    "temperature": Gauge(
        "rpi4",
        "sys/class/thermal/thermal_zone0/temp",
        ("temperature_c", "headroom", "severe_c"),
        ("1000000", "-300000", "-274000", "0", "150001", "-30001", "61"),
    ),
    "one-of-several-zones": Gauge(
        "jetson-orin-nano",
        "sys/class/thermal/thermal_zone8/temp",
        ("temperature_c", "headroom", "severe_c"),
        ("1000000", "-300000", "0"),
    ),
    "fan": Gauge(
        "rpi4", "sys/class/thermal/cooling_device0/cur_state", ("fan_ratio",), ("-1", "5", "900")
    ),
    "throttling": Gauge(
        "jetson-orin-nano",
        "sys/class/thermal/cooling_device4/cur_state",
        ("throttled",),
        ("-1", "12"),
    ),
    "firmware": Gauge(
        "rpi4", "sys/bus/platform/devices/soc:firmware/get_throttled", ("throttled",), ("-1",)
    ),
    "charge": Gauge(
        "x86-laptop", f"{SUPPLY}/capacity", ("battery_ratio",), ("150", "101", "-1", "-43")
    ),
    "energy": Gauge(
        "x86-laptop", f"{SUPPLY}/energy_now", ("battery_energy_j",), ("-1", "90000000", str(10**18))
    ),
    "capacity": Gauge(
        "x86-laptop", f"{SUPPLY}/energy_full", ("battery_capacity_j",), ("-1", "0", str(10**18))
    ),
    "power": Gauge("x86-laptop", f"{SUPPLY}/power_now", ("power_mw",), (str(10**15),)),
    "current": Gauge("phone-sdm845", "sys/class/power_supply/bq27411-0/current_now", ("power_mw",)),
    "voltage": Gauge(
        "phone-sdm845",
        "sys/class/power_supply/bq27411-0/voltage_now",
        ("power_mw", "battery_energy_j", "battery_capacity_j"),
        ("0", "-4000000", str(10**12)),
    ),
    "charging-or-not": Gauge(
        "x86-laptop", f"{SUPPLY}/status", ("battery_discharging", "power_mw"), ("1",)
    ),
    "graphics-frequency": Gauge(
        "jetson-orin-nano",
        "sys/class/devfreq/17000000.gpu/cur_freq",
        ("gpu_frequency_ratio",),
        ("-1", "6247500000"),
    ),
    "graphics-load": Gauge(
        "x86-laptop",
        "sys/class/drm/card1/device/gpu_busy_percent",
        ("gpu_busy_ratio",),
        ("-1", "101"),
    ),
}
CASES: Final = [
    pytest.param(gauge, content, id=f"{name}-{label}")
    for name, gauge in GAUGES.items()
    for label, content in (
        # The firmware's flags are hexadecimal.
        *((k, v) for k, v in NONSENSE.items() if name != "firmware" or k not in HEXADECIMAL),
        *((text, f"{text}\n".encode()) for text in gauge.impossible),
    )
]


def put(board: Board, path: str, content: bytes | None) -> None:
    if content is None:
        board.remove(path)
    else:
        overwrite(board.root / path, content)


def values(board: Board, names: tuple[str, ...]) -> dict[str, object]:
    health = board.read()
    return {name: getattr(health, name) for name in names}


@pytest.mark.parametrize(("gauge", "content"), CASES)
def test_a_reading_that_cannot_be_is_unknown_until_the_sensor_is_well(
    gauge: Gauge, content: bytes | None, tmp_path: Path
) -> None:
    board = Board(tmp_path, gauge.board)
    well = (board.root / gauge.path).read_bytes()
    known = values(board, gauge.readings)
    assert None not in known.values()

    put(board, gauge.path, content)

    assert values(board, gauge.readings) == dict.fromkeys(gauge.readings)

    put(board, gauge.path, well)

    assert values(board, gauge.readings) == known


@pytest.mark.parametrize("content", NONSENSE.values(), ids=NONSENSE)
def test_a_sensor_that_is_ill_when_the_agent_starts_is_unknown(
    content: bytes | None, tmp_path: Path
) -> None:
    for number, name in enumerate(("temperature", "charge", "power", "fan")):
        gauge = GAUGES[name]
        board = Board(tmp_path / str(number), gauge.board)
        put(board, gauge.path, content)
        board.sensors = board.restarted()

        assert values(board, gauge.readings) == dict.fromkeys(gauge.readings), name


@pytest.mark.parametrize(
    "content",
    [*NONSENSE.values(), b"0\n", b"-1500000\n", b"18000000\n"],
    ids=[*NONSENSE, "zero", "negative", "ten-times-the-greatest"],
)
def test_without_a_core_whose_frequency_can_be_the_frequency_is_unknown(
    content: bytes | None, tmp_path: Path
) -> None:
    pi = Board(tmp_path, "rpi4")
    assert pi.read().cpu_frequency_ratio == pytest.approx(1.5 / 1.8)

    for core in range(4):
        put(pi, f"{CPU}/cpu{core}/cpufreq/scaling_cur_freq", content)

    assert pi.read().cpu_frequency_ratio is None


@pytest.mark.parametrize("greatest", [b"0\n", b"-1\n", b"nan\n", b"", None])
def test_a_greatest_frequency_that_cannot_be_divides_nothing(
    greatest: bytes | None, tmp_path: Path
) -> None:
    pi = Board(tmp_path, "rpi4")
    for core in range(4):
        put(pi, f"{CPU}/cpu{core}/cpufreq/cpuinfo_max_freq", greatest)
    pi.sensors = pi.restarted()

    assert pi.read().cpu_frequency_ratio is None


@pytest.mark.parametrize("most", [b"0\n", b"-4\n", b"nan\n", b"", None])
def test_a_fan_without_a_greatest_state_divides_nothing(most: bytes | None, tmp_path: Path) -> None:
    pi = Board(tmp_path, "rpi4")
    put(pi, "sys/class/thermal/cooling_device0/max_state", most)
    pi.sensors = pi.restarted()

    assert pi.read().fan_ratio is None


@pytest.mark.parametrize(
    "text",
    [
        "MemTotal: 0 kB\nMemAvailable: 0 kB",
        "MemTotal: 0 kB\nMemAvailable: 9021980 kB",
        "MemTotal: -1 kB\nMemAvailable: 9021980 kB",
        "MemTotal: nan kB\nMemAvailable: nan kB",
        "MemTotal: 16173156 kB\nMemAvailable: -1 kB",
        "MemTotal: 16173156 kB\nMemAvailable: 16173157 kB",
        "MemTotal: 16173156 kB\nMemAvailable: 99999999999999999999 kB",
        "MemTotal: 16173156 MB\nMemAvailable: 9021980 MB",
        "MemAvailable: 9021980 kB",
        "MemTotal: 16173156 kB",
        "",
        "\0\0\0",
    ],
)
def test_memory_that_cannot_be_is_not_free(text: str, tmp_path: Path) -> None:
    laptop = Board(tmp_path, "x86-laptop")
    assert laptop.read().memory_available_bytes == 9_021_980 * 1024

    laptop.write("proc/meminfo", text)

    assert laptop.read().memory_available_bytes is None


@pytest.mark.parametrize(
    "line",
    [
        "",
        "some",
        "some avg10=nan avg60=0.10 avg300=0.02 total=1",
        "some avg10=inf avg60=0.10 avg300=0.02 total=1",
        "some avg10=-1.00 avg60=0.10 avg300=0.02 total=1",
        "some avg10=100.01 avg60=0.10 avg300=0.02 total=1",
        "some avg10=1000.00 avg60=0.10 avg300=0.02 total=1",
        "some avg10=1,50 avg60=0.10 avg300=0.02 total=1",
        "some avg10= avg60=0.10 avg300=0.02 total=1",
        "some avg60=0.10 avg300=0.02 total=1",
        "none avg10=1.50 avg60=0.10 avg300=0.02 total=1",
    ],
)
def test_a_line_of_pressure_that_is_none_is_unknown(line: str, tmp_path: Path) -> None:
    laptop = Board(tmp_path, "x86-laptop")
    assert (laptop.read().cpu_stall_ratio, laptop.read().memory_stall_ratio) == (0.025, 0.0075)

    laptop.write("proc/pressure/cpu", line)
    laptop.write("proc/pressure/memory", line)

    health = laptop.read()
    assert (health.cpu_stall_ratio, health.memory_stall_ratio) == (None, None)
    assert health.memory_full_stall_ratio is None


@pytest.mark.parametrize(
    "line",
    [
        "",
        "cpu",
        "cpu  nan 0 0 0 0 0 0 0 0 0",
        "cpu  -1 0 0 0 0 0 0 0 0 0",
        "cpu  1 2 3",
        "cpu0 40000 120 10000 900000 3000 0 450 0 0 0",
        "cpu  0 0 0 0 0 0 0 0 0 0",
        "cpu  40000 120 10000 900000 3000 0 450 0 0 0",
    ],
    ids=["empty", "bare", "nan", "negative", "few", "one-core", "back-to-zero", "no-time-passed"],
)
def test_times_that_cannot_be_make_no_idle_processor(line: str, tmp_path: Path) -> None:
    pi = Board(tmp_path, "rpi4")
    pi.read()

    pi.write("proc/stat", line)

    assert pi.read().cpu_busy_ratio is None


@pytest.mark.parametrize("jump_s", [-1e9, -3600.0, -1.0, 0.0, 1e9])
def test_a_clock_that_jumps_costs_no_reading_and_invents_none(
    jump_s: float, tmp_path: Path
) -> None:
    laptop = Board(tmp_path, "x86-laptop")
    before = laptop.read()
    laptop.write("sys/class/thermal/thermal_zone4/temp", "1000000")
    laptop.clock.steady_s += jump_s
    laptop.clock.wall_s += jump_s

    bad = laptop.read(after_s=0.0)

    assert (bad.temperature_c, bad.headroom) == (None, None)
    laptop.write("sys/class/thermal/thermal_zone4/temp", "65000")
    again = laptop.read()
    assert (again.temperature_c, again.battery_ratio) == (
        before.temperature_c,
        before.battery_ratio,
    )
