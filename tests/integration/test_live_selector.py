"""What serves and chooses, joined as the benchmark of a real machine does, beside neighbours."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from benchmarks.policies.live import PROFILE, Schedule, play
from benchmarks.policies.live_package import make
from wire.policy import Objective, PolicySpec

PERIOD_S = 0.05


def test_what_can_never_be_in_time_never_serves_and_no_request_is_lost(tmp_path: Path) -> None:
    made = make(tmp_path / "package", PROFILE, 0.3)
    # The large variant takes twice as long at best; a slow machine makes neither any faster.
    deadline_ms = made.latency_ms["large"] / 2.0
    spec = PolicySpec(kind="adaptive", objective=Objective(deadline_ms=deadline_ms))
    schedule = Schedule(period_s=PERIOD_S, cycles=1, cycle_s=4.0, quiet_s=1.0, busy_s=1.5)
    before = set(psutil.Process(os.getpid()).children(recursive=True))
    done = play(made, spec, schedule)
    assert len(done.answers) == round(schedule.duration_s / PERIOD_S)
    # A machine that is busy with other work may refuse some: those would have been late.
    assert {answer.variant for answer in done.answers} - {None} == {"small"}
    assert done.switches == 0
    last = done.looks[-1].decision
    assert last is not None
    assert "answers within" in last.verdicts["large"]
    assert last.state.estimates.demand_per_s > 0.0
    left = set(psutil.Process(os.getpid()).children(recursive=True)) - before
    assert not left, "neighbours and workers have ended"


def test_a_pin_holds_against_the_policy(tmp_path: Path) -> None:
    made = make(tmp_path / "package", PROFILE, 0.3)
    spec = PolicySpec(kind="adaptive", objective=Objective(deadline_ms=0.1))
    schedule = Schedule(period_s=0.2, cycles=1, cycle_s=1.0, quiet_s=1.0, busy_s=0.1)
    done = play(made, spec, schedule, pinned="large")
    assert {answer.variant for answer in done.answers} == {"large"}
