"""Disks, network and energy: growth since the last reading, of hardware alone."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from telemetry.device.sensors.files import KernelFiles
from telemetry.device.sensors.host import HostSensors, growth
from telemetry.device.sensors.traffic import MAX_NAMED, Traffic, TrafficCounters
from tests.unit.telemetry.device.sensor_board import overwrite

RAPL = "sys/class/powercap/intel-rapl:0"
NONE = Traffic({}, {}, {})


class Host:
    """A device whose files a test writes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sensors = HostSensors(root, sysfs_root=root / "sys", procfs_root=root / "proc")

    def write(self, name: str, text: object) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        overwrite(path, f"{text}\n".encode())

    def interface(self, name: str, received: int, sent: int, *, hardware: bool = True) -> None:
        where = f"sys/class/net/{name}"
        self.write(f"{where}/statistics/rx_bytes", received)
        self.write(f"{where}/statistics/tx_bytes", sent)
        if hardware:
            self.write(f"{where}/device/vendor", "0x1")

    def disk(self, name: str, sectors: int, *, hardware: bool = True) -> None:
        self.write(f"sys/block/{name}/stat", f"1 0 8 0 2 0 {sectors} 0 0 0 0")
        if hardware:
            self.write(f"sys/block/{name}/device/type", "SD")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_device_without_such_files_tells_what_it_can(host: Host) -> None:
    host.sensors.scan()
    assert not host.sensors.has_energy
    for _ in range(2):
        found = host.sensors.read()
        assert (found.traffic, found.energy_j, found.io_stall_ratio) == (NONE, {}, None)
        assert found.disk_free_bytes == pytest.approx(
            psutil.disk_usage(str(host.root)).free, rel=0.1
        )


def test_counters_tell_their_growth(host: Host) -> None:
    host.disk("mmcblk0", 100)
    host.interface("eth0", 1000, 10)
    host.sensors.scan()
    assert host.sensors.read().traffic == NONE
    host.disk("mmcblk0", 103)
    host.interface("eth0", 1500, 10)
    assert host.sensors.read().traffic == ({"mmcblk0": 3 * 512}, {"eth0": 500}, {"eth0": 0})


def test_a_counter_that_began_anew_tells_nothing(host: Host) -> None:
    host.interface("wwan0", 1000, 10, hardware=False)
    host.sensors.scan()
    host.sensors.read()
    host.interface("wwan0", 5, 20, hardware=False)
    assert host.sensors.read().traffic == ({}, {}, {"wwan0": 10})
    assert growth({"a": 5}, {"a": 4, "b": 9}) == {}


def test_what_is_no_hardware_does_not_count(host: Host) -> None:
    host.interface("veth12ab34", 1, 1, hardware=False)
    host.interface("lo", 1, 1, hardware=False)
    host.disk("loop0", 1, hardware=False)
    host.disk("mmcblk0boot0", 1)
    host.sensors.scan()
    host.sensors.read()
    assert host.sensors.read().traffic == NONE


def test_names_that_hold_an_address_are_cut_and_names_are_bounded(host: Host) -> None:
    for number in range(MAX_NAMED + 5):
        host.interface(f"enx00000000000{number:x}", 7, 7)
        host.disk(f"sd{chr(97 + number)}", 1)
    host.sensors.scan()
    host.sensors.read()
    found = host.sensors.read().traffic
    assert len(found.written) == MAX_NAMED
    assert found.received == {"enx": 0}


def test_energy_is_that_of_whole_packages_and_survives_a_wrap(host: Host) -> None:
    host.write(f"{RAPL}/name", "package-0")
    host.write(f"{RAPL}/energy_uj", 900_000)
    host.write(f"{RAPL}/max_energy_range_uj", 1_000_000)
    host.write("sys/class/powercap/intel-rapl:0:0/name", "core")
    host.write("sys/class/powercap/intel-rapl:0:0/energy_uj", 5)
    host.write("sys/class/hwmon/hwmon0/name", "ina3221")
    host.write("sys/class/hwmon/hwmon0/energy1_input", 100)
    host.write("sys/class/hwmon/hwmon0/energy1_label", "VDD IN")
    host.sensors.scan()
    assert host.sensors.has_energy
    assert host.sensors.read().energy_j == {}
    host.write(f"{RAPL}/energy_uj", 100_000)
    host.write("sys/class/hwmon/hwmon0/energy1_input", 2_000_100)
    assert host.sensors.read().energy_j == {
        "package-0": pytest.approx(0.2), "ina3221-VDD-IN": pytest.approx(2.0)
    }  # fmt: skip
    host.write("sys/class/hwmon/hwmon0/energy1_input", 3)  # nobody knows its range
    assert set(host.sensors.read().energy_j) == {"package-0"}


@pytest.mark.parametrize("text", ["", "nan", "-5", "9" * 30, "1 2 3"])
def test_a_damaged_file_is_an_unknown_value(host: Host, text: str) -> None:
    host.disk("sda", 1)
    host.interface("eth0", 1, 1)
    host.sensors.scan()
    host.sensors.read()
    host.write("sys/block/sda/stat", text)
    host.write("sys/class/net/eth0/statistics/rx_bytes", text)
    found = host.sensors.read().traffic
    assert (found.written, found.received, found.sent) == ({}, {}, {"eth0": 0})


def test_psutil_reads_the_same_of_this_machine() -> None:
    counters = TrafficCounters(KernelFiles(), "/sys")
    counters.scan()
    ours = counters.read()
    disks, networks = psutil.disk_io_counters(perdisk=True), psutil.net_io_counters(pernic=True)
    for name, size_bytes in ours.written.items():
        assert 0 <= disks[name].write_bytes - size_bytes < 2**30
    for name in ours.received.keys() & networks.keys():
        assert 0 <= networks[name].bytes_recv - ours.received[name] < 2**30
        assert 0 <= networks[name].bytes_sent - ours.sent[name] < 2**30
