from __future__ import annotations

from dataclasses import replace

from controller.domain.gates.states import GateState
from controller.domain.rollout_notices import kind_of
from controller.domain.rollout_policy import decide
from controller.domain.rollout_view import GateView, Limits, RolloutView, StageSpec
from controller.domain.stage_shadow import ShadowView
from controller.domain.states import RolloutState

COMPLETE = RolloutView(
    now_s=100.0,
    state=RolloutState.RUNNING,
    limits=Limits(
        max_in_flight=10, soak_s=0.0, device_deadline_s=60.0, offline_limit_s=60.0, max_failures=0,
        max_failure_percent=None, min_finished=10, approval=True,
    ),
    stages=(StageSpec(count=1), StageSpec(percent=100.0)),
    stage=1,
    stage_complete_at_s=90.0,
    approved_stage=1,
    initial_devices=4,
    succeeded=1,
    failed=0,
    in_flight=(),
    pending=3,
    candidates=("a",),
)  # fmt: skip


def kind(view: RolloutView) -> str | None:
    decision = decide(view)
    return kind_of(decision.action, decision.reason)


def test_kinds_follow_from_what_the_policy_decides() -> None:
    """It says in words that it waits for approval, or that a gate failed: these are the words."""
    assert kind(COMPLETE) == "waits-for-approval"
    assert kind(replace(COMPLETE, approved_stage=2)) == "stage-begun"
    assert kind(replace(COMPLETE, failed=1)) == "halted"
    gate = GateView(text="p95(inference_latency_ms) <= +10%", state=GateState.FAIL, reason="+20%")
    assert kind(replace(COMPLETE, gates=(gate,))) == "gate-failed"
    shadow = ShadowView(state=GateState.FAIL, reason="98 % agree")
    assert kind(replace(COMPLETE, shadow=shadow)) == "shadow-failed"
    assert kind(replace(COMPLETE, shadow=ShadowView())) is None
    assert [kind_of(each, "") for each in ("shadow", "shadow-pass")] == [
        "shadow-begun",
        "shadow-passed",
    ]
    soaking = replace(COMPLETE.limits, soak_s=60.0)
    assert kind(replace(COMPLETE, limits=soaking)) is None
