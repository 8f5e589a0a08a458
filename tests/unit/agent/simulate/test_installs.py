"""Installs of a simulated device: it fetches at once, and activates in a window of its rollout."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import count

import pytest

from agent.simulate.fate import Fate
from agent.simulate.installs import Installs
from telemetry.device.recorder import Recorder
from tests.simulators.clock import FakeClock
from tests.simulators.packages import PROFILE, TRUST, package, variant
from wire.clock import local_time
from wire.codec import sha256_hex
from wire.delivery import Chunk, ChunkRequest
from wire.desired import DesiredModels, ModelState
from wire.installs import InstallReport, ReleaseRef
from wire.simulation import Plan, Tally

MADE = package("1", [(variant("best"), b"m" * 10_000)])
PLAN = Plan(
    prefix="sim", numbers=(0, 1), seed=1, labels={}, profile=PROFILE, trust="", token="",
    host="localhost", port=1883,
)  # fmt: skip


class Played:
    """Timers, reports and answers to requests around the installs of one device."""

    def __init__(self, **faults: float) -> None:
        self.clock = FakeClock()
        self.tally = Tally()
        self.recorder = Recorder(self.clock)
        self.reports: list[InstallReport] = []
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self.installs = Installs(
            *("sim-0", Fate(1, 0, faults), PLAN, TRUST),
            recorder=self.recorder, road=self, around=self,
        )  # fmt: skip

    def after(self, wait_s: float, what: Callable[[], None]) -> None:
        at_s = self.clock.monotonic_s() + wait_s
        heapq.heappush(self._timers, (at_s, next(self._numbers), what))

    def tell(self, report: InstallReport) -> None:
        self.reports.append(report)

    def ask(self, request: ChunkRequest) -> None:
        (blob,) = (blob for blob in MADE.blobs if sha256_hex(blob) == request.sha256)
        for index in request.indices:
            begin = index * request.chunk_bytes
            data = blob[begin : begin + request.chunk_bytes]
            chunk = Chunk(sha256=request.sha256, index=index, data=data)
            self.after(0.0, partial(self.installs.take_chunk, chunk))

    def restart(self) -> None:
        """No fault asks for it."""

    def run(self, for_s: float) -> None:
        until_s = self.clock.monotonic_s() + for_s
        while self._timers and self._timers[0][0] <= until_s:
            at_s, _, what = heapq.heappop(self._timers)
            self.clock.advance(at_s - self.clock.monotonic_s())
            what()
        self.clock.advance(until_s - self.clock.monotonic_s())


def test_it_waits_with_what_it_has_fetched_until_a_window_opens() -> None:
    played = Played()
    opens = local_time(played.clock.now_s()) + timedelta(hours=2)
    window = f"{opens:%H:%M}-{opens + timedelta(hours=1):%H:%M}"
    wanted = ModelState(name="digits", revision=1, release=MADE.ref, windows=(window,))
    played.installs.follow(
        DesiredModels(device="sim-0", revision=1, issued_at_s=0.0, models=(wanted,))
    )
    played.run(600.0)
    last = played.reports[-1]
    assert (last.phase, last.outcome) == ("staging", "running")
    assert last.detail.startswith(f"the rollout activates it within {window}; it goes on at ")
    assert 0 < last.done_bytes <= last.total_bytes
    played.run(7200.0)
    assert [report.outcome for report in played.reports[-1:]] == ["succeeded"]


def test_the_event_of_an_install_that_failed_says_why_as_on_a_device() -> None:
    played = Played(fails_check=1.0)
    wanted = ModelState(name="digits", revision=1, release=MADE.ref)
    played.installs.follow(
        DesiredModels(device="sim-0", revision=1, issued_at_s=0.0, models=(wanted,))
    )
    played.run(600.0)
    _points, (event,) = played.recorder.drain()
    assert (event.kind, event.reason) == ("install", "simulated: other answers")
    assert event.data["code"] == played.reports[-1].error_code == "agent.golden"
    assert (event.data["outcome"], event.data["phase"]) == ("failed", "probing")


@pytest.mark.parametrize("rollout", [None, "r1"])
@pytest.mark.parametrize("after_s", [0.05, 0.5, 2.0, 4.0, 5.0, 8.0, 12.0, 20.0])
@pytest.mark.parametrize("gap_s", [0.0, 30.0])
def test_an_order_to_have_nothing_ends_an_install_and_the_next_one_begins_anew(
    after_s: float, gap_s: float, rollout: str | None
) -> None:
    """As a device whose first rollout of a model was halted, and then resumed."""
    played = Played()
    played.installs.follow(ordered(1, MADE.ref, rollout))
    played.run(after_s)
    played.installs.follow(ordered(2, None))
    played.run(gap_s)
    played.installs.follow(ordered(3, MADE.ref, rollout))
    played.run(600.0)
    told = [report for report in played.reports if report.outcome != "running"]
    assert told[-1].revision == 3
    assert {(report.outcome, report.active) for report in told} == {("succeeded", MADE.ref.digest)}


def test_who_is_to_have_nothing_has_nothing() -> None:
    played = Played()
    played.installs.follow(ordered(1, MADE.ref))
    played.run(0.05)
    played.installs.follow(ordered(2, None))
    played.run(600.0)
    assert played.installs.served() == ()
    assert [report for report in played.reports if report.outcome != "running"] == []


def ordered(revision: int, release: ReleaseRef | None, rollout: str | None = None) -> DesiredModels:
    wanted = ModelState(name="digits", revision=revision, release=release, rollout=rollout)
    models = (wanted,) if release else ()
    return DesiredModels(device="sim-0", revision=revision, issued_at_s=0.0, models=models)
