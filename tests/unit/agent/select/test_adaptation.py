"""What the agent does with a decision: order of workers, one sample at a time, what it learns."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from agent.packages import open_package
from agent.select.adaptation import Adaptation
from agent.select.meter import Meter
from agent.serve.advice import Advice
from tests.simulators.answers import answered
from tests.simulators.clock import FakeClock
from tests.simulators.device import Heard
from tests.simulators.packages import PROFILE, TRUST, package, variant
from tests.simulators.serving import FakeModelServer
from wire.health import HealthSnapshot
from wire.policy import Objective, PolicySpec, Sharing

MIB = 2**20
BEST = variant("best", accuracy=0.99, latency_ms=40.0, memory_bytes=300 * MIB)
SMALL = variant("small", accuracy=0.90, latency_ms=5.0, memory_bytes=50 * MIB)
ADAPTIVE = PolicySpec(kind="adaptive", dwell_s=0.0, objective=Objective(deadline_ms=100.0))


class Rig:
    """An adaptation over workers that are no processes."""

    def __init__(self, directory: Path, policy: PolicySpec) -> None:
        made = package("1.0.0", [(BEST, b"{}"), (SMALL, b"{}")])
        made.write_to(directory)
        self.clock, self.server, self.heard = FakeClock(), FakeModelServer(), Heard([], [])
        self.meter = Meter(self.clock)
        self.adaptation = Adaptation(self.server, PROFILE, self.meter, self.heard, self.clock)
        self.adaptation.policy = policy
        self.opened = open_package(directory, made.digest, TRUST)

    def enter(self, free_bytes: int, **latencies_ms: float) -> None:
        self.adaptation.note(health(free_bytes))
        self.adaptation.serve(self.opened, {}, latencies_ms, why="test")

    def tick(self, free_bytes: int, requests: int = 0, compute_s: float = 0.01) -> str | None:
        for _ in range(requests):
            self.meter.came()
            self.meter.count(
                answered(self.adaptation.active()[1], total_s=compute_s, compute_s=compute_s)
            )
        self.clock.advance(1.0)
        self.adaptation.tick(health(free_bytes))
        return self.adaptation.active()[1]


def health(free_bytes: int) -> HealthSnapshot:
    return HealthSnapshot(at_s=0.0, memory_available_bytes=free_bytes, cpu_busy_ratio=0.1)


@pytest.mark.parametrize(
    "policy", [PolicySpec(kind="rules", dwell_s=0.0), ADAPTIVE], ids=["rules", "adaptive"]
)
def test_where_both_do_not_fit_the_old_worker_ends_first(
    tmp_path: Path, policy: PolicySpec
) -> None:
    rig = Rig(tmp_path, policy)
    rig.enter(2000 * MIB)
    assert rig.adaptation.active()[1] == "best"
    assert rig.server.active is not None
    rig.server.active.memory_bytes = 300 * MIB
    # The reserve is short by 12 MiB: that is worth a switch once some answers were at risk.
    names = [rig.tick(20 * MIB, requests=5) for _ in range(20)]
    assert names[-1] == "small"
    assert rig.server.stopped_first == ["small"]
    event = next(e for e in reversed(rig.heard.events) if e[0] == "switch")
    cost = event[2]["cost"]
    assert isinstance(cost, dict)
    assert (cost["gap"], cost["both_bytes"]) == (True, 350 * MIB)


def test_with_room_for_both_nothing_ends_first(tmp_path: Path) -> None:
    rig = Rig(tmp_path, PolicySpec(kind="rules", dwell_s=0.0, low_memory_bytes=100 * MIB))
    rig.enter(2000 * MIB)
    assert rig.tick(60 * MIB) == "small"
    assert rig.server.stopped_first == []


def test_without_memory_for_any_one_sample_runs_at_a_time(tmp_path: Path) -> None:
    rig = Rig(tmp_path, ADAPTIVE)
    rig.enter(2000 * MIB)
    streams = []
    for free_bytes in (2000 * MIB, 10 * MIB, 2000 * MIB):
        rig.tick(free_bytes)
        streams.append(rig.server.running_as.stream)
    assert streams == [False, True, False]


def test_what_the_workers_show_is_learnt_and_decides(tmp_path: Path) -> None:
    rig = Rig(tmp_path, ADAPTIVE)
    rig.enter(2000 * MIB)
    # Declared are 40 ms; it takes 200, twice the deadline.
    names = [rig.tick(2000 * MIB, requests=3, compute_s=0.2) for _ in range(5)]
    assert names[-1] == "small"
    decision = rig.adaptation.decision
    assert decision is not None
    assert decision.state.estimates.demand_per_s > 0
    assert decision.inputs["slowdown"] > 2


def test_an_event_tells_of_a_changed_reason_without_a_switch(tmp_path: Path) -> None:
    rig = Rig(tmp_path, ADAPTIVE)
    rig.enter(2000 * MIB)
    rig.adaptation.pinned = "best"
    for _ in range(70):
        rig.tick(2000 * MIB)
    told = [reason for kind, reason, _ in rig.heard.events if kind == "decision"]
    assert told[-1] == "pinned to best"
    assert len(told) <= 2


def test_what_was_measured_here_is_believed_before_what_was_declared(tmp_path: Path) -> None:
    rig = Rig(tmp_path, ADAPTIVE)
    rig.enter(2000 * MIB, best=250.0)
    assert rig.adaptation.active()[1] == "small", "40 ms are declared, 100 allowed"
    latencies_ms = {c.name: c.latency_p50_ms for c in rig.adaptation.candidates()}
    assert latencies_ms == {"best": 250.0, "small": 5.0}
    assert rig.adaptation.declared_ms() == 5.0
    rig.adaptation.withdraw()
    assert rig.adaptation.declared_ms() is None


def test_another_package_starts_without_the_slowdowns_of_the_last(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "one", ADAPTIVE)
    rig.enter(2000 * MIB)
    assert [rig.tick(2000 * MIB, requests=3, compute_s=0.2) for _ in range(5)][-1] == "small"
    made = package("2.0.0", [(BEST, b"{}"), (SMALL, b"{}")])
    made.write_to(tmp_path / "two")
    rig.opened = open_package(tmp_path / "two", made.digest, TRUST)
    rig.enter(2000 * MIB, best=12.0, small=3.0)
    assert rig.adaptation.active()[1] == "best", "measured are 12 ms, 100 allowed"
    assert rig.adaptation.decision is not None
    assert rig.adaptation.decision.inputs["slowdown"] == 1.0


def test_levers_reach_what_runs_requests_and_applications(tmp_path: Path) -> None:
    rig = Rig(tmp_path, PolicySpec(kind="rules", dwell_s=0.0))
    first = rig.adaptation.advice()
    assert (first.sampling_ratio, first.defer) == (1.0, True)
    rig.enter(2000 * MIB)
    assert rig.adaptation.advice() == Advice()
    hot = msgspec.structs.replace(health(2000 * MIB), headroom=0.95)
    joins, told = [], []
    for headroom in (0.95, None, 0.2):
        rig.clock.advance(1.0)
        rig.adaptation.tick(msgspec.structs.replace(hot, headroom=headroom))
        joins.append(rig.server.running_as.joins)
        told.append(rig.adaptation.advice())
    assert joins == [False, False, True], "what was hot is not cool because nobody knows"
    assert [advice.defer for advice in told] == [True, True, False]
    assert told[0].reasons == ("heat: headroom 0.95",)
    assert told[0].sampling_ratio < 0.5


def test_what_may_wait_waits_for_the_variant_that_is_being_started(tmp_path: Path) -> None:
    rig = Rig(tmp_path, PolicySpec(kind="rules", dwell_s=0.0))
    rig.enter(2000 * MIB)
    during = []
    rig.server.hook = lambda call: during.append((call, rig.adaptation.advice().defer))
    rig.adaptation.pinned = "small"
    rig.tick(2000 * MIB)
    assert ("prepare", True) in during
    assert not rig.adaptation.advice().defer


def test_a_reading_that_no_device_can_have_reaches_no_policy(tmp_path: Path) -> None:
    rig = Rig(tmp_path, ADAPTIVE)
    rig.enter(2000 * MIB)
    for headroom in (0.2, float("nan"), 1e200):
        rig.clock.advance(1.0)
        readings = msgspec.structs.replace(health(2000 * MIB), headroom=headroom)
        rig.adaptation.tick(readings)
    decision = rig.adaptation.decision
    assert decision is not None
    assert decision.inputs["headroom"] is None
    assert decision.variant == "best"


def test_the_memory_of_all_workers_decides(tmp_path: Path) -> None:
    several = msgspec.structs.replace(ADAPTIVE, sharing=Sharing(workers=4))
    rig = Rig(tmp_path, several)
    rig.enter(900 * MIB)  # three of the best, and the reserve
    assert rig.adaptation.active()[1] == "small"
    assert rig.server.running_as.workers == 4
    rig.server.most = 2
    took = [rig.tick(900 * MIB, requests=1, compute_s=0.005) for _ in range(60)]
    assert took[-1] == "best"


def test_the_version_before_is_the_first_to_go_when_memory_is_short(tmp_path: Path) -> None:
    keeping = msgspec.structs.replace(ADAPTIVE, sharing=Sharing(keep_previous=True))
    rig = Rig(tmp_path, keeping)
    rig.enter(900 * MIB)
    assert rig.server.running_as.keeps_previous
    rig.tick(20 * MIB)
    assert not rig.server.running_as.keeps_previous
