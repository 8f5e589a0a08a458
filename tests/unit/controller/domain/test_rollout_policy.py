"""What a rollout does next."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.gates.states import GateState
from controller.domain.rollout_policy import decide, wanted
from controller.domain.rollout_view import GateView, InFlight, Limits, RolloutView, StageSpec
from controller.domain.stage_progress import holding, stage_states, stage_targets
from controller.domain.stage_shadow import ShadowNeed, ShadowView
from controller.domain.states import ACTIVE_ROLLOUTS, RolloutState

LIMITS = Limits(
    max_in_flight=100,
    soak_s=0.0,
    device_deadline_s=60.0,
    offline_limit_s=600.0,
    max_failures=0,
    max_failure_percent=None,
    min_finished=10,
    approval=False,
)
VIEW = RolloutView(
    now_s=1000.0,
    state=RolloutState.RUNNING,
    limits=LIMITS,
    stages=(StageSpec(percent=10.0), StageSpec(percent=100.0)),
    stage=1,
    stage_complete_at_s=None,
    approved_stage=1,
    initial_devices=20,
    succeeded=0,
    failed=0,
    in_flight=(),
    pending=20,
    candidates=tuple(f"d{n:02}" for n in range(20)),
)


def test_the_first_stage_starts_its_share() -> None:
    decision = decide(VIEW)
    assert (decision.action, decision.start) == ("hold", ("d00", "d01"))


def test_shares_are_rounded_up_and_never_by_a_hair() -> None:
    view = replace(VIEW, stages=(StageSpec(percent=10), StageSpec(percent=100)))
    for devices, target in ((1, 1), (9, 1), (10, 1), (11, 2), (30, 3), (70, 7), (1000, 100)):
        sized = replace(view, initial_devices=devices, pending=devices)
        assert stage_targets(sized) == (target, devices)


def test_stages_are_cumulative_and_no_larger_than_the_fleet() -> None:
    stages = (StageSpec(count=5), StageSpec(percent=10.0), StageSpec(count=500))
    assert stage_targets(replace(VIEW, stages=stages)) == (5, 5, 20)


def test_only_the_last_stage_grows_with_the_fleet() -> None:
    grown = replace(VIEW, pending=40)
    assert stage_targets(grown) == (2, 40)


def test_the_cap_holds_back() -> None:
    limits = replace(LIMITS, max_in_flight=3)
    view = replace(
        VIEW, limits=limits, stage=2, in_flight=_flying("a", "b"), succeeded=2, pending=16
    )
    assert len(decide(view).start) == 1


def test_one_failure_too_many_halts() -> None:
    view = replace(VIEW, failed=1, succeeded=1, pending=18)
    decision = decide(view)
    assert decision.action == "halt"
    assert decision.reason == "1 device failed; allowed: 0"
    assert decision.start == ()


def test_silence_past_the_deadline_is_failure() -> None:
    view = replace(VIEW, in_flight=(InFlight(device="mute", online_s=61.0),), pending=19)
    decision = decide(view)
    assert (decision.action, decision.silent) == ("halt", ("mute",))
    assert "sent no report before the deadline" in decision.reason
    still = replace(view, in_flight=(InFlight(device="mute", online_s=60.0),))
    assert decide(still).silent == ()


def test_a_share_of_failures_halts_once_enough_have_finished() -> None:
    limits = replace(LIMITS, max_failures=100, max_failure_percent=20.0, min_finished=10)
    few = replace(VIEW, limits=limits, stage=2, succeeded=4, failed=5, pending=11)
    assert decide(few).action == "hold"
    enough = replace(few, succeeded=7, failed=3, pending=10)
    assert decide(enough).action == "halt"
    assert decide(replace(enough, succeeded=8, failed=2)).action == "hold"


def test_a_failed_device_is_not_replaced() -> None:
    limits = replace(LIMITS, max_failures=5)
    view = replace(VIEW, limits=limits, succeeded=1, failed=1, pending=18)
    decision = decide(view)
    assert (decision.action, decision.start) == ("advance", ())


def test_a_paused_rollout_starts_nothing_and_is_still_judged() -> None:
    paused = replace(VIEW, state=RolloutState.PAUSED)
    assert decide(paused).start == ()
    assert decide(replace(paused, failed=1)).action == "halt"
    complete = replace(paused, succeeded=2, pending=18)
    assert decide(complete).action == "hold"


@pytest.mark.parametrize(
    "state", [RolloutState.HALTED, RolloutState.ABORTED, RolloutState.SUCCEEDED]
)
def test_an_ended_rollout_does_nothing(state: RolloutState) -> None:
    decision = decide(replace(VIEW, state=state, failed=9))
    assert (decision.action, decision.start, decision.silent) == ("hold", (), ())


def test_a_complete_stage_soaks_before_the_next() -> None:
    limits = replace(LIMITS, soak_s=30.0)
    view = replace(VIEW, limits=limits, succeeded=2, pending=18)
    first = decide(view)
    assert (first.action, first.stage_complete_at_s) == ("hold", 1000.0)
    soaking = replace(view, now_s=1029.0, stage_complete_at_s=1000.0)
    assert decide(soaking).action == "hold"
    assert decide(soaking).reason == first.reason
    assert decide(replace(soaking, now_s=1030.0)).action == "advance"
    assert stage_states(soaking) == ("soaking", "waiting")


def test_a_success_that_is_taken_back_while_soaking_halts() -> None:
    limits = replace(LIMITS, soak_s=30.0)
    view = replace(VIEW, limits=limits, succeeded=1, failed=1, pending=18, stage_complete_at_s=999)
    assert decide(view).action == "halt"


def test_the_next_stage_waits_for_approval() -> None:
    limits = replace(LIMITS, approval=True)
    view = replace(VIEW, limits=limits, succeeded=2, pending=18, stage_complete_at_s=990.0)
    assert decide(view).reason == "stage 2 waits for approval"
    assert stage_states(view) == ("awaiting_approval", "waiting")
    assert decide(replace(view, approved_stage=2)).action == "advance"


def test_the_last_stage_needs_no_approval() -> None:
    limits = replace(LIMITS, approval=True)
    view = replace(VIEW, limits=limits, stage=2, succeeded=20, pending=0, candidates=())
    assert decide(view).action == "finish"


def test_a_late_device_reopens_the_last_stage() -> None:
    view = replace(
        VIEW,
        stage=2,
        succeeded=20,
        pending=1,
        candidates=("late",),
        limits=replace(LIMITS, soak_s=60.0),
        stage_complete_at_s=990.0,
    )
    decision = decide(view)
    assert decision.start == ("late",)
    assert decision.stage_complete_at_s is None


def test_a_rollout_whose_devices_all_left_finishes() -> None:
    view = replace(VIEW, stage=1, pending=0, candidates=())
    assert decide(view).action == "advance"
    assert decide(replace(view, stage=2)).action == "finish"


def _flying(*devices: str) -> tuple[InFlight, ...]:
    return tuple(InFlight(device=device, online_s=10.0) for device in devices)


def _away(phase: str, away_s: float) -> InFlight:
    return InFlight(device="gone", online=False, online_s=5.0, away_s=away_s, phase=phase)


def test_a_rollout_starts_only_what_is_online() -> None:
    view = replace(VIEW, candidates=("d00",))
    assert decide(view).start == ("d00",)
    none = decide(replace(VIEW, candidates=()))
    assert (none.action, none.start, none.stage_complete_at_s) == ("hold", (), 1000.0)
    assert stage_states(replace(VIEW, stage_complete_at_s=1.0))[0] == "running"
    assert none.reason == "stage 1 waits for the first of its devices to come online"


def test_a_stage_waits_for_devices_that_are_offline_and_goes_on_without_them() -> None:
    view = replace(VIEW, now_s=500.0, succeeded=1, pending=19, candidates=())
    waits = decide(view)
    assert (waits.action, waits.stage_complete_at_s) == ("hold", 500.0)
    assert waits.reason == "stage 1 waits for 1 device that is offline, for 10m at most"
    later = replace(view, now_s=1099.0, stage_complete_at_s=500.0)
    assert decide(later).reason == waits.reason
    assert stage_states(later) == ("waiting_for_devices", "waiting")
    assert decide(replace(later, now_s=1100.0)).action == "advance"


def test_a_stage_in_which_nobody_has_finished_is_no_proof_however_long_it_waits() -> None:
    view = replace(VIEW, now_s=1e9, candidates=(), stage_complete_at_s=0.0)
    assert decide(view).action == "hold"


def test_a_stage_whose_devices_all_went_away_tries_one_more_after_each_limit() -> None:
    view = replace(VIEW, waiting=2, pending=18, stage_complete_at_s=401.0)
    assert decide(view).start == ()
    later = decide(replace(view, stage_complete_at_s=400.0))
    assert (later.action, later.start, later.stage_complete_at_s) == ("hold", ("d00",), None)
    assert later.reason == "stage 1 tries another device, as none has come back"
    assert decide(replace(view, waiting=1, succeeded=1, now_s=1001.0)).action == "advance"


def test_the_last_stage_ends_without_devices_that_are_offline_and_leaves_them_their_order() -> None:
    view = replace(
        VIEW, stage=2, succeeded=17, waiting=1, pending=2, candidates=(),
        now_s=700.0, stage_complete_at_s=100.0,
    )  # fmt: skip
    decision = decide(view)
    assert (decision.action, decision.leave) == ("finish", 2)
    expected = "17 of 20 devices installed it; 3 devices are offline and get it on return"
    assert decision.reason == expected


def test_a_last_stage_below_all_leaves_no_order_to_more_devices_than_it_has() -> None:
    view = replace(
        VIEW, stages=(StageSpec(count=3),), succeeded=2, pending=18, candidates=(),
        now_s=700.0, stage_complete_at_s=100.0,
    )  # fmt: skip
    assert decide(view).leave == 1


def test_approval_takes_the_place_of_waiting_for_devices() -> None:
    limits = replace(LIMITS, approval=True)
    view = replace(VIEW, limits=limits, succeeded=1, pending=19, candidates=())
    assert decide(view).reason == "stage 2 waits for approval"
    assert decide(replace(view, approved_stage=2)).action == "advance"


@pytest.mark.parametrize("phase", ["", "preflight", "fetching", "verifying", "staging"])
def test_a_device_that_goes_offline_before_the_release_ran_waits(phase: str) -> None:
    view = replace(VIEW, in_flight=(_away(phase, 1e9),), pending=19)
    decision = decide(view)
    assert (decision.action, decision.parted, decision.lost) == ("hold", ("gone",), ())
    assert decision.start == ("d00",), "it keeps its place in the stage"


@pytest.mark.parametrize("phase", ["probing", "switching", "confirming", "reverting", "new"])
def test_a_device_that_goes_offline_when_the_release_may_have_run_is_lost_in_the_end(
    phase: str,
) -> None:
    view = replace(VIEW, in_flight=(_away(phase, 600.0),), pending=19)
    decision = decide(view)
    assert (decision.action, decision.parted, decision.lost) == ("hold", (), ())
    assert decision.start == ("d00",), "it keeps its place in the stage"
    gone = decide(replace(view, in_flight=(_away(phase, 600.1),)))
    assert (gone.action, gone.lost) == ("halt", ("gone",))
    assert (
        gone.reason == "1 device failed, 1 of them went offline and did not come back; allowed: 0"
    )


def test_a_deadline_is_for_the_time_online() -> None:
    item = InFlight(device="slow", online_s=59.0, away_s=1e6, phase="probing")
    view = replace(VIEW, in_flight=(item,), pending=19)
    assert decide(view).silent == ()
    assert decide(replace(view, in_flight=(replace(item, online_s=61.0),))).silent == ("slow",)


def test_a_device_that_returns_is_in_flight_again() -> None:
    limits = replace(LIMITS, max_in_flight=2)
    view = replace(
        VIEW, limits=limits, stage=2, succeeded=10, waiting=1, returned=("late",), pending=9
    )
    decision = decide(view)
    assert (decision.returned, len(decision.start)) == (("late",), 1)
    assert decide(replace(view, state=RolloutState.PAUSED)).returned == ("late",)


def test_devices_that_return_together_are_all_in_flight_and_no_other_starts() -> None:
    limits = replace(LIMITS, max_in_flight=2)
    back = ("one", "three", "two")
    view = replace(VIEW, limits=limits, stage=2, waiting=3, returned=back, pending=17)
    assert (decide(view).returned, decide(view).start) == (back, ())


def test_acknowledged_failures_do_not_count() -> None:
    view = replace(VIEW, succeeded=1, failed=1, pending=18)
    assert decide(view).action == "halt"
    assert decide(replace(view, acknowledged=1)).action == "advance"
    again = decide(replace(view, failed=2, acknowledged=1, pending=17))
    assert again.reason == (
        "1 device failed, not counting 1 that the operator acknowledged; allowed: 0"
    )


GATED = replace(
    VIEW,
    stages=(StageSpec(count=10), StageSpec(percent=100.0)),
    succeeded=10,
    pending=5,
    control=5,
    stage_complete_at_s=900.0,
    candidates=tuple(f"d{n:02}" for n in range(5)),
)
"""A rollout whose first stage is complete, with five devices in its control group."""


def gate(
    state: GateState, *, at_s: float = 950.0, waived: bool = False, stage: int | None = None
) -> GateView:
    return GateView(
        text="p95(x) <= +1%",
        stage=stage,
        state=state,
        reason="+2 %",
        looked_at_s=at_s,
        is_waived=waived,
    )


@pytest.mark.parametrize(
    ("gates", "action", "reason"),
    [
        ((gate(GateState.PASS),), "advance", "stage 1 is complete: stage 2 begins"),
        ((gate(GateState.FAIL),), "halt", "gate p95(x) <= +1% failed: +2 %"),
        ((gate(GateState.PASS), gate(GateState.FAIL)), "halt", "gate p95(x) <= +1% failed: +2 %"),
        ((gate(GateState.FAIL, waived=True),), "advance", "stage 1 is complete: stage 2 begins"),
        ((gate(GateState.HOLD),), "hold", "stage 1 waits for gates: p95(x) <= +1%: +2 %"),
        (
            (gate(GateState.PASS, at_s=899.0),),
            "hold",
            "stage 1 waits for gates: p95(x) <= +1%: not looked at yet in this stage",
        ),
    ],
)
def test_a_stage_ends_when_its_gates_have_passed(
    gates: tuple[GateView, ...], action: str, reason: str
) -> None:
    decision = decide(replace(GATED, gates=gates))
    assert (decision.action, decision.reason) == (action, reason)


@pytest.mark.parametrize(
    ("state", "waived", "action", "reason"),
    [
        (GateState.HOLD, False, "hold", "stage 1 waits for its shadow: 412 of 1,000 requests"),
        (GateState.FAIL, False, "halt", "the shadow before stage 1 failed: 412 of 1,000 requests"),
        (GateState.PASS, False, "hold", "stage 1 brings the release to 2 devices"),
        (GateState.HOLD, True, "hold", "stage 1 brings the release to 2 devices"),
        (GateState.FAIL, True, "hold", "stage 1 brings the release to 2 devices"),
    ],
)
def test_a_stage_begins_when_its_shadow_has_passed(
    state: GateState, waived: bool, action: str, reason: str
) -> None:
    shadow = ShadowView(state=state, reason="412 of 1,000 requests", is_waived=waived)
    view = replace(VIEW, shadow=shadow)
    decision = decide(view)
    assert (decision.action, decision.reason) == (action, reason)
    assert bool(decision.start) == reason.startswith("stage 1 brings")
    assert (stage_states(view)[0] == "running") == bool(decision.start)
    assert stage_states(view)[1] == "waiting"


def test_the_end_of_a_stage_says_that_the_next_one_waits_for_a_shadow() -> None:
    stages = (VIEW.stages[0], StageSpec(percent=100.0, shadow=ShadowNeed(agreement_percent=99.0)))
    view = replace(VIEW, stages=stages, succeeded=2, pending=18)
    assert decide(view).reason == ("stage 1 is complete: stage 2 begins when its shadow agrees")


def test_a_gate_that_passed_while_a_stage_soaked_is_looked_at_once_more_at_its_end() -> None:
    soaked = replace(GATED, limits=replace(GATED.limits, soak_s=50.0), now_s=950.0)
    early, at_end = (
        replace(soaked, gates=(gate(GateState.PASS, at_s=at),)) for at in (949.0, 950.0)
    )
    assert decide(early).action == "hold"
    assert decide(early).reason.endswith("passed while it soaked, and is looked at once more")
    assert decide(at_end).action == "advance"


def test_the_operator_may_let_a_stage_end_whose_gates_hold() -> None:
    view = replace(GATED, gates=(gate(GateState.HOLD),))
    assert stage_states(view)[0] == "waiting_for_gates"
    assert decide(replace(view, gates_passed_by_hand=1)).action == "advance"
    assert decide(replace(view, gates_passed_by_hand=1, gates=(gate(GateState.FAIL),))).action == (
        "halt"
    )


def test_the_control_group_gets_the_release_at_the_end_of_the_last_stage() -> None:
    last = replace(GATED, stage=2, succeeded=15, pending=0, candidates=())
    held = decide(replace(last, gates=(gate(GateState.HOLD),)))
    assert (held.action, held.releases_control, held.start) == ("hold", False, ())
    passed = decide(replace(last, gates=(gate(GateState.PASS),)))
    assert (passed.action, passed.releases_control) == ("hold", True)
    assert passed.reason == "stage 2 is complete: the control group of 5 devices gets the release"


def test_a_stage_of_too_few_devices_does_not_wait_for_gates() -> None:
    few = replace(GATED, stages=(StageSpec(count=4), StageSpec(percent=100)), succeeded=4)
    assert decide(replace(few, gates=(gate(GateState.HOLD),))).action == "advance"


def test_a_stage_that_was_to_wait_for_gates_waits_also_when_devices_have_left() -> None:
    last = replace(GATED, stage=2, pending=0, candidates=(), gates=(gate(GateState.HOLD),))
    few = replace(last, succeeded=3)
    assert decide(few).reason.startswith("stage 2 waits for gates: ")
    assert decide(replace(few, gates_passed_by_hand=2)).releases_control
    nobody = replace(last, succeeded=0, control=0)
    assert decide(nobody).action == "finish"


def test_a_gate_of_one_stage_says_nothing_in_the_others() -> None:
    bad = gate(GateState.FAIL, stage=2)
    assert decide(replace(GATED, gates=(bad,))).action == "advance"
    assert decide(replace(GATED, gates=(gate(GateState.FAIL, stage=1),))).action == "halt"
    assert holding(replace(GATED, gates=(gate(GateState.HOLD, stage=2),))) == ()


def test_a_stage_soaks_and_waits_for_approval_by_its_own_rules() -> None:
    own = StageSpec(percent=10, soak_s=60.0, approval=True)
    view = replace(VIEW, stages=(own, VIEW.stages[1]), succeeded=2, pending=18)
    soaking = replace(view, stage_complete_at_s=941.0)
    assert decide(soaking).reason == "stage 1 is complete and soaks for 60 s"
    waits = replace(view, stage_complete_at_s=940.0)
    assert decide(waits).reason == "stage 2 waits for approval"
    assert decide(replace(waits, stages=VIEW.stages)).action == "advance"
    always = replace(waits, limits=replace(LIMITS, approval=True))
    never = (replace(own, approval=False), VIEW.stages[1])
    assert decide(replace(always, stages=never)).action == "advance"


def test_a_stage_does_not_wait_for_more_devices_than_it_can_reach() -> None:
    chosen = StageSpec(count=5, selector="site=lab")
    view = replace(VIEW, stages=(chosen, VIEW.stages[1]), succeeded=4, pending=16, candidates=())
    gone = replace(view, reachable=0)
    assert decide(gone).action == "advance"
    away = decide(replace(view, reachable=1))
    assert away.reason == "stage 1 waits for 1 device that is offline, for 10m at most"


def test_the_rate_holds_devices_back_and_the_stage_goes_on() -> None:
    slow = replace(VIEW, may_start=0)
    assert (decide(slow).start, decide(slow).stage_complete_at_s) == ((), None)
    assert decide(slow).reason == decide(VIEW).reason
    assert decide(replace(VIEW, may_start=1)).start == ("d00",)
    assert wanted(replace(slow, succeeded=1, pending=19)) == 1


limits_strategy = st.builds(
    Limits,
    max_in_flight=st.integers(1, 12),
    soak_s=st.sampled_from((0.0, 5.0)),
    device_deadline_s=st.sampled_from((3.0, 50.0)),
    offline_limit_s=st.sampled_from((0.0, 4.0, 30.0)),
    max_failures=st.integers(0, 30),
    max_failure_percent=st.none() | st.floats(0, 100),
    min_finished=st.integers(1, 12),
    approval=st.booleans(),
    max_refused=st.none() | st.integers(0, 5),
    max_timed_out=st.none() | st.integers(0, 5),
    worst_case=st.booleans(),
)
stage_strategy = st.one_of(
    st.builds(StageSpec, count=st.integers(1, 40), percent=st.none()),
    st.builds(
        StageSpec,
        percent=st.floats(0.1, 100),
        soak_s=st.sampled_from((None, 0.0, 5.0)),
        approval=st.sampled_from((None, True, False)),
    ),
)
gate_strategy = st.builds(
    gate,
    st.sampled_from(GateState),
    at_s=st.floats(850, 1000),
    waived=st.booleans(),
    stage=st.none() | st.integers(1, 4),
)
shadow_strategy = st.none() | st.builds(
    ShadowView,
    state=st.sampled_from(GateState),
    reason=st.just("412 of 1,000 requests"),
    is_waived=st.booleans(),
)
phases = st.sampled_from(("", "fetching", "probing", "confirming"))


@st.composite
def views(draw: st.DrawFn) -> RolloutView:
    stages = tuple(draw(st.lists(stage_strategy, min_size=1, max_size=4)))
    in_flight = tuple(
        InFlight(
            device=f"f{n}",
            online=draw(st.booleans()),
            online_s=draw(st.floats(0, 100)),
            away_s=draw(st.floats(0, 100)),
            phase=draw(phases),
        )
        for n in range(draw(st.integers(0, 8)))
    )
    waiting = draw(st.integers(0, 5))
    offline, ready = draw(st.integers(0, 15)), draw(st.integers(0, 15))
    failed = draw(st.integers(0, 30))
    return RolloutView(
        now_s=1000.0,
        state=draw(st.sampled_from(RolloutState)),
        limits=draw(limits_strategy),
        stages=stages,
        stage=draw(st.integers(1, len(stages))),
        stage_complete_at_s=draw(st.none() | st.floats(900, 1000)),
        approved_stage=draw(st.integers(1, 4)),
        initial_devices=draw(st.integers(1, 40)),
        succeeded=draw(st.integers(0, 30)),
        failed=failed,
        acknowledged=draw(st.integers(0, failed)),
        in_flight=in_flight,
        waiting=waiting,
        returned=tuple(f"r{n}" for n in range(draw(st.integers(0, waiting)))),
        pending=offline + ready,
        reachable=draw(st.none() | st.integers(ready, offline + ready)),
        may_start=draw(st.none() | st.integers(0, 4)),
        control=draw(st.integers(0, 8)),
        gates=tuple(draw(st.lists(gate_strategy, max_size=3))),
        gates_passed_by_hand=draw(st.integers(0, 4)),
        shadow=draw(shadow_strategy),
        candidates=tuple(f"w{n}" for n in range(ready)),
    )


@given(views())
def test_a_decision_needs_no_more_candidates_than_it_wants(view: RolloutView) -> None:
    assert decide(replace(view, candidates=view.candidates[: wanted(view)])) == decide(view)


@given(views())
def test_nothing_starts_beyond_the_cap_or_the_target(view: RolloutView) -> None:
    decision = decide(view)
    if decision.start:
        gone = len(decision.silent) + len(decision.lost) + len(decision.parted)
        busy = len(view.in_flight) - gone + len(decision.returned)
        is_proven = view.finished or decision.silent or decision.lost
        extra = 0 if is_proven else 1
        assert view.state is RolloutState.RUNNING
        assert decision.action == "hold"
        assert busy + len(decision.start) <= view.limits.max_in_flight
        target = stage_targets(view)[view.stage - 1]
        assert len(decision.start) <= max(target - view.started, extra)
        assert view.may_start is None or len(decision.start) <= view.may_start
        assert view.reachable is None or len(decision.start) <= view.reachable
        assert len(set(decision.start)) == len(decision.start)


@given(views())
def test_a_device_in_flight_has_one_fate_and_a_reason_for_it(view: RolloutView) -> None:
    decision = decide(view)
    items = {item.device: item for item in view.in_flight}
    fates = (*decision.silent, *decision.lost, *decision.parted)
    assert len(set(fates)) == len(fates)
    limits = view.limits
    assert all(items[name].online_s > limits.device_deadline_s for name in decision.silent)
    assert all(items[name].away_s > limits.offline_limit_s for name in decision.lost)
    assert not any(items[name].online for name in (*decision.lost, *decision.parted))


@given(views())
def test_nothing_halts_but_failures_gates_and_shadows_that_nobody_acknowledged(
    view: RolloutView,
) -> None:
    decision = decide(view)
    new = view.failed - view.acknowledged + len(decision.silent) + len(decision.lost)
    fails = any(each.state is GateState.FAIL and not each.is_waived for each in view.asked)
    fails |= view.shadow is not None and view.shadow.fails
    if decision.action == "halt":
        assert new > 0 or fails
    if fails and view.state in ACTIVE_ROLLOUTS:
        assert decision.action == "halt"


@given(views())
def test_no_stage_ends_while_a_gate_holds_it(view: RolloutView) -> None:
    decision = decide(view)
    if holding(view):
        assert decision.action in {"hold", "halt"}
        assert not decision.releases_control
    if decision.releases_control:
        assert view.stage == len(view.stages)
        assert not decision.start
    if decision.action == "finish":
        assert not view.control


@given(views())
def test_nobody_starts_in_a_stage_whose_shadow_holds(view: RolloutView) -> None:
    decision = decide(view)
    if view.shadow is not None and view.shadow.holds:
        assert not decision.start
        assert decision.action in {"hold", "halt"}


@given(views())
def test_nothing_goes_on_or_ends_while_a_device_could_start_or_is_at_work(
    view: RolloutView,
) -> None:
    decision = decide(view)
    if decision.action in {"advance", "finish"}:
        gone = len(decision.silent) + len(decision.lost) + len(decision.parted)
        assert len(view.in_flight) == gone
        assert not decision.returned
        target = min(stage_targets(view)[view.stage - 1], view.devices - view.control)
        if view.reachable is not None:
            target = min(target, view.started + view.reachable)
        assert view.started >= target or not view.candidates
        assert decision.leave <= view.pending - len(view.candidates)


@given(views(), st.integers(1, 5))
def test_more_failures_never_make_it_bolder(view: RolloutView, more: int) -> None:
    turned = min(more, view.succeeded)
    worse = replace(view, succeeded=view.succeeded - turned, failed=view.failed + turned)
    before, after = decide(view), decide(worse)
    assert len(after.start) <= len(before.start)
    if before.action == "halt":
        assert after.action == "halt"
    if before.action == "hold":
        assert after.action in {"hold", "halt"}


@given(views())
def test_a_decision_is_repeatable(view: RolloutView) -> None:
    assert decide(view) == decide(view)
    assert len(decide(view).reason) < 500


@dataclasses.dataclass
class Member:
    """A device of a fleet, and what a rollout knows of it."""

    kind: str
    """`good` and `bad` answer; `silent` does not; `parts` and `dies` go offline once started, and
    `dies` while the release runs."""

    back_after: int | None = None
    """After how many steps offline it returns; None for never."""

    online: bool = True
    state: str = "pending"
    phase: str = ""
    online_s: float = 0.0
    away_s: float = 0.0
    steps_away: int = 0

    def act(self) -> None:
        """Let a second pass."""
        if not self.online:
            self.away_s += 1.0
            self.steps_away += 1
            if self.back_after is not None and self.steps_away > self.back_after:
                self.online = True
                if self.kind in {"parts", "dies"} and self.state != "failed":
                    self.kind = "good"
            return
        if self.state != "flying":
            return
        self.online_s += 1.0
        if self.kind in {"good", "bad"}:
            self.state = "succeeded" if self.kind == "good" else "failed"
        elif self.kind in {"parts", "dies"}:
            self.online, self.phase = False, "fetching" if self.kind == "parts" else "probing"


class Fleet:
    """A fleet under one rollout."""

    def __init__(
        self,
        view: RolloutView,
        members: dict[str, Member],
        control: frozenset[str] = frozenset(),
        gates: Callable[[], GateState] | None = None,
    ) -> None:
        self.view = view
        self.members = members
        self.control = control
        """The devices that are held out, until they are released."""

        self.gates = gates
        self.late: dict[str, Member] = {}
        self.most_started_in_flight = 0

    def among(self, state: str) -> list[str]:
        return [name for name, member in self.members.items() if member.state == state]

    def step(self) -> str:
        """Decide, carry it out, and let a second pass; return the action."""
        view = self.view = self._seen()
        decision = decide(view)
        for state, names in (
            ("failed", (*decision.silent, *decision.lost)),
            ("waiting", decision.parted),
            ("flying", (*decision.returned, *decision.start)),
        ):
            for name in names:
                self.members[name].state = state
        for name in (*decision.returned, *decision.start):
            self.members[name].away_s = 0.0
        if decision.start:
            flying = len(self.among("flying"))
            self.most_started_in_flight = max(self.most_started_in_flight, flying)
        assert not self.control.intersection(decision.start)
        if decision.releases_control:
            self.control = frozenset()
        if decision.action == "advance" and self.late:
            name, member = self.late.popitem()
            self.members[name] = member
        for member in self.members.values():
            member.act()
        self.view = replace(
            view,
            now_s=view.now_s + 1.0,
            stage=view.stage + (decision.action == "advance"),
            approved_stage=len(view.stages),
            stage_complete_at_s=decision.stage_complete_at_s,
        )
        return decision.action

    def _seen(self) -> RolloutView:
        members = self.members
        pending, waiting = self.among("pending"), self.among("waiting")
        held = self.control.intersection(pending)
        pending = [name for name in pending if name not in held]
        looked_at = () if self.gates is None or not held else (self._look(self.gates()),)
        ready = tuple(name for name in pending if members[name].online)
        return replace(
            self.view,
            succeeded=len(self.among("succeeded")),
            failed=len(self.among("failed")),
            in_flight=tuple(
                InFlight(
                    device=name,
                    online=members[name].online,
                    online_s=members[name].online_s,
                    away_s=members[name].away_s,
                    phase=members[name].phase,
                )
                for name in self.among("flying")
            ),
            waiting=len(waiting),
            returned=tuple(name for name in waiting if members[name].online),
            pending=len(pending),
            candidates=ready,
            control=len(held),
            gates=looked_at,
        )

    def _look(self, state: GateState) -> GateView:
        return gate(state, at_s=self.view.now_s)


members_strategy = st.builds(
    Member,
    kind=st.sampled_from(("good", "good", "good", "bad", "silent", "parts", "dies")),
    back_after=st.none() | st.integers(0, 40),
    online=st.sampled_from((True, True, True, False)),
)


@given(st.data())
def test_every_rollout_ends_once_a_device_has_finished(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 25))
    members = {f"d{n:02}": data.draw(members_strategy) for n in range(count)}
    stages = tuple(data.draw(st.lists(stage_strategy, min_size=1, max_size=4)))
    limits = data.draw(limits_strategy)
    fleet = Fleet(
        replace(VIEW, now_s=0.0, limits=limits, stages=stages, initial_devices=count), members
    )
    if data.draw(st.booleans()):
        fleet.control = frozenset(data.draw(st.sets(st.sampled_from(sorted(members)))))
        states = st.sampled_from((*[GateState.PASS] * 6, GateState.HOLD, GateState.FAIL))
        drawn = iter(data.draw(st.lists(states, max_size=60)))
        fleet.gates = lambda: next(drawn, GateState.PASS)
    fleet.late = {f"late{n}": data.draw(members_strategy) for n in range(2)}
    last = ""
    for _ in range(3000):
        last = fleet.step()
        if last in {"halt", "finish"}:
            break
    assert fleet.most_started_in_flight <= limits.max_in_flight
    failed, succeeded = fleet.among("failed"), fleet.among("succeeded")
    blameless = [name for name in failed if fleet.members[name].kind in {"good", "parts"}]
    assert not blameless, "a device that was only offline never counts as failed"
    if last == "halt":
        assert failed or fleet.view.gates
    elif last == "finish":
        own = (limits.max_refused or 0) + (limits.max_timed_out or 0)
        assert len(failed) <= limits.max_failures + own
    else:
        assert not failed
        assert not succeeded
        assert not fleet.view.in_flight
