"""What becomes of samples on the device: budgets, bounds, restarts, and the end of a capture."""

from __future__ import annotations

import base64
from pathlib import Path

import msgspec
import pytest

from agent.capture.budget import DAY_S, Spent
from agent.capture.store import SampleStore
from agent.capture.taking import WAITING_BYTES, Taking
from agent.serve.answered import Answered, Outcome
from agent.serve.capture import Captured, Missed
from telemetry.device.recorder import Recorder
from tests.simulators.clock import FakeClock
from wire.capture import CaptureRule, SampleHead
from wire.codec import to_json
from wire.telemetry import SumPoint

RULE = CaptureRule(id="a" * 32, public_key=base64.b64encode(bytes(32)).decode(), bytes_per_day=1000)


class Rig:
    """What takes samples, over a real directory."""

    def __init__(self, directory: Path, limit_bytes: int = 10_000) -> None:
        self.directory = directory / "captured"
        self.clock = FakeClock(at_s=100.5 * DAY_S)
        self.recorder = Recorder(self.clock)
        self.limit_bytes = limit_bytes
        self.number = 0
        self.start()

    def start(self) -> None:
        """Be an agent that starts on this directory."""
        self.store = SampleStore(self.directory, self.limit_bytes)
        self.store.load()
        self.taking = Taking(self.store, self.recorder, self.clock)
        self.taking.follow({"m": RULE})

    def take(self, size_bytes: int, *missed: Missed, capture: str = RULE.id) -> None:
        """Let an answer bring a sample."""
        self.number += 1
        head = SampleHead(
            capture=capture, sample=f"{self.number:032x}", device="cam-1", model="m",
            release="m:1", variant="best", at_s=self.clock.now_s(), why="share",
        )  # fmt: skip
        captured = Captured(head=to_json(head), sealed=bytes(size_bytes))
        self.taking.took(
            Answered(
                asked_model="m", variant="best", release="m:1", active=None, outcome=Outcome.OK,
                total_s=0.1, captured=captured, missed=missed,
            )
        )  # fmt: skip

    @property
    def room_bytes(self) -> int:
        asked = self.taking.asked("m")
        return -1 if asked is None else asked.room_bytes

    def counts(self) -> dict[str, float]:
        """Return what was counted since the last time, by its reason."""
        points, _ = self.recorder.drain(whole=True)
        sums = [point for point in points if isinstance(point, SumPoint)]
        return {p.attributes.get("reason") or p.attributes["why"]: p.value for p in sums}


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_a_day_has_its_budget_and_a_restart_gives_none_back(rig: Rig) -> None:
    assert rig.room_bytes == 1000
    rig.take(600)
    rig.take(600, Missed(reason="too large", samples=3))
    rig.taking.keep()
    assert rig.counts() == {"share": 1.0, "budget": 1.0, "too large": 3.0}
    assert (rig.room_bytes, rig.store.size_bytes > 600) == (400, True)
    rig.start()
    assert rig.room_bytes == 400
    rig.clock.correct(-99 * DAY_S)
    rig.taking.keep()
    assert rig.room_bytes == 400, "a clock that is wrong gives nothing"
    rig.clock.correct(100 * DAY_S)
    rig.taking.keep()
    assert rig.room_bytes == 1000


def test_what_workers_are_asked_stays_the_same_object_while_nothing_changes(rig: Rig) -> None:
    before = rig.taking.asked("m")
    rig.taking.keep()
    assert rig.taking.asked("m") is before
    assert rig.taking.asked("other") is None


def test_the_disk_and_the_memory_are_bounded(tmp_path: Path) -> None:
    rig = Rig(tmp_path, limit_bytes=100)
    rig.take(200)
    rig.taking.keep()
    rig.take(WAITING_BYTES)
    rig.take(1)
    assert rig.counts() == {"full": 1.0, "busy": 1.0}
    assert rig.store.is_empty


def test_the_end_of_a_capture_removes_what_was_taken_for_it(rig: Rig) -> None:
    rig.take(100)
    rig.taking.keep()
    other = msgspec.structs.replace(RULE, id="b" * 32)
    rig.taking.follow({"m": other})
    assert rig.store.is_empty
    assert rig.room_bytes == 1000
    rig.take(100)
    rig.taking.keep()
    assert rig.store.is_empty, "it was asked for by the capture before"
    rig.taking.follow({})
    assert rig.taking.asked("m") is None
    assert [path.name for path in rig.directory.iterdir()] == ["spent.json"]


def test_a_restart_finds_what_waits_and_leaves_out_what_is_damaged(rig: Rig) -> None:
    for size in (10, 20, 30):
        rig.take(size)
    rig.taking.keep()
    first, second, _ = sorted(rig.directory.glob("*.sample"))
    first.write_bytes(b"\xc1 no MessagePack")
    second.unlink()
    (rig.directory / ".x.sample.new").touch()
    rig.start()
    oldest = rig.store.oldest()
    assert oldest is not None
    assert len(oldest[1].sealed) == 30
    assert len(list(rig.directory.iterdir())) == 2
    rig.store.remove(oldest[0])
    rig.store.remove(oldest[0])
    assert rig.store.oldest() is None


def test_a_capture_that_ended_takes_no_room_in_the_record() -> None:
    spent = Spent(day=1).plus("a", 5).plus("b", 7)
    assert spent.only({"b"}) == Spent(day=1, captures={"b": 7})
    assert spent.at(DAY_S * 2.0) == Spent(day=2)
    assert (spent.left_bytes("a", 4), spent.left_bytes("c", 4)) == (0, 4)
