"""What the sensors do not know is neither recorded nor decided on."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.app.learnt_file import LearntFile
from agent.app.sensing import Sensing
from agent.interrupts import Interrupts
from agent.packages import open_package
from agent.select.adaptation import Adaptation
from agent.select.adaptations import Adaptations
from agent.select.meter import Meter
from telemetry.device.recorder import Recorder
from telemetry.metrics import METRICS
from tests.simulators.answers import answered
from tests.simulators.packages import PROFILE, TRUST, package, variant
from tests.simulators.serving import FakeModelServer
from tests.unit.telemetry.device.sensor_board import Board
from wire.policy import Objective, PolicySpec

BEST = variant("best", accuracy=0.99, latency_ms=40.0, memory_bytes=300 * 2**20)
SMALL = variant("small", accuracy=0.90, latency_ms=5.0, memory_bytes=50 * 2**20)
KINDS = [
    PolicySpec(kind="rules", dwell_s=0.0),
    PolicySpec(kind="adaptive", dwell_s=0.0, objective=Objective(deadline_ms=100.0)),
]
PROCESSOR = "sys/class/thermal/thermal_zone4/temp"


class Device:
    """A laptop whose files a test may change, and its agent's loop over them."""

    def __init__(self, directory: Path, policy: PolicySpec) -> None:
        self.board = Board(directory, "x86-laptop")
        self.recorder = Recorder(self.board.clock)
        self.server = FakeModelServer()
        self.meter = Meter(self.board.clock)
        self.adaptation = Adaptation(
            self.server, PROFILE, self.meter, self.recorder, self.board.clock
        )
        self.adaptation.policy = policy
        adaptations = Adaptations(self.board.clock)
        adaptations.add("digits", self.adaptation)
        self.sensing = Sensing(
            self.board.sensors,
            self.recorder,
            adaptations,
            Interrupts(self.board.clock),
            interval_s=1.0,
            learnt=LearntFile(directory, self.recorder, self.board.clock),
        )
        made = package("1.0.0", [(BEST, b"{}"), (SMALL, b"{}")])
        made.write_to(directory / "package")
        opened = open_package(directory / "package", made.digest, TRUST)
        self.sensing.sense()
        self.adaptation.serve(opened, {}, {}, why="test")

    def tick(self, after_s: float = 1.0, requests: int = 0) -> str | None:
        for _ in range(requests):
            self.meter.came()
            self.meter.count(answered(self.adaptation.active()[1], total_s=0.05, compute_s=0.04))
        self.board.clock.sleep(after_s)
        self.adaptation.tick(self.sensing.sense())
        return self.adaptation.active()[1]

    def recorded(self) -> set[str]:
        points, _ = self.recorder.drain(whole=True)
        return {point.metric for point in points} - {"variant_switches_total"}


def test_an_unknown_reading_is_not_recorded_as_a_number(tmp_path: Path) -> None:
    device = Device(tmp_path, KINDS[0])
    found = device.recorded()
    assert found > {
        "temperature_c", "headroom_ratio", "hw.battery.charge", "system.linux.memory.available"
    }  # fmt: skip
    assert found <= METRICS.keys()

    device.board.write(PROCESSOR, "nan")
    device.board.write("sys/class/power_supply/BAT0/capacity", "150")
    device.board.write("proc/meminfo", "MemTotal: 0 kB")
    device.tick()

    unknown = {"temperature_c", "headroom_ratio", "hw.battery.charge"}
    assert not device.recorded() & {*unknown, "system.linux.memory.available"}


@pytest.mark.parametrize("text", ["nan", "inf", "", "1000000", "-300000", "cold"])
def test_a_hot_board_whose_sensor_fails_is_not_taken_for_a_cool_one(
    tmp_path: Path, text: str
) -> None:
    device = Device(tmp_path, KINDS[0])
    device.board.write(PROCESSOR, "84000")
    assert device.tick() == "small"

    device.board.write(PROCESSOR, text)

    assert [device.tick() for _ in range(5)] == ["small"] * 5


@pytest.mark.parametrize("policy", KINDS, ids=["rules", "adaptive"])
@pytest.mark.parametrize("jump_s", [-5000.0, -1.0, 0.0, 5000.0])
def test_a_clock_that_jumps_makes_no_negative_time(
    tmp_path: Path, policy: PolicySpec, jump_s: float
) -> None:
    device = Device(tmp_path, policy)
    before = [device.tick(requests=5) for _ in range(20)][-1]

    assert device.tick(jump_s, requests=5) == before
    for _ in range(3):
        assert device.tick(requests=5) == before
        decision = device.adaptation.decision
        assert decision is not None
        assert 0.0 <= decision.inputs.get("demand_per_s", 0.0) <= 6.0
        assert 0.0 <= decision.inputs.get("load", 0.0) <= 1.0
