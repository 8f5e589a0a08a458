"""Figures and reasons on their way to the spool: a question writes nothing and loses nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agent.app.commands import Commands
from agent.errors import ControlError
from agent.link.connection import Link
from agent.link.identity import Account
from agent.link.outage import Outage
from agent.link.resending import FIRST_S, Resending
from agent.link.telemetry import HELD_POINTS, TelemetryPump
from telemetry.device.recorder import MAX_EVENTS, Recorder
from telemetry.device.spool import DISK_EVERY_S, Spool
from telemetry.errors import SpoolError
from tests.simulators.clock import FakeClock
from tests.simulators.transport import MemoryHub
from wire.telemetry import TelemetryAck
from wire.topics import up


class Rig:
    """A pump over a real spool."""

    def __init__(self, directory: Path) -> None:
        self.clock = FakeClock()
        self.recorder = Recorder(self.clock)
        self.path = directory / "telemetry.db"
        self.spool = self.opened()
        self.link = Link("dev-1", "b", Outage("here", self.recorder, self.clock))
        self.pump = TelemetryPump(
            "dev-1", recorder=self.recorder, spool=self.spool, link=self.link,
            clock=self.clock, interval_s=lambda: 60.0, resending=Resending(lambda: 0.5),
        )  # fmt: skip

    def opened(self, boot_id: str = "b") -> Spool:
        return Spool(
            self.path, device="dev-1", boot_id=boot_id, limit_bytes=2**20, clock=self.clock
        )

    def serve(self, variant: str, *, compute_s: float = 0.02, latency_ms: float = 30.0) -> None:
        attributes = {"variant": variant, "release": "digits:1"}
        self.recorder.add("inference_requests_total", 1.0, attributes)
        self.recorder.observe("inference_latency_ms", latency_ms, attributes)
        self.recorder.add("worker_compute_seconds_total", compute_s, attributes)

    @property
    def written(self) -> int:
        with closing(sqlite3.connect(self.path)) as db:
            return int(db.execute("SELECT count(*) FROM batch").fetchone()[0])

    def reasons(self, since_s: float = 0.0) -> list[str]:
        return [event.reason for event in self.pump.events((), since_s, 100)]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.spool.close()


def test_questions_write_nothing_and_lose_nothing(rig: Rig) -> None:
    rig.serve("int8")
    rig.recorder.event("switch", "too hot")
    assert rig.reasons() == ["too hot"]
    assert rig.written == 0
    rig.pump.collect()
    assert rig.written == 1
    batch, _ = rig.spool.pending()[0]
    assert (len(batch.points), len(batch.events)) == (3, 1)
    assert rig.reasons() == ["too hot"]


def test_figures_wait_for_their_interval_and_events_for_a_second(rig: Rig) -> None:
    rig.pump.tick()
    rig.serve("int8")
    rig.pump.tick()
    assert rig.written == 0
    rig.recorder.event("switch", "too hot")
    rig.pump.tick()
    rig.recorder.event("switch", "still too hot")
    rig.pump.tick()
    assert rig.written == 1, "one second has not passed"
    rig.clock.advance(1.0)
    rig.pump.tick()
    assert rig.written == 2
    rig.serve("int8")
    rig.clock.advance(58.0)
    rig.pump.tick()
    assert rig.written == 2
    rig.clock.advance(1.0)
    rig.pump.tick()
    assert rig.written == 3


def test_after_a_connect_figures_do_not_wait(rig: Rig) -> None:
    rig.pump.tick()
    rig.serve("int8")
    rig.pump.hurry()
    rig.pump.tick()
    assert rig.written == 1


def test_what_is_in_memory_is_written_when_the_agent_ends(rig: Rig) -> None:
    rig.serve("int8")
    rig.pump.close()
    assert rig.written == 1


def test_many_questions_do_not_fill_the_memory(rig: Rig) -> None:
    for _ in range(HELD_POINTS // 3 + 1):
        rig.serve("int8")
        rig.reasons()
    assert rig.written > 0


def test_reasons_outlive_their_delivery_and_a_restart(rig: Rig) -> None:
    rig.recorder.event("switch", "too hot")
    rig.pump.collect()
    batch, _ = rig.spool.pending()[0]
    rig.pump.acknowledged(TelemetryAck(boot_id=batch.boot_id, sequences=(batch.sequence,)))
    assert rig.spool.pending() == []
    rig.spool.close()
    again = rig.opened("another")
    assert [event.reason for event in again.events()] == ["too hot"]
    again.close()


def test_of_reasons_only_the_wanted_are_told(rig: Rig) -> None:
    rig.recorder.event("switch", "early")
    rig.pump.collect()
    rig.clock.advance(100.0)
    rig.recorder.event("switch", "late")
    assert rig.reasons(rig.clock.now_s() - 50) == ["late"]
    rig.recorder.event("install", "other")
    assert [e.reason for e in rig.pump.events(("switch",), 0, 100)] == ["early", "late"]
    assert [e.reason for e in rig.pump.events((), 0, 1)] == ["other"]


def test_a_reason_that_the_disk_does_not_take_is_kept_for_later(rig: Rig) -> None:
    with closing(sqlite3.connect(rig.path, isolation_level=None)) as other:
        rig.spool.pending()
        other.execute("BEGIN IMMEDIATE")  # as a process that reads and holds the file
        rig.recorder.event("switch", "too hot")
        rig.spool._run(lambda db: db.execute("PRAGMA busy_timeout = 10").fetchall())
        with pytest.raises(SpoolError):
            rig.pump.collect()
        assert rig.reasons()[-1] == "too hot"
        other.execute("ROLLBACK")
    rig.pump.collect()
    assert [event.reason for event in rig.spool.events()] == ["too hot"]


def test_reasons_go_on_when_the_disk_is_full(rig: Rig) -> None:
    with closing(sqlite3.connect(rig.path)) as other:
        rig.spool.pending()
        pages = other.execute("PRAGMA page_count").fetchone()[0]
    rig.spool._run(lambda db: db.execute(f"PRAGMA max_page_count = {pages}").fetchall())
    for number in range(40):
        rig.recorder.event("switch", f"{number} too hot", {"verdicts": {"a": "x" * 1000}})
    rig.pump.collect()
    assert [reason for reason in rig.reasons() if "too hot" in reason][-1] == "39 too hot"
    rig.clock.advance(DISK_EVERY_S)
    assert len(rig.spool.events(("switch",))) == 40
    assert [event.reason for event in rig.spool.events(("storage",))][-1].endswith("disk again")


def test_reasons_that_wait_are_bounded(rig: Rig) -> None:
    for number in range(3):
        for _ in range(MAX_EVENTS):
            rig.recorder.event("worker", str(number))
        rig.reasons()
    assert len(rig.pump.events((), 0, 10**6)) == MAX_EVENTS
    assert rig.reasons()[-1] == "2"


def test_reasons_that_are_too_much_for_one_answer_are_refused_not_cut(rig: Rig) -> None:
    unused: Any = None
    commands = Commands(
        "dev-1", store=unused, models=unused, adaptations=unused, pump=rig.pump, link=unused,
        refusals=unused, clock=rig.clock, override=unused, budgets=unused,
        endpoint=str, deferred=int,
    )  # fmt: skip
    for number in range(400):
        rig.recorder.event("switch", str(number), {"verdicts": {"a": "x" * 14_000}})
        if number == 99:
            assert len(commands.answer("why", {})) == 100
            rig.clock.advance(600.0)
    with pytest.raises(ControlError, match="400 events are too much for one answer"):
        commands.answer("why", {"within_s": 3600})
    rig.clock.advance(1.0)
    assert commands.answer("why", {"within_s": 0.5}) == []


@pytest.mark.parametrize("within_s", [None, "1h", -1, float("nan"), [1]])
def test_a_senseless_time_is_refused(rig: Rig, within_s: object) -> None:
    unused: Any = None
    commands = Commands(
        "dev-1", store=unused, models=unused, adaptations=unused, pump=rig.pump, link=unused,
        refusals=unused, clock=rig.clock, override=unused, budgets=unused,
        endpoint=str, deferred=int,
    )  # fmt: skip
    with pytest.raises(ControlError, match="within_s is not a number of seconds"):
        commands.answer("why", {"within_s": within_s})


def test_a_batch_is_not_sent_again_while_the_broker_has_not_acknowledged_it(rig: Rig) -> None:
    hub = MemoryHub()
    transport = hub.connect()
    rig.link.open(lambda _login: transport, Account(client_id="c", username="u", password=None))
    rig.serve("int8")
    rig.pump.collect()
    transport.unacknowledged.add(up("dev-1", "telemetry"))
    for _ in range(3):
        rig.pump.send()
        rig.clock.advance(2 * FIRST_S)
    assert len(hub.published) == 1
    rig.serve("int8")
    rig.pump.collect()
    rig.pump.send()
    assert len(hub.published) == 2, "what was never sent is"
    transport.unacknowledged.clear()
    rig.pump.send()
    assert hub.published[0] in hub.published[2:], "the controller has not acknowledged it"
