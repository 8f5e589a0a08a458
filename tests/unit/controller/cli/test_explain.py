"""A rollout, and one device's part in it, told as text."""

from __future__ import annotations

import pytest

from controller.cli.explain import happened, part_lines
from controller.domain.states import DeploymentState
from controller.rollout_schemas import Deployment, DevicePart, RolloutEvent


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
        (part(DeploymentState.SUCCEEDED), "it installed the release"),
        (part(DeploymentState.FAILED), "it failed: agent.golden 3 of 8 answers differ"),
        (part(DeploymentState.ASSIGNED), "it has its order, which is fetching"),
        (part(DeploymentState.WAITING), "it has its order, and goes on when it is back"),
    ],
)
def test_a_device_that_was_started_says_what_became_of_it(told: DevicePart, last: str) -> None:
    lines = part_lines(told)
    assert lines[0] == "cam-1 is to get digits:2 by rollout r1; it is online"
    assert lines[1].startswith("it was started in stage 1, at ")
    assert lines[1].endswith("; it had digits:1 before")
    assert lines[-1] == last


def test_a_device_that_waits_for_its_turn_says_who_is_before_it_and_what_it_has() -> None:
    assert part_lines(part(DeploymentState.PENDING, started=False))[1:] == [
        "it was not started; 4 devices of the rollout start before it",
        "it is to run digits:1 now",
    ]
    held = part(DeploymentState.PENDING, is_control=True, started=False)
    assert "of the control group" in part_lines(held)[1]


def test_what_devices_do_in_a_row_is_told_once_and_what_people_do_always() -> None:
    events = [RolloutEvent(at_s=0.0, action="create", reason="made")]
    events += [RolloutEvent(at_s=at, action="start", reason=f"{at:g}") for at in (1.0, 2.0, 3.0)]
    events += [RolloutEvent(at_s=9.0, action="pause", reason="paused", actor="alice")] * 3
    told = happened(events)
    assert told[1].endswith(" start: 1")
    assert told[2] == "... once more devices started, left or came back ..."
    assert told[3].endswith(" start: 3")
    assert sum(line.endswith("pause: paused (alice)") for line in told) == 3
