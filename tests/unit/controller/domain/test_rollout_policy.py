"""What a rollout does next."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.rollout_policy import (
    InFlight,
    Limits,
    RolloutView,
    StageSpec,
    decide,
    stage_states,
    stage_targets,
)
from controller.domain.states import RolloutState

LIMITS = Limits(
    max_in_flight=100,
    soak_s=0.0,
    device_deadline_s=60.0,
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
    waiting=20,
    candidates=tuple(f"d{n:02}" for n in range(20)),
)


def test_the_first_stage_starts_its_share() -> None:
    decision = decide(VIEW)
    assert (decision.action, decision.start) == ("hold", ("d00", "d01"))


def test_shares_are_rounded_up_and_never_by_a_hair() -> None:
    view = replace(VIEW, stages=(StageSpec(percent=10), StageSpec(percent=100)))
    for devices, target in ((1, 1), (9, 1), (10, 1), (11, 2), (30, 3), (70, 7), (1000, 100)):
        sized = replace(view, initial_devices=devices, waiting=devices)
        assert stage_targets(sized) == (target, devices)


def test_stages_are_cumulative_and_no_larger_than_the_fleet() -> None:
    stages = (StageSpec(count=5), StageSpec(percent=10.0), StageSpec(count=500))
    assert stage_targets(replace(VIEW, stages=stages)) == (5, 5, 20)


def test_only_the_last_stage_grows_with_the_fleet() -> None:
    grown = replace(VIEW, waiting=40)
    assert stage_targets(grown) == (2, 40)


def test_the_cap_holds_back() -> None:
    limits = replace(LIMITS, max_in_flight=3)
    view = replace(
        VIEW, limits=limits, stage=2, in_flight=_flying("a", "b"), succeeded=2, waiting=16
    )
    assert len(decide(view).start) == 1


def test_one_failure_too_many_halts() -> None:
    view = replace(VIEW, failed=1, succeeded=1, waiting=18)
    decision = decide(view)
    assert decision.action == "halt"
    assert decision.reason == "1 device failed; allowed: 0"
    assert decision.start == ()


def test_silence_past_the_deadline_is_failure() -> None:
    view = replace(VIEW, in_flight=(InFlight(device="mute", started_at_s=939.0),), waiting=19)
    decision = decide(view)
    assert (decision.action, decision.expired) == ("halt", ("mute",))
    assert "sent no report before the deadline" in decision.reason
    assert decide(replace(view, now_s=999.0)).expired == ()


def test_a_share_of_failures_halts_once_enough_have_finished() -> None:
    limits = replace(LIMITS, max_failures=100, max_failure_percent=20.0, min_finished=10)
    few = replace(VIEW, limits=limits, stage=2, succeeded=4, failed=5, waiting=11)
    assert decide(few).action == "hold"
    enough = replace(few, succeeded=7, failed=3, waiting=10)
    assert decide(enough).action == "halt"
    assert decide(replace(enough, succeeded=8, failed=2)).action == "hold"


def test_a_failed_device_is_not_replaced() -> None:
    limits = replace(LIMITS, max_failures=5)
    view = replace(VIEW, limits=limits, succeeded=1, failed=1, waiting=18)
    decision = decide(view)
    assert (decision.action, decision.start) == ("advance", ())


def test_a_paused_rollout_starts_nothing_and_is_still_judged() -> None:
    paused = replace(VIEW, state=RolloutState.PAUSED)
    assert decide(paused).start == ()
    assert decide(replace(paused, failed=1)).action == "halt"
    complete = replace(paused, succeeded=2, waiting=18)
    assert decide(complete).action == "hold"


@pytest.mark.parametrize(
    "state", [RolloutState.HALTED, RolloutState.ABORTED, RolloutState.SUCCEEDED]
)
def test_an_ended_rollout_does_nothing(state: RolloutState) -> None:
    decision = decide(replace(VIEW, state=state, failed=9))
    assert (decision.action, decision.start, decision.expired) == ("hold", (), ())


def test_a_complete_stage_soaks_before_the_next() -> None:
    limits = replace(LIMITS, soak_s=30.0)
    view = replace(VIEW, limits=limits, succeeded=2, waiting=18)
    first = decide(view)
    assert (first.action, first.stage_complete_at_s) == ("hold", 1000.0)
    soaking = replace(view, now_s=1029.0, stage_complete_at_s=1000.0)
    assert decide(soaking).action == "hold"
    assert decide(soaking).reason == first.reason
    assert decide(replace(soaking, now_s=1030.0)).action == "advance"
    assert stage_states(soaking) == ("soaking", "waiting")


def test_a_success_that_is_taken_back_while_soaking_halts() -> None:
    limits = replace(LIMITS, soak_s=30.0)
    view = replace(VIEW, limits=limits, succeeded=1, failed=1, waiting=18, stage_complete_at_s=999)
    assert decide(view).action == "halt"


def test_the_next_stage_waits_for_approval() -> None:
    limits = replace(LIMITS, approval=True)
    view = replace(VIEW, limits=limits, succeeded=2, waiting=18, stage_complete_at_s=990.0)
    assert decide(view).reason == "stage 2 waits for approval"
    assert stage_states(view) == ("awaiting_approval", "waiting")
    assert decide(replace(view, approved_stage=2)).action == "advance"


def test_the_last_stage_needs_no_approval() -> None:
    limits = replace(LIMITS, approval=True)
    view = replace(VIEW, limits=limits, stage=2, succeeded=20, waiting=0, candidates=())
    assert decide(view).action == "finish"


def test_a_late_device_reopens_the_last_stage() -> None:
    view = replace(
        VIEW,
        stage=2,
        succeeded=20,
        waiting=1,
        candidates=("late",),
        limits=replace(LIMITS, soak_s=60.0),
        stage_complete_at_s=990.0,
    )
    decision = decide(view)
    assert decision.start == ("late",)
    assert decision.stage_complete_at_s is None


def test_a_rollout_whose_devices_all_left_finishes() -> None:
    view = replace(VIEW, stage=1, waiting=0, candidates=())
    assert decide(view).action == "advance"
    assert decide(replace(view, stage=2)).action == "finish"


def _flying(*devices: str, at_s: float = 990.0) -> tuple[InFlight, ...]:
    return tuple(InFlight(device=device, started_at_s=at_s) for device in devices)


limits_strategy = st.builds(
    Limits,
    max_in_flight=st.integers(1, 12),
    soak_s=st.sampled_from((0.0, 5.0)),
    device_deadline_s=st.sampled_from((3.0, 50.0)),
    max_failures=st.integers(0, 30),
    max_failure_percent=st.none() | st.floats(0, 100),
    min_finished=st.integers(1, 12),
    approval=st.booleans(),
)
stage_strategy = st.one_of(
    st.builds(StageSpec, count=st.integers(1, 40), percent=st.none()),
    st.builds(StageSpec, count=st.none(), percent=st.floats(0.1, 100)),
)


@st.composite
def views(draw: st.DrawFn) -> RolloutView:
    stages = tuple(draw(st.lists(stage_strategy, min_size=1, max_size=4)))
    in_flight = tuple(
        InFlight(device=f"f{n}", started_at_s=draw(st.floats(900, 1000)))
        for n in range(draw(st.integers(0, 8)))
    )
    waiting = draw(st.integers(0, 30))
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
        failed=draw(st.integers(0, 30)),
        in_flight=in_flight,
        waiting=waiting,
        candidates=tuple(f"w{n}" for n in range(waiting)),
    )


@given(views())
def test_nothing_starts_beyond_the_cap_or_the_target(view: RolloutView) -> None:
    decision = decide(view)
    if decision.start:
        busy = len(view.in_flight) - len(decision.expired)
        assert view.state is RolloutState.RUNNING
        assert decision.action == "hold"
        assert busy + len(decision.start) <= view.limits.max_in_flight
        assert view.started + len(decision.start) <= stage_targets(view)[view.stage - 1]
        assert len(set(decision.start)) == len(decision.start)


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
    assert len(decide(view).reason) < 200


@dataclasses.dataclass
class Fleet:
    """A fleet that answers as it was told, and what a rollout knows of it."""

    view: RolloutView
    outcomes: dict[str, str]
    late: list[str]
    most_in_flight: int = 0

    def step(self) -> str:
        decision = decide(self.view)
        view = self.view
        flying = [item for item in view.in_flight if item.device not in decision.expired]
        failed = view.failed + len(decision.expired)
        if decision.action == "halt":
            self.view = replace(view, state=RolloutState.HALTED, failed=failed)
            return "halt"
        if decision.action == "finish":
            self.view = replace(view, state=RolloutState.SUCCEEDED)
            return "finish"
        flying += [InFlight(device=name, started_at_s=view.now_s) for name in decision.start]
        self.most_in_flight = max(self.most_in_flight, len(flying))
        waiting = tuple(name for name in view.candidates if name not in decision.start)
        if self.late and decision.action == "advance":
            waiting += (self.late.pop(),)
        answered = [item for item in flying if self.outcomes[item.device] != "silent"]
        succeeded = [item for item in answered if self.outcomes[item.device] == "good"]
        self.view = replace(
            view,
            now_s=view.now_s + 1.0,
            stage=view.stage + (decision.action == "advance"),
            approved_stage=len(view.stages),
            stage_complete_at_s=decision.stage_complete_at_s,
            succeeded=view.succeeded + len(succeeded),
            failed=failed + len(answered) - len(succeeded),
            in_flight=tuple(item for item in flying if item not in answered),
            waiting=len(waiting),
            candidates=waiting,
        )
        return decision.action


@given(st.data())
def test_every_rollout_ends(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 25))
    names = [f"d{n}" for n in range(count)]
    late = [f"late{n}" for n in range(data.draw(st.integers(0, 2)))]
    outcomes = {
        name: data.draw(st.sampled_from(("good", "good", "good", "bad", "silent")))
        for name in [*names, *late]
    }
    view = replace(
        VIEW,
        limits=data.draw(limits_strategy),
        stages=tuple(data.draw(st.lists(stage_strategy, min_size=1, max_size=4))),
        initial_devices=count,
        waiting=count,
        candidates=tuple(names),
    )
    fleet = Fleet(view=view, outcomes=outcomes, late=late)
    last = ""
    for _ in range(3000):
        last = fleet.step()
        if last in {"halt", "finish"}:
            break
    assert last in {"halt", "finish"}
    assert fleet.most_in_flight <= view.limits.max_in_flight
    if last == "halt":
        assert fleet.view.failed > 0
    else:
        assert fleet.view.failed <= view.limits.max_failures
