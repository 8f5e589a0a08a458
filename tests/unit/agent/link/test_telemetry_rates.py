"""When telemetry leaves a device, in which form, and what an hour without a connection costs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from agent.app.config import AgentConfig
from agent.app.host_figures import HostFigures
from agent.app.sensing import Sensing
from agent.app.spooling import make_pump
from agent.link.connection import Link
from agent.link.identity import Account
from agent.link.outage import Outage
from agent.link.resending import FIRST_S, Resending
from agent.link.telemetry import ASKED_S, KEEP_S, OFFLINE_S, TelemetryPump
from agent.serve.answered import record
from agent.serve.served import ServedModels
from telemetry.device.recorder import Recorder
from telemetry.device.sensors.host import HostSensors
from telemetry.device.spool import Spool
from tests.simulators.answers import answered
from tests.simulators.transport import MemoryHub, MemoryTransport
from tests.unit.telemetry.device.manual_clock import ManualClock
from tests.unit.telemetry.device.sensor_board import Board
from wire.messages import decode_message
from wire.packed import is_packed, readable
from wire.policy import PolicySpec
from wire.telemetry import SumPoint, TelemetryAck, TelemetryBatch

HOUR_S = 3600
MIB = 1024 * 1024


class Rig:
    """A pump over a real spool, at a hub in memory."""

    def __init__(self, directory: Path, clock: ManualClock, interval_s: float = 10.0) -> None:
        self.clock = clock
        self.recorder = Recorder(clock)
        self.path = directory / "telemetry.db"
        self.spool = self.opened("b")
        self.link = Link("dev-1", "b", Outage("here", self.recorder, clock))
        self.pump = TelemetryPump(
            "dev-1", recorder=self.recorder, spool=self.spool, link=self.link, clock=clock,
            interval_s=lambda: interval_s, resending=Resending(lambda: 0.5),
        )  # fmt: skip
        self.hub = MemoryHub()
        self.transport: MemoryTransport | None = None

    def opened(self, boot_id: str) -> Spool:
        return Spool(
            self.path, device="dev-1", boot_id=boot_id, limit_bytes=16 * MIB, clock=self.clock
        )

    def connect(self) -> None:
        transport = self.transport = self.hub.connect()
        account = Account(client_id="c", username="u", password=None)
        self.link.open(lambda _login: transport, account)

    def serve(self, number: int = 40) -> None:
        for count in range(number):
            record(self.recorder, answered(variant=f"int8-{count % 20}"))

    def run(self, duration_s: float, step_s: float = 0.5) -> None:
        for _ in range(int(duration_s / step_s)):
            self.clock.sleep(step_s)
            self.pump.tick()

    @property
    def sent(self) -> list[bytes]:
        topic = "edgefleet/v1/dev/dev-1/up/telemetry"
        return [each.payload for each in self.hub.published if each.topic == topic]

    def acknowledge(self, **fields: object) -> None:
        for batch, _ in self.spool.pending():
            ack = TelemetryAck(boot_id=batch.boot_id, sequences=(batch.sequence,))
            self.pump.acknowledged(msgspec.structs.replace(ack, **fields))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path, ManualClock())
    yield rig
    rig.spool.close()


def test_batches_are_compressed_only_for_who_has_said_that_it_reads_that(rig: Rig) -> None:
    rig.connect()
    rig.serve()
    rig.run(10)
    rig.acknowledge()
    rig.serve()
    rig.run(10)
    assert not any(map(is_packed, rig.sent)), "an older controller"
    rig.acknowledge(reads=readable())
    rig.serve()
    rig.run(10)
    assert is_packed(rig.sent[-1])
    assert 3 * len(rig.sent[-1]) < len(rig.sent[0])
    batch = decode_message(rig.sent[-1], TelemetryBatch, packed=True)
    assert [batch] == [waiting for waiting, _ in rig.spool.pending()]
    rig.acknowledge()
    rig.serve()
    rig.run(10)
    assert not is_packed(rig.sent[-1]), "the controller was replaced by an older one"


def test_what_is_sent_again_is_plain(rig: Rig) -> None:
    rig.connect()
    rig.serve()
    rig.run(10)
    rig.acknowledge(reads=readable())
    rig.serve()
    rig.run(10)
    assert is_packed(rig.sent[-1])
    count = len(rig.sent)
    rig.run(FIRST_S + 10)
    assert len(rig.sent) == count + 1
    assert not is_packed(rig.sent[-1])


@pytest.mark.parametrize(
    ("asked_s", "found_s"),
    [(60.0, 60.0), (0.001, ASKED_S[0]), (-5.0, ASKED_S[0]), (1e9, ASKED_S[1]), (math.inf, 600.0)],
)
def test_a_controller_may_ask_for_figures_less_often(
    rig: Rig, asked_s: float, found_s: float
) -> None:
    rig.connect()
    rig.serve()
    rig.run(10)
    rig.acknowledge(report_every_s=asked_s)
    assert rig.pump.every_s == found_s
    rig.serve()
    rig.run(10)
    rig.acknowledge(report_every_s=math.nan)
    assert rig.pump.every_s == 10.0, "no number is no wish"


def test_a_controller_cannot_ask_for_more_than_the_device_is_set_to(tmp_path: Path) -> None:
    rig = Rig(tmp_path, ManualClock(), interval_s=120.0)
    rig.connect()
    rig.serve()
    rig.run(0.5)
    rig.acknowledge(report_every_s=10.0)
    assert rig.pump.every_s == 120.0
    rig.spool.close()


def test_the_policies_of_models_set_the_interval(tmp_path: Path) -> None:
    config = AgentConfig(
        device="dev-1", state_dir=tmp_path, profile=tmp_path / "p", trust=tmp_path / "t"
    )
    clock = ManualClock()
    recorder, policies = Recorder(clock), [PolicySpec()]
    pump = make_pump(
        config,
        Link("dev-1", "b", Outage("here", recorder, clock)),
        boot_id="b",
        policies=lambda: policies,
        recorder=recorder,
        clock=clock,
    )
    assert pump.every_s == 10.0
    policies.append(PolicySpec(report_every_s=60.0))
    assert pump.every_s == 60.0
    pump.close()


def test_without_a_connection_figures_are_collected_by_the_minute(rig: Rig) -> None:
    rig.run(OFFLINE_S)
    for _ in range(5 * 60):
        rig.serve(1)
        rig.run(1)
    minutes = [{point.minute for point in batch.points} for batch, _ in rig.spool.pending(100)]
    assert [len(found) for found in minutes] == [1] * 5


def test_a_kill_at_any_time_loses_less_than_a_second_of_figures(rig: Rig) -> None:
    for number in range(1, 40):
        rig.serve(1)
        rig.run(KEEP_S)
        if number == 17:  # a question takes figures out of the recorder
            rig.pump.events((), 0.0, 10)
    rig.pump.events((), 0.0, 10)
    rig.run(KEEP_S)
    found = rig.opened("next")
    points = [point for batch, _ in found.pending(100) for point in batch.points]
    counts = [
        point.value
        for point in points
        if isinstance(point, SumPoint) and point.metric == "inference_requests_total"
    ]
    assert sum(counts) >= 39 - 1
    found.close()


@pytest.mark.parametrize("board", ["rpi4", "phone-sdm845"])
def test_an_hour_without_a_connection_costs_at_most_a_mebibyte(tmp_path: Path, board: str) -> None:
    device = Board(tmp_path, board)
    rig = Rig(tmp_path, device.clock)
    host = HostSensors(tmp_path)  # disks and networks of this machine
    figures = HostFigures(
        device.sensors, host, ServedModels(device.clock), rig.recorder, device.clock
    )
    for second in range(HOUR_S):
        device.clock.sleep(1.0)
        if second % 5 == 0:  # more often brings no more points, but takes the test longer
            Sensing.record(rig.recorder, device.sensors.read())
            figures.tick()
            rig.serve(5)
        if second % 600 == 0:
            rig.recorder.event("connection", "the broker cannot be reached", {"tries": 7})
        rig.pump.tick()
    waiting = rig.spool.pending(1000)
    assert 55 <= len(waiting) <= 75
    assert sum(len(data) for _, data in waiting) <= MIB
    rig.spool.close()
    assert rig.path.stat().st_size <= MIB
