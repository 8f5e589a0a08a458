"""A rollout, and one device's part in it, told as text."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

import pytest

from controller.cli.explain import happened, part_lines
from controller.cli.next_steps import next_step, window_text
from controller.domain.states import DeploymentState, RolloutState
from controller.rollout_schemas import (
    Deployment,
    DevicePart,
    PossibleFollowUps,
    PossibleOrder,
    Rollout,
    RolloutEvent,
)
from controller.stage_schemas import StageProgress
from wire.codec import convert

ENDED = (DeploymentState.SUCCEEDED, DeploymentState.FAILED, DeploymentState.CANCELLED)


def part(state: DeploymentState, *, is_control: bool = False, started: bool = True) -> DevicePart:
    return DevicePart(
        rollout="r1",
        deployment=Deployment(
            device="cam-1",
            state=state,
            release="digits:2",
            stage=1 if started else 0,
            phase="fetching" if state is DeploymentState.ASSIGNED else "",
            error_code="agent.golden" if state is DeploymentState.FAILED else "",
            detail="3 of 8 answers differ" if state is DeploymentState.FAILED else "",
            started_at_s=100.0 if started else None,
            finished_at_s=200.0 if state in ENDED else None,
        ),
        online=True,
        is_control=is_control,
        ahead=0 if started else 4,
        previous="digits:1" if started else "",
        desired="digits:2" if started else "digits:1",
    )


@pytest.mark.parametrize(
    ("told", "last"),
    [
        (part(DeploymentState.SUCCEEDED), "it installed the release at "),
        (part(DeploymentState.FAILED), ": agent.golden 3 of 8 answers differ"),
        (part(DeploymentState.ASSIGNED), "it has its order, which is fetching"),
        (part(DeploymentState.WAITING), "it has its order, and goes on when it is back"),
    ],
)
def test_a_device_that_was_started_says_what_became_of_it(told: DevicePart, last: str) -> None:
    lines = part_lines(told)
    verb = "was to get" if told.deployment.state in ENDED else "is to get"
    if told.deployment.state is DeploymentState.SUCCEEDED:
        verb = "got"
    assert lines[0] == f"cam-1 {verb} digits:2 by rollout r1; it is online"
    assert lines[1].startswith("it was started in stage 1, at ")
    assert lines[1].endswith("; it had digits:1 before")
    assert last in lines[-1]


def test_a_device_that_waits_for_its_turn_says_who_is_before_it_and_what_it_has() -> None:
    assert part_lines(part(DeploymentState.PENDING, started=False))[1:] == [
        "it was not started; 4 devices of the rollout start before it",
        "it is to run digits:1 now",
    ]
    held = part(DeploymentState.PENDING, is_control=True, started=False)
    assert "of the control group" in part_lines(held)[1]


def test_what_devices_do_in_a_row_is_told_once_and_what_people_do_always() -> None:
    events = [RolloutEvent(at_s=0.0, action="create", reason="made")]
    events += [RolloutEvent(at_s=at, action="start", reason=f"{at:g}") for at in (1, 2, 3, 4)]
    events += [RolloutEvent(at_s=9.0, action="pause", reason="paused", actor="alice")] * 3
    told = happened(events)
    assert told[1].endswith(" start: 1")
    assert told[2] == "... and 2 more such lines ..."
    assert told[3].endswith(" start: 4")
    assert not any("such line" in line for line in happened(events[:4]))
    assert sum(line.endswith("pause: paused (alice)") for line in told) == 3


@pytest.mark.parametrize(
    ("state", "done", "cancelled", "back", "orders"),
    [
        (RolloutState.HALTED, 0, 3, None, ["resume"]),
        (RolloutState.HALTED, 2, 1, None, ["rollback", "resume"]),
        (RolloutState.HALTED, 2, 1, "r2", ["explain"]),
        (RolloutState.SUCCEEDED, 2, 0, None, ["rollback"]),
        (RolloutState.SUCCEEDED, 0, 3, None, []),
        (RolloutState.ABORTED, 1, 2, None, ["retry"]),
    ],
)
def test_only_orders_that_would_be_taken_are_offered(
    state: RolloutState, done: int, cancelled: int, back: str | None, orders: list[str]
) -> None:
    counts = {DeploymentState.SUCCEEDED: done, DeploymentState.CANCELLED: cancelled}
    told = next_step(rollout("r1", state, counts, rolled_back_by=back))
    assert re.findall(r"`fleet rollout (\w+)", told) == orders


def test_after_failures_a_retry_is_offered() -> None:
    counts = {DeploymentState.SUCCEEDED: 4, DeploymentState.FAILED: 2}
    told = next_step(rollout("r1", RolloutState.SUCCEEDED, counts))
    assert told.startswith("`fleet rollout retry r1 --failed` tries those that failed once more.")
    tried = rollout("r1", RolloutState.SUCCEEDED, counts)
    tried.retried_by = ["r2", "r3"]
    assert next_step(tried).startswith(
        "Rollout r3 tried devices of r1 again: `fleet rollout explain"
    )


def test_of_a_rollback_that_halted_nobody_is_led_back_to_what_it_takes_away() -> None:
    counts = {DeploymentState.SUCCEEDED: 2, DeploymentState.FAILED: 1, DeploymentState.ASSIGNED: 1}
    told = next_step(rollout("r2", RolloutState.HALTED, counts, rollback_of="r1"))
    assert re.findall(r"`fleet rollout (\w+ \w+)", told) == ["resume r2", "rollback r1"]
    assert told.endswith("1 device with the order to go back may still do so.")
    told = next_step(rollout("r2", RolloutState.SUCCEEDED, counts, rollback_of="r1"))
    assert told.endswith("`fleet rollout rollback r2` brings the release of r1 again, if need be.")


def test_nothing_is_said_beside_what_can_be_done() -> None:
    told = next_step(rollout("r1", RolloutState.SUCCEEDED, {DeploymentState.FAILED: 2}))
    assert told == "`fleet rollout retry r1 --failed` tries those that failed once more."
    counts = {DeploymentState.ASSIGNED: 4}
    told = next_step(rollout("r2", RolloutState.ABORTED, counts, rollback_of="r1"))
    assert told == "4 devices with the order to go back may still do so."


def test_a_rollback_that_did_not_reach_all_is_offered_again() -> None:
    counts = {DeploymentState.SUCCEEDED: 2}
    bad = rollout("r1", RolloutState.SUCCEEDED, counts, rolled_back_by="r2")
    counts = {DeploymentState.SUCCEEDED: 1, DeploymentState.CANCELLED: 1}
    told = next_step(bad, rollout("r2", RolloutState.SUCCEEDED, counts))
    assert "1 device of it did not go back: `fleet rollout rollback r1`" in told


def possible(*, back: int = 0, retry: int = 0, failed: int = 0, has: int = 0) -> PossibleFollowUps:
    def order(devices: int, refused: str, remedy: str = "") -> PossibleOrder:
        if devices:
            return PossibleOrder(devices=devices)
        return PossibleOrder(devices=0, refused=refused, remedy=remedy)

    return PossibleFollowUps(
        rollout="r1",
        with_release=has,
        rollback=order(back, "no device has a release before", "`fleet model remove digits`"),
        retry=order(retry, "no device is left"),
        retry_failed=order(failed, "no device is left"),
    )


def test_what_the_controller_would_refuse_is_not_offered() -> None:
    counts = {DeploymentState.SUCCEEDED: 4, DeploymentState.CANCELLED: 6}
    aborted = rollout("r2", RolloutState.ABORTED, counts, rollback_of="r1")
    assert "retry r2" in next_step(aborted, can=possible(retry=6, back=4, has=4))
    aborted.retried_by = ["r3"]
    assert next_step(aborted, can=possible(back=4, has=4)) == (
        "Rollout r3 tried devices of r2 again: `fleet rollout explain r3` tells of it. "
        "`fleet rollout rollback r2` brings the release of r1 again, if need be."
    )
    bad = rollout("r1", RolloutState.SUCCEEDED, counts, rolled_back_by="r2")
    assert next_step(bad, aborted, can=possible()) == (
        "Rollout r2 brings its devices back: `fleet rollout explain r2` tells of it. "
        "Rollout r3 tried devices of r2 again: `fleet rollout explain r3` tells of it."
    )
    assert next_step(bad, aborted, can=possible(back=2, has=2)).endswith(
        " 2 devices of it did not go back: `fleet rollout rollback r1` takes what still has the "
        "release."
    )


def test_of_the_first_release_of_a_model_the_way_to_take_it_away_is_named() -> None:
    first = rollout("r1", RolloutState.SUCCEEDED, {DeploymentState.SUCCEEDED: 4})
    told = next_step(first, can=possible(has=4))
    assert told == "No device has a release before; `fleet model remove digits`."
    told = next_step(first, can=possible())
    assert told == "Nothing: no device has its release any more."
    halted = rollout("r1", RolloutState.HALTED, first.counts)
    told = next_step(halted, can=possible(has=4))
    assert told.startswith("`fleet rollout resume r1`")
    assert told.endswith("`fleet model remove digits`.")


def running(stage: str, *, approval: bool = False, windows: Sequence[str] = ()) -> Rollout:
    found = rollout("r1", RolloutState.RUNNING, {DeploymentState.ASSIGNED: 1})
    shown = {"number": 1, "target": 1, "state": stage, "approval": approval}
    found.stages = [convert(shown, StageProgress)]
    found.created_by, found.windows = "ci", list(windows)
    return found


def test_a_stage_that_needs_two_people_says_who_may_not_approve_it() -> None:
    told = next_step(running("awaiting_approval", approval=True))
    assert told == (
        "`fleet rollout approve r1` lets the next stage begin; that takes another API token than "
        "ci, which made the rollout."
    )
    assert "another API token" in next_step(running("waiting_for_gates", approval=True))
    assert "another API token" not in next_step(running("waiting_for_gates"))


def test_a_window_is_named_with_when_it_opens_and_by_whose_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    held = running("running", windows=["03:00-05:00"])
    part = Deployment(device="cam-1", state=DeploymentState.ASSIGNED, stage=1, detail="it waits")
    held.deployments = [part]
    midnight_s = 20_000 * 86_400.0
    try:
        told = next_step(held, now_s=midnight_s)
        open_now = window_text(held, midnight_s + 2 * 3600.0)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert told.endswith(
        " Devices activate the release within 03:00-05:00, each by its own local time; by the "
        "clock here (CEST) that begins at 2024-10-04 03:00, in 1 h. 1 device puts it off, cam-1: "
        "it waits."
    )
    assert open_now.endswith("by the clock here (CEST) that is now.")
    assert not window_text(running("running"))


def rollout(
    name: str,
    state: RolloutState,
    counts: dict[DeploymentState, int],
    *,
    rolled_back_by: str | None = None,
    rollback_of: str | None = None,
) -> Rollout:
    return Rollout(
        id=name,
        release="digits:2",
        selector="",
        state=state,
        created_at_s=0.0,
        finished_at_s=None,
        stages=[],
        counts=counts,
        rolled_back_by=rolled_back_by,
        rollback_of=rollback_of,
    )
