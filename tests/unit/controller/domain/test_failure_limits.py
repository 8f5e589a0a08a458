"""Which failures count against which limit, and what may still come."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.failure_limits import FailureKind, Share, failure_kind
from controller.domain.rollout_policy import decide
from controller.domain.rollout_view import InFlight, Limits, RolloutView, StageSpec
from controller.domain.states import RolloutState

LIMITS = Limits(
    max_in_flight=1000,
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
    stages=(StageSpec(percent=100.0),),
    stage=1,
    stage_complete_at_s=None,
    approved_stage=1,
    initial_devices=100,
    succeeded=0,
    failed=0,
    in_flight=(),
    pending=100,
)


@pytest.mark.parametrize(
    ("code", "phase", "kind"),
    [
        ("controller.deadline", "", FailureKind.TIMED_OUT),
        ("controller.lost", "confirming", FailureKind.TIMED_OUT),
        ("agent.storage.full", "preflight", FailureKind.REFUSED),
        ("agent.refused", "", FailureKind.REFUSED),
        ("agent.variant", "preflight", FailureKind.REFUSED),
        ("agent.fetch.missing", "preflight", FailureKind.FAILED),
        ("agent.storage.full", "fetching", FailureKind.FAILED),
        ("agent.golden", "probing", FailureKind.FAILED),
        ("controller.report.mismatch", "idle", FailureKind.FAILED),
    ],
)
def test_kinds(code: str, phase: str, kind: FailureKind) -> None:
    assert failure_kind(code, phase) is kind


def test_a_kind_with_a_limit_of_its_own_counts_against_that_alone() -> None:
    view = replace(VIEW, failed=5, refused=3, timed_out=2, pending=95)
    assert decide(view).reason == "5 devices failed; allowed: 0"
    split = replace(view, limits=replace(LIMITS, max_refused=3, max_timed_out=2))
    assert decide(split).action == "hold"
    more = replace(split, failed=6, refused=4)
    assert decide(more).reason == "4 devices refused the release; allowed: 3"
    late = InFlight(device="x", online_s=61.0)
    silent = decide(replace(split, in_flight=(late,)))
    assert (silent.action, silent.silent) == ("halt", ("x",))
    assert silent.reason == (
        "3 devices timed out, 1 of them sent no report before the deadline; allowed: 2"
    )


def test_a_halt_tells_what_is_certain_and_what_may_come() -> None:
    limits = replace(LIMITS, max_failures=9, max_failure_percent=10.0)
    flying = (InFlight(device="x", online_s=1.0),)
    view = replace(VIEW, limits=limits, succeeded=8, failed=2, in_flight=flying, waiting=1)
    assert decide(view).reason == (
        "20.0 % of 10 finished devices failed, at most 10 % are allowed; at worst it is 33.3 %"
    )


@given(
    failed=st.integers(0, 40),
    succeeded=st.integers(0, 40),
    unknown=st.integers(0, 40),
    most=st.floats(0, 100),
    least=st.integers(1, 20),
)
def test_the_room_is_the_most_that_keeps_the_share_whatever_comes(
    failed: int, succeeded: int, unknown: int, most: float, least: int
) -> None:
    share = Share(failed=failed, finished=failed + succeeded, unknown=unknown)
    room = min(share.room(most, least), 200)

    def is_kept(more: int) -> bool:
        bad, known = failed + unknown + more, failed + succeeded + unknown + more
        return known < least or 100.0 * bad / known <= most

    assert room == 0 or is_kept(room)
    assert room == 200 or not is_kept(room + 1)


@given(
    outcomes=st.lists(st.booleans(), min_size=1, max_size=60),
    most=st.floats(1, 60),
    least=st.integers(1, 15),
    batch=st.integers(1, 20),
)
def test_in_the_worst_case_the_share_is_kept_and_the_rollout_still_ends(
    outcomes: list[bool], most: float, least: int, batch: int
) -> None:
    """Devices finish in batches; the share is kept after each start but of one device alone."""
    limits = replace(
        LIMITS, max_failures=1000, max_failure_percent=most, min_finished=least, worst_case=True
    )
    pending = [f"d{n:02}" for n in range(len(outcomes))]
    coming = dict(zip(pending, outcomes, strict=True))
    flying: list[str] = []
    done: list[bool] = []
    decision = decide(VIEW)
    for _step in range(5 * len(outcomes)):
        view = replace(
            VIEW,
            limits=limits,
            initial_devices=len(outcomes),
            succeeded=sum(done),
            failed=len(done) - sum(done),
            in_flight=tuple(InFlight(device=name, online_s=1.0) for name in flying),
            pending=len(pending),
            candidates=tuple(pending),
        )
        decision = decide(view)
        if decision.action != "hold":
            break
        flying += decision.start
        pending = [name for name in pending if name not in decision.start]
        bad, known = view.failed + len(flying), len(done) + len(flying)
        if decision.start and len(flying) > 1:
            assert known < least or 100.0 * bad / known <= most
        ended, flying = flying[:batch], flying[batch:]
        done += [coming[name] for name in ended]
    assert decision.action in {"halt", "finish"}
