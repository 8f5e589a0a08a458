"""Stages that wait for a shadow: the rollout starts it, is told by devices, and stops it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_rollout_power_cuts import PowerCut, Saw
from tests.simulators.controller_fleet import Fleet, names
from tests.simulators.packages import two_variants
from wire import topics
from wire.codec import to_msgpack
from wire.telemetry import SumPoint, TelemetryBatch
from wire.transport import Received

ONE = two_variants("1", best="one")
TWO = two_variants("2", best="two")
THREE = two_variants("3", best="three")
DEVICES = 10
MINUTE_S = 60.0
NEED: dict[str, object] = {"agreement_percent": 99.0, "requests": 500}


class ShadowedFleet(Fleet):
    """A fleet whose devices report every minute what their shadows answered."""

    agreeing = 20.0
    """How many of the 20 requests of each minute both answer alike."""

    too_hot = False
    """Whether they also skip a request a minute, as they are too hot."""

    def shadows(self) -> dict[str, str]:
        """The devices that run a shadow, with its version."""
        found = {}
        for device in self.devices.values():
            model = device.documents[-1].model("digits")
            if model is None or model.release is None or not model.shadow:
                continue
            beside = model.shadow.release
            if beside.digest != model.release.digest:
                found[device.name] = beside.version
        return found

    def step(self, seconds: float = MINUTE_S) -> None:
        minute = int(self.clock.now_s() // MINUTE_S)
        for name, version in self.shadows().items():
            attributes = {"release": f"digits:{version}", "variant": "best"}
            told = {"shadow_requests_total": 20.0, "shadow_agreements_total": self.agreeing}
            points = tuple(
                SumPoint(metric=metric, minute=minute, attributes=attributes, value=value)
                for metric, value in told.items()
            )
            if self.too_hot:
                hot = attributes | {"reason": "heat"}
                skips = SumPoint(
                    metric="shadow_skipped_total", minute=minute, attributes=hot, value=1.0
                )
                points = (*points, skips)
            batch = TelemetryBatch(device=name, boot_id="boot-1", sequence=minute, points=points)
            self.hub.deliver(Received(topics.up(name, "telemetry"), to_msgpack(batch)))
        super().step(seconds)

    def until(self, rollout: str, what: str, steps: int = 40) -> dict[str, Any]:
        """Step until a rollout is in a state, or its second stage is."""
        shown = self.show(rollout)
        for _ in range(steps):
            if what in {shown["state"], shown["stages"][1]["state"]}:
                return shown
            self.step()
            shown = self.show(rollout)
        raise AssertionError(f"{shown['state']}: {shown['reason']}")

    def listed(self) -> list[dict[str, Any]]:
        shadows: list[dict[str, Any]] = self.api.get("/v1/shadows").raise_for_status().json()
        return shadows


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[ShadowedFleet]:
    made = ShadowedFleet(database_url, tmp_path)
    for package in (ONE, TWO, THREE):
        made.publish(package)
    made.enrol(*names("cam", DEVICES))
    first = made.roll_out("digits:1")
    for _ in range(4):
        Fleet.step(made, 1.0)
    assert made.state(first) == "succeeded"
    yield made
    made.close()


WITH_SHADOW = [{"percent": 100, "shadow": NEED}]


def body(shadow: dict[str, object] = NEED, **settings: object) -> dict[str, object]:
    stages = [{"count": 1}, {"percent": 100, "shadow": shadow}]
    return {"release": "digits:2", "stages": stages, **settings}


def roll_out(fleet: Fleet, shadow: dict[str, object] = NEED, **settings: object) -> str:
    return fleet.roll_out(**body(shadow, **settings))  # type: ignore[arg-type]  # a release and more


def test_a_stage_waits_for_its_shadow_through_kills_and_begins_when_it_agrees(
    fleet: ShadowedFleet,
) -> None:
    fleet.kill_every_step = True
    rollout = roll_out(fleet)
    shown = fleet.until(rollout, "waiting_for_shadow")
    assert shown["reason"] == "stage 1 is complete: stage 2 begins when its shadow agrees"
    for _ in range(2):
        fleet.step()
    shown = fleet.show(rollout)
    counted = "180 of 500 requests on 9 of 9 devices, 100 % agree, at least 99 % must"
    assert shown["reason"] == f"stage 2 waits for its shadow: {counted}"
    assert sorted(fleet.shadows().values()) == ["2"] * (DEVICES - 1)
    (listed,) = fleet.listed()
    assert (listed["release"], listed["rollout"]) == ("digits:2", rollout)
    for refused in (
        fleet.api.delete("/v1/shadows/digits"),
        fleet.api.put("/v1/shadows/digits", json={"release": "digits:3"}),
    ):
        assert refused.status_code == 409
        assert f"is that of rollout {rollout}" in refused.json()["message"]
    while fleet.show(rollout)["stages"][1]["state"] == "waiting_for_shadow":
        assert len(fleet.running(TWO.digest)) == 1
        fleet.step()
    shown = fleet.until(rollout, "succeeded")
    assert len(fleet.running(TWO.digest)) == DEVICES
    assert shown["stages"][1]["shadow"]["state"] == "pass"
    assert fleet.listed() == []
    assert fleet.shadows() == {}
    actions = [event["action"] for event in shown["events"]]
    assert actions.index("shadow") < actions.index("shadow-pass") < actions.index("finish")


@pytest.mark.flow
def test_a_shadow_that_disagrees_halts_and_ends_and_the_operator_may_go_on(
    fleet: ShadowedFleet,
) -> None:
    fleet.agreeing = 15.0
    rollout = roll_out(fleet)
    shown = fleet.until(rollout, "halted")
    assert shown["reason"].startswith("the shadow before stage 2 failed: ")
    assert len(fleet.running(TWO.digest)) == 1
    fleet.step()
    assert fleet.listed() == []
    again = fleet.api.post(f"/v1/rollouts/{rollout}/retry", json={})
    assert (again.status_code, "a retry has none" in again.json()["message"]) == (409, True)
    fleet.api.post(f"/v1/rollouts/{rollout}/resume").raise_for_status()
    shown = fleet.until(rollout, "succeeded")
    assert shown["stages"][1]["shadow"]["waived"]


@pytest.mark.flow
def test_one_by_hand_counts_and_goes_on_and_another_is_in_the_way(fleet: ShadowedFleet) -> None:
    fleet.api.put("/v1/shadows/digits", json={"release": "digits:3"}).raise_for_status()
    rollout = roll_out(fleet)
    fleet.until(rollout, "waiting_for_shadow")
    fleet.step()
    fleet.step()
    in_the_way = "model digits has another shadow, digits:3: `fleet shadow stop digits` lets"
    assert in_the_way in fleet.show(rollout)["reason"]
    assert set(fleet.shadows().values()) == {"3"}
    fleet.api.put("/v1/shadows/digits", json={"release": "digits:2"}).raise_for_status()
    fleet.until(rollout, "succeeded")
    (listed,) = fleet.listed()
    assert (listed["release"], listed["rollout"]) == ("digits:2", "")


def test_one_by_hand_on_other_devices_does_not_count_and_is_said_to_be_in_the_way(
    fleet: ShadowedFleet,
) -> None:
    few = ",".join(names("cam", 3))
    fleet.api.put(
        "/v1/shadows/digits", json={"release": "digits:2", "selector": f"id in ({few})"}
    ).raise_for_status()
    rollout = roll_out(fleet)
    fleet.until(rollout, "waiting_for_shadow")
    fleet.step()
    reason = fleet.show(rollout)["reason"]
    assert "the shadow that was started by hand runs on" in reason
    assert "`fleet shadow stop digits` lets the rollout start its own" in reason
    fleet.api.delete("/v1/shadows/digits").raise_for_status()
    for device in fleet.devices.values():
        device.connect()  # those without a shadow have told nothing for minutes
    fleet.until(rollout, "succeeded")


def test_devices_that_are_added_from_outside_of_the_selector_run_no_shadow(
    fleet: ShadowedFleet,
) -> None:
    rollout = roll_out(fleet, selector=f"id in ({','.join(names('cam', 6))})")
    fleet.until(rollout, "waiting_for_shadow")
    left = [part for part in fleet.show(rollout)["deployments"] if part["state"] == "pending"]
    gone = {"devices": [left[0]["device"]]}
    fleet.api.post(f"/v1/rollouts/{rollout}/exclude", json=gone).raise_for_status()
    added = {"devices": [*names("cam", DEVICES)][6:]}
    fleet.api.post(f"/v1/rollouts/{rollout}/add", json=added).raise_for_status()
    fleet.step()
    fleet.step()
    assert (
        "4 devices that have not started can run it, and it takes 5"
        in (fleet.show(rollout)["reason"])
    )
    assert fleet.shadows() == {}


@pytest.mark.parametrize("by_s", [7_200.0, -86_400.0])
def test_a_clock_that_is_set_neither_shortens_the_wait_for_a_shadow_nor_ends_it(
    fleet: ShadowedFleet, by_s: float
) -> None:
    rollout = roll_out(fleet, NEED | {"for_s": 1_800.0})
    fleet.until(rollout, "waiting_for_shadow")
    for _ in range(6):
        fleet.step()
    fleet.clock.correct(by_s)
    for _ in range(20):
        fleet.step()
    assert fleet.show(rollout)["stages"][1]["state"] == "waiting_for_shadow"
    for _ in range(30):
        fleet.step()
    assert fleet.state(rollout) == "succeeded"


def test_a_failure_that_was_seen_halts_also_after_a_kill(fleet: ShadowedFleet) -> None:
    fleet.agreeing = 0.0
    rollout = roll_out(fleet, NEED | {"for_s": 600.0})
    fleet.until(rollout, "waiting_for_shadow")
    for _ in range(9):
        fleet.step()
    saw, seen = Saw(fleet), ("", "hold")
    for effect in (at for at in range(1, 8) for _ in range(20)):
        saw.arm(effect)  # one of them is after what a look has shown is saved
        with contextlib.suppress(PowerCut):
            Fleet.step(fleet, 5.0)
        fleet.kill()
        shown = fleet.show(rollout)
        seen = shown["state"], shown["stages"][1]["shadow"]["state"]
        if seen[1] == "fail":
            break
    assert seen == ("running", "fail")
    fleet.agreeing = 20.0
    for _ in range(3):
        fleet.step()
    assert fleet.state(rollout) == "halted"


def test_what_a_shadow_was_compared_with_before_does_not_speak_for_a_new_rollout(
    fleet: ShadowedFleet,
) -> None:
    fleet.api.put("/v1/shadows/digits", json={"release": "digits:2"}).raise_for_status()
    for _ in range(5):
        fleet.step()
    asked = {"release": "digits:2", "shadow_agreement_percent": 99.0}
    assert fleet.api.post("/v1/rollouts/plan", json=asked).is_success
    third = fleet.roll_out("digits:3")
    for _ in range(4):
        Fleet.step(fleet, 1.0)
    assert fleet.state(third) == "succeeded"
    refused = fleet.api.post("/v1/rollouts", json=asked)
    assert refused.status_code == 409
    assert "10 devices got another release since it began and do not count" in refused.text


@pytest.mark.flow
def test_an_approval_begins_the_stage_and_ends_the_shadow(fleet: ShadowedFleet) -> None:
    rollout = roll_out(fleet)
    fleet.until(rollout, "waiting_for_shadow")
    fleet.step()
    fleet.step()
    assert fleet.shadows()
    fleet.approve(rollout).raise_for_status()
    assert fleet.until(rollout, "succeeded")["stages"][1]["shadow"]["waived"]
    assert fleet.listed() == []
    assert fleet.shadows() == {}


@pytest.mark.flow
def test_a_newer_rollout_takes_the_devices_and_starts_its_own_shadow(fleet: ShadowedFleet) -> None:
    older = roll_out(fleet)
    fleet.until(older, "waiting_for_shadow")
    fleet.step()
    newer = fleet.roll_out(**body(supersede=True) | {"release": "digits:3"})  # type: ignore[arg-type]  # as above
    fleet.until(newer, "waiting_for_shadow")
    fleet.step()
    assert fleet.state(older) == "succeeded"
    (listed,) = fleet.listed()
    assert (listed["release"], listed["rollout"]) == ("digits:3", newer)
    fleet.api.post(f"/v1/rollouts/{newer}/abort").raise_for_status()
    fleet.step()
    assert fleet.listed() == []


@pytest.mark.flow
def test_one_that_is_superseded_in_part_waits_for_its_shadow_with_what_is_left(
    fleet: ShadowedFleet,
) -> None:
    older = roll_out(fleet)
    fleet.until(older, "waiting_for_shadow")
    left = fleet.show(older)["deployments"]
    moved = sorted(each["device"] for each in left if each["state"] == "pending")[:3]
    taken = f"id in ({','.join(moved)})"
    newer = fleet.roll_out("digits:3", supersede=True, selector=taken)
    assert fleet.until(older, "succeeded")["stages"][1]["shadow"]["state"] == "pass"
    assert fleet.state(newer) == "succeeded"
    assert len(fleet.running(TWO.digest)) == DEVICES - len(moved)
    assert fleet.listed() == []


@pytest.mark.flow
def test_a_stage_that_too_few_are_left_for_says_what_to_do_and_one_for_nobody_ends(
    fleet: ShadowedFleet,
) -> None:
    fleet.too_hot = True
    rollout = roll_out(fleet)
    fleet.until(rollout, "waiting_for_shadow")
    fleet.step()
    assert "it has begun, and is looked at after a minute" in fleet.show(rollout)["reason"]
    fleet.step()
    assert fleet.show(rollout)["reason"].endswith("at least 99 % must; skipped: heat 9")
    left = [each["device"] for each in fleet.show(rollout)["deployments"]]
    left = [device for device in left if device not in fleet.running(TWO.digest)]
    exclude = f"/v1/rollouts/{rollout}/exclude"
    fleet.api.post(exclude, json={"devices": left[4:]}).raise_for_status()
    fleet.step()
    fleet.step()
    said = fleet.show(rollout)["reason"]
    assert "4 devices that have not started can run it, and it takes 5: `fleet rollout ap" in said
    assert fleet.listed() == []
    fleet.api.post(exclude, json={"devices": left[:4]}).raise_for_status()
    fleet.until(rollout, "succeeded", steps=3)


@pytest.mark.flow
def test_what_agreed_with_an_earlier_release_counts_for_nothing(fleet: ShadowedFleet) -> None:
    fleet.api.put("/v1/shadows/digits", json={"release": "digits:2"}).raise_for_status()
    for _ in range(30):
        fleet.step()
    assert fleet.run(fleet.roll_out("digits:3"))["state"] == "succeeded"
    fleet.agreeing = 0.0
    rollout = roll_out(fleet)
    assert ", 0 % agree" in fleet.until(rollout, "halted")["reason"]


@pytest.mark.flow
def test_who_made_a_rollout_with_approvals_does_not_skip_its_shadow(fleet: ShadowedFleet) -> None:
    stages = [{"count": 1, "approval": True}, *WITH_SHADOW]
    rollout = fleet.roll_out("digits:2", stages=stages)
    while fleet.show(rollout)["stages"][0]["state"] != "awaiting_approval":
        fleet.step()
    fleet.approve(rollout).raise_for_status()
    fleet.until(rollout, "waiting_for_shadow")
    own = fleet.api.post(f"/v1/rollouts/{rollout}/approve")
    assert (own.status_code, "another one must approve it" in own.json()["message"]) == (403, True)
    fleet.approve(rollout).raise_for_status()


REFUSED: list[tuple[dict[str, object], str]] = [
    (body(NEED | {"agreement_percent": 100.0}), "no number of requests shows"),
    (body(NEED | {"agreement_percent": 0.99}), "would have to agree in 0.99 % only"),
    (body(NEED | {"agreement_percent": 101.0}), "less than or equal to 100"),
    (body(selector="online=true"), "cannot choose a shadow"),
    (
        body(selector="id in (cam-005,cam-006,cam-007,cam-008,cam-009,cam-000)"),
        "another release of digits; on 2 more it is off (`[shadow] allow`), and it takes 5",
    ),
    (body(selector="id in (cam-000,cam-001)"), "2 devices of the rollout can run one"),
    (
        body() | {"stages": [{"count": 6}, {"percent": 100, "shadow": NEED}]},
        "4 devices would be left that earlier stages have not reached",
    ),
    (
        body()
        | {"stages": [{"selector": "id in (cam-000,cam-001,cam-002,cam-003)"}, *WITH_SHADOW]},
        "earlier stages choose all but 4 of the 8 that can run one, and it takes 5",
    ),
    (body() | {"release": "digits:1"}, "0 devices of the rollout can run one"),
    (
        body() | {"stages": [{"count": 1}, {"grow": 2.0, "shadow": NEED}]},
        "a stage that grows stands for several, and waits for no shadow",
    ),
]


@pytest.mark.flow
def test_what_can_never_begin_is_refused_in_one_line(fleet: ShadowedFleet) -> None:
    for name in ("cam-008", "cam-009"):
        device = fleet.devices[name]
        device.allows_shadows = False
        device.connect()
    before = fleet.api.get("/v1/rollouts").json()
    for wanted, said in REFUSED:
        answer = fleet.api.post("/v1/rollouts", json=wanted)
        assert answer.status_code == 422, answer.text
        assert said in answer.text, answer.text
        assert "\n" not in answer.json()["message"]
        planned = fleet.api.post("/v1/rollouts/plan", json=wanted)
        assert said in planned.text
    assert fleet.api.get("/v1/rollouts").json() == before
    plan = fleet.api.post("/v1/rollouts/plan", json=body()).raise_for_status().json()
    assert plan["refused"] == []
    assert plan["stages"][1]["shadow"]["agreement_percent"] == 99.0
