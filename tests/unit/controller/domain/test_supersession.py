"""When a rollout may take devices out of an older one, and how both end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.domain.rollout_policy import decide
from controller.domain.rollout_view import InFlight, Limits, RolloutView, StageSpec
from controller.domain.states import DeploymentState, RolloutState
from controller.domain.supersession import Met, may_take

VIEW = RolloutView(
    now_s=1000.0,
    state=RolloutState.RUNNING,
    limits=Limits(
        max_in_flight=100,
        soak_s=500.0,
        device_deadline_s=60.0,
        offline_limit_s=600.0,
        max_failures=0,
        max_failure_percent=None,
        min_finished=10,
        approval=True,
    ),
    stages=(StageSpec(count=5), StageSpec(percent=100.0)),
    stage=1,
    stage_complete_at_s=None,
    approved_stage=1,
    initial_devices=20,
    succeeded=3,
    failed=0,
    in_flight=(),
    pending=0,
    superseded_by="newer",
)


@pytest.mark.parametrize(
    ("priority", "asked", "may"),
    [(6, False, True), (6, True, True), (5, True, True), (5, False, False), (4, True, False)],
)
def test_priority(priority: int, asked: bool, may: bool) -> None:
    met = Met(rollout="older", priority=5)
    assert may_take(met, priority=priority, asked=asked) is may


def test_what_has_not_started_moves() -> None:
    met = Met(rollout="older", priority=0)
    for device, state in zip("cba", DeploymentState, strict=False):
        met.add(device, state)
    assert (met.moves, met.stays, met.first) == (["c"], ["b", "a"], "a")


@pytest.mark.parametrize("state", [RolloutState.RUNNING, RolloutState.PAUSED])
def test_one_that_was_superseded_ends_when_nothing_is_left(state: RolloutState) -> None:
    view = replace(VIEW, state=state)
    decision = decide(view)
    assert (decision.action, decision.leave) == ("finish", 0)
    assert decision.reason == "rollout newer took its devices, and what had begun has ended"
    working = replace(view, in_flight=(InFlight(device="x", online_s=1.0),))
    for busy in (working, replace(view, pending=1), replace(view, control=1)):
        assert decide(busy).action == "hold"
    assert decide(replace(view, failed=1)).action == "halt"


def test_the_newer_one_does_not_end_before_the_older() -> None:
    limits = replace(VIEW.limits, soak_s=0.0, approval=False)
    newer = replace(VIEW, limits=limits, superseded_by="", stage=2, awaits="older")
    assert decide(newer).reason == "waits for devices that finish in rollout older"
    assert decide(replace(newer, awaits="")).action == "finish"
