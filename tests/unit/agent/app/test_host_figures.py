"""What the device and the agent's processes take is recorded, at most every ten seconds."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from agent.app.host_figures import HostFigures
from agent.serve.served import ServedModels
from telemetry.device.recorder import Recorder
from telemetry.device.sensors.host import HostSensors
from telemetry.metrics import METRICS
from tests.unit.telemetry.device.sensor_board import Board
from wire.telemetry import GaugePoint, Point, SumPoint


class Device:
    """A board, and what records its figures."""

    def __init__(self, root: Path) -> None:
        self.board = Board(root, "rpi4")
        self.recorder = Recorder(self.board.clock)
        roots = {"sysfs_root": self.board.root / "sys", "procfs_root": self.board.root / "proc"}
        self.figures = HostFigures(
            self.board.sensors,
            HostSensors(root, **roots),
            ServedModels(self.board.clock),
            self.recorder,
            self.board.clock,
        )
        self.board.sensors.read()

    def tick(self) -> dict[str, list[Point]]:
        self.figures.tick()
        found: dict[str, list[Point]] = {}
        for point in self.recorder.drain(whole=True)[0]:
            found.setdefault(point.metric, []).append(point)
        return found


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return Device(tmp_path)


def test_the_figures_are_those_of_the_table(device: Device) -> None:
    found = device.tick()
    assert found.keys() <= METRICS.keys()
    for name, points in found.items():
        metric = METRICS[name]
        for point in points:
            assert isinstance(point, GaugePoint) == (metric.kind == "gauge")
            assert point.attributes.keys() <= set(metric.attributes)


def test_it_looks_every_ten_seconds_and_no_more(device: Device) -> None:
    assert device.tick()
    for _ in range(9):
        device.board.clock.sleep(1.0)
        assert device.tick() == {}
    device.board.clock.sleep(1.0)
    assert device.tick()


def test_the_zones_and_the_supervisor_have_figures(device: Device) -> None:
    found = device.tick()
    (zone,) = found["hw.temperature"]
    assert zone.attributes == {"hw.id": "cpu-thermal"}
    (memory,) = found["process.memory.usage"]
    assert memory.attributes == {"role": "supervisor"}
    assert isinstance(memory, GaugePoint)
    assert memory.total == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)
    (free,) = found["system.filesystem.usage"]
    assert free.attributes == {"system.filesystem.state": "free"}


def test_zones_of_one_name_are_told_apart_and_names_are_plain(device: Device) -> None:
    for number in range(1, 4):
        device.board.write(f"sys/class/thermal/thermal_zone{number}/type", "cpu\x1bbig zone")
        device.board.write(f"sys/class/thermal/thermal_zone{number}/temp", f"{50_000 + number}")
    device.board.sensors = device.board.restarted()
    device.board.sensors.read()
    device.figures = HostFigures(
        device.board.sensors,
        HostSensors(device.board.root),
        ServedModels(device.board.clock),
        device.recorder,
        device.board.clock,
    )
    names = {point.attributes["hw.id"] for point in device.tick()["hw.temperature"]}
    assert names == {"cpu-thermal", "cpu-big-zone", "cpu-big-zone.2", "cpu-big-zone.3"}


def test_the_processor_time_of_a_process_counts_once(device: Device) -> None:
    total_s = 0.0
    for _ in range(3):
        sum(range(2_000_000))
        for point in device.tick()["process.cpu.time"]:
            assert isinstance(point, SumPoint)
            total_s += point.value
        device.board.clock.sleep(10.0)
    times = psutil.Process(os.getpid()).cpu_times()
    assert total_s == pytest.approx(times.user + times.system, abs=0.5)
