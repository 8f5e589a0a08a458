"""What webhooks are told of rollouts: in order, at least once, and through a kill."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controller.alert_settings import AlertsConfig
from tests.simulators.controller_fleet import Fleet
from tests.simulators.packages import two_variants
from tests.simulators.receiver import Receiver, running_receiver


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with running_receiver() as made:
        yield made


@pytest.fixture
def fleet(database_url: str, tmp_path: Path, receiver: Receiver) -> Iterator[Fleet]:
    hooks = tuple(
        msgspec.structs.replace(receiver.config(tmp_path, name), tells=(tells,))
        for name, tells in (("chat", "rollouts"), ("pager", "alerts"))
    )
    made = Fleet(database_url, tmp_path, alerts=AlertsConfig(webhooks=hooks))
    made.enrol("cam1", "cam2", "cam3")
    made.publish(two_variants("1"))
    yield made
    made.close()


def post(fleet: Fleet) -> None:
    fleet.controller.alerting.rollout_notices.tick()
    for name in ("chat", "pager"):
        fleet.controller.alerting.webhooks.post_due(name)


def told(receiver: Receiver) -> list[dict[str, Any]]:
    return [event for post in receiver.posts for event in post.content["rollouts"]]


def test_events_of_a_rollout_are_told_in_order_through_refusals_and_kills(
    fleet: Fleet, receiver: Receiver
) -> None:
    receiver.answers = [400]
    stages = [{"count": 1}, {"count": 2}, {"percent": 100}]
    rollout = fleet.roll_out("digits:1", stages=stages, approval=True)
    post(fleet)
    fleet.run(rollout, steps=3)
    assert fleet.approve(rollout).status_code == 200
    fleet.run(rollout, steps=3)
    fleet.kill()  # with notes that nobody has queued yet
    post(fleet)
    assert len(receiver.posts) == 1  # what was refused holds up what came later
    fleet.clock.advance(60.0)
    fleet.api.post(f"/v1/rollouts/{rollout}/abort").raise_for_status()
    post(fleet)
    events = told(receiver)[1:]
    assert [event["event"] for event in events] == [
        "created", "waits-for-approval", "approved", "stage-begun", "waits-for-approval", "aborted",
    ]  # fmt: skip
    assert receiver.posts[0].delivery == receiver.posts[1].delivery
    numbers = [event["number"] for event in events]
    assert numbers == sorted(set(numbers))
    assert {(e["rollout"], e["model"], e["release"]) for e in events} == {
        (rollout, "digits", "digits:1")
    }
    assert [e["stage"] for e in events] == [1, 1, 1, 2, 2, 2]
    assert events[2]["actor"] == "approver"
    assert {post.path for post in receiver.posts} == {"/hooks/chat?v=1"}


def test_a_halt_says_whether_a_gate_did_it(fleet: Fleet, receiver: Receiver) -> None:
    fleet.devices["cam1"].outcome = fleet.devices["cam2"].outcome = "failed"
    fleet.devices["cam3"].outcome = "failed"
    rollout = fleet.roll_out("digits:1", stages=[{"percent": 100}])
    fleet.run(rollout)
    post(fleet)
    created, halted = told(receiver)
    assert (created["event"], halted["event"]) == ("created", "halted")
    assert "failed" in halted["reason"]
