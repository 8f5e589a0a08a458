"""A way back to what devices had does not wait for those that are offline."""

from __future__ import annotations

from dataclasses import replace

from controller.domain.rollout_policy import decide
from controller.domain.rollout_view import InFlight, Limits, RolloutView, StageSpec
from controller.domain.states import RolloutState

AWAY = InFlight(device="d0", online=False, online_s=5.0, away_s=5.0, phase="activating")
BEGUN = RolloutView(
    now_s=100.0,
    state=RolloutState.RUNNING,
    limits=Limits(
        max_in_flight=100,
        soak_s=0.0,
        device_deadline_s=60.0,
        offline_limit_s=600.0,
        max_failures=0,
        max_failure_percent=None,
        min_finished=10,
        approval=False,
    ),
    is_way_back=True,
    stages=(StageSpec(count=1), StageSpec(percent=100.0)),
    stage=1,
    stage_complete_at_s=None,
    approved_stage=1,
    initial_devices=3,
    succeeded=0,
    failed=0,
    in_flight=(AWAY,),
    pending=2,
    candidates=("d1", "d2"),
)


def test_a_stage_goes_on_without_a_device_that_left_on_its_way_back() -> None:
    decision = decide(BEGUN)
    assert (decision.action, decision.parted) == ("advance", ("d0",))
    assert decide(replace(BEGUN, is_way_back=False)).action == "hold"


def test_it_goes_on_where_the_devices_that_a_stage_chooses_have_not_come_online() -> None:
    chosen = replace(BEGUN, in_flight=(), pending=3, reachable=1, candidates=())
    assert decide(chosen).action == "advance"
    assert decide(replace(chosen, is_way_back=False)).action == "hold"


def test_only_its_end_waits_for_them() -> None:
    others = replace(BEGUN, stage=2, succeeded=2, pending=0, in_flight=(), waiting=1)
    held = decide(others)
    assert (held.action, held.stage_complete_at_s) == ("hold", 100.0)
    late = replace(others, now_s=700.0, stage_complete_at_s=100.0)
    assert decide(late).action == "finish"
