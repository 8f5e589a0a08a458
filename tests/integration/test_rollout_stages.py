"""Stages that choose devices, grow and have rules of their own, and the rate of starting."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.simulators.controller_fleet import Fleet, names
from tests.simulators.packages import two_variants

pytestmark = pytest.mark.flow

ONE = two_variants("1", best="one")
GATE = "p95(inference_latency_ms) <= +10%"
LAB = ("lab-000", "lab-001", "lab-002")


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(database_url, tmp_path)
    made.publish(ONE)
    made.enrol(*names("cam", 9), site="berlin")
    made.enrol(*LAB, site="lab")
    yield made
    made.close()


def plan(fleet: Fleet, **body: Any) -> dict[str, Any]:
    asked = {"release": "digits:1", **body}
    answer = fleet.api.post("/v1/rollouts/plan", json=asked, params={"limit": 100})
    found: dict[str, Any] = answer.raise_for_status().json()
    return found


def test_chosen_devices_start_first_and_no_others_in_their_stage(fleet: Fleet) -> None:
    fleet.devices["lab-001"].leave()
    stages = [
        {"count": 1},
        {"selector": "site=lab", "soak_s": 5.0, "approval": True},
        {"percent": 40},
        {"grow": 2.0},
    ]
    settings: dict[str, Any] = {"stages": stages, "spread": "site", "offline_limit_s": 8.0}
    said = plan(fleet, **settings)
    assert said["refused"] == []
    assert [(s["target"], s["selector"], s["approval"]) for s in said["stages"]] == [
        (1, "", False), (3, "site=lab", True), (5, "", False), (10, "", False), (12, "", False)
    ]  # fmt: skip
    rollout = fleet.roll_out("digits:1", id=said["id"], **settings)
    for _ in range(20):
        fleet.step()
    shown = fleet.show(rollout)
    assert fleet.running(ONE.digest) == {"lab-000", "lab-002"}, "nobody stands in for lab-001"
    assert shown["stages"][1]["state"] == "awaiting_approval"
    assert shown["reason"] == "stage 3 waits for approval"
    fleet.approve(rollout).raise_for_status()
    fleet.devices["lab-001"].connect()
    shown = fleet.run(rollout)
    assert shown["state"] == "succeeded"
    assert Counter(part["stage"] for part in shown["deployments"]) == {1: 1, 2: 2, 3: 2, 4: 5, 5: 2}
    follow = fleet.api.post(f"/v1/rollouts/{rollout}/rollback", json={"release": "digits:1"})
    back = fleet.show(follow.raise_for_status().json()["id"])
    assert [s["target"] for s in back["stages"]] == [1, 3, 5, 10, 12]
    assert (back["stages"][1]["selector"], back["spread"]) == ("site=lab", "site")


def test_devices_start_at_a_rate_that_grows_with_those_that_succeed(fleet: Fleet) -> None:
    rate = {"per_minute": 6.0, "factor": 2.0, "after": 3, "max_per_minute": 60.0}
    rollout = fleet.roll_out("digits:1", rate=rate)
    reached = []
    for _ in range(45):
        fleet.step()
        reached.append(len(fleet.running(ONE.digest)))
    # One each ten seconds, after three successes each five, after six each two and a half.
    assert [reached[at] for at in (0, 8, 10, 19, 21)] == [1, 1, 2, 2, 3]
    assert max(after - before for before, after in itertools.pairwise(reached)) == 1
    assert reached.index(6) - reached.index(3) >= 10
    assert fleet.show(rollout)["rate"] == rate
    assert fleet.run(rollout)["state"] == "succeeded"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"stages": [{"selector": "site=rome"}, {"percent": 100}]}, "matches the stage 'site=rome'"),
    ({"stages": [{"selector": "site=lab"}] * 2 + [{"percent": 100}]}, "that no stage before has"),
    ({"stages": [{"percent": 50}, {"selector": "site=lab"}, {"percent": 100}]}, "reaches fewer"),
    ({"stages": [{"selector": "site=lab"}]}, "the last stage chooses its devices"),
    ({"stages": [{"selector": "site=="}, {"percent": 100}]}, "cannot read the selector"),
    ({"stages": [{"selector": ""}, {"percent": 100}]}, "stage 1 chooses all devices"),
    ({"stages": [{"grow": 2.0}]}, "stage 1 grows from the one before it"),
    ({"stages": [{"count": 1, "percent": 5}]}, "needs a count, a percent, a selector or a growth"),
    ({"stages": [{"percent": 100, "approval": True}]}, "the last stage has an approval"),
    ({"stages": [{"count": 2, "gates": [GATE]}, {"percent": 100}]}, "would not wait for them"),
    ({"stages": [{"percent": 100, "gates": [GATE]}], "gates": [GATE]}, "a gate is given twice"),
    ({"spread": "rack"}, "no device of the rollout has the label 'rack'"),
    ({"rate": {"per_minute": 0}}, "rate.per_minute"),
]


def test_stages_that_make_no_sense_are_refused_and_nothing_begins(fleet: Fleet) -> None:
    for body, said in REFUSED:
        answer = fleet.api.post("/v1/rollouts", json={"release": "digits:1", **body})
        assert answer.status_code == 422, body
        assert said in answer.json()["message"], answer.json()
    assert fleet.api.get("/v1/rollouts").json() == []
    (few,) = plan(fleet, stages=[{"selector": "site=rome"}, {"percent": 100}])["refused"]
    assert few.startswith("no device of the rollout matches the stage 'site=rome'; ")
