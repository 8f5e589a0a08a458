"""Policies of the fleet from end to end: real controller, API and database; devices that answer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import event

from controller.domain.policy_choice import MAX_POLICIES
from tests.simulators.controller_fleet import Fleet, FleetDevice, names
from tests.simulators.packages import PROFILE, two_variants
from wire import topics
from wire.codec import to_json
from wire.installs import InstallReport
from wire.policy import Objective, PolicySpec
from wire.transport import Received

pytestmark = pytest.mark.flow

ONE, TWO = two_variants("1", best="one"), two_variants("2", best="two")
STAGES = [{"count": 1}, {"percent": 30}, {"percent": 100}]
ADAPTIVE = {"kind": "adaptive", "objective": {"deadline_ms": 20.0}}
CAREFUL = {"hot_headroom": 0.6, "cool_headroom": 0.5}
URL = "/v1/policies"


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(database_url, tmp_path)
    made.publish(ONE)
    made.publish(TWO)
    yield made
    made.close()


def put(fleet: Fleet, name: str, policy: dict[str, Any], **how: object) -> dict[str, Any]:
    answer = fleet.api.put(f"{URL}/{name}", json={"policy": policy, **how})
    assert answer.status_code == 200, answer.text
    shown: dict[str, Any] = answer.json()
    return shown


def serving(fleet: Fleet, *devices: str, **labels: str) -> None:
    """Enrol devices and bring them to the first release."""
    fleet.enrol(*devices, **labels)
    selector = f"id in ({','.join(devices)})"
    assert fleet.run(fleet.roll_out("digits:1", selector=selector))["state"] == "succeeded"


def works_by(device: FleetDevice) -> PolicySpec:
    """The policy that a device was sent last and accepted."""
    return device.accepted[-1].policy


def shown(fleet: Fleet, device: str) -> tuple[str | None, bool]:
    found = fleet.api.get(f"/v1/devices/{device}").json()
    return found["policy"], found["policy_accepted"]


def test_devices_that_are_online_get_a_policy_soon_and_keep_their_release(fleet: Fleet) -> None:
    serving(fleet, "cam-1", "cam-2")
    before = put(fleet, "everyone", ADAPTIVE)
    assert (before["devices"], before["accepted"]) == (0, 0)
    assert shown(fleet, "cam-1") == ("everyone", False)
    fleet.step()
    wanted = PolicySpec(kind="adaptive", objective=Objective(deadline_ms=20.0))
    for device in fleet.devices.values():
        first, last = device.accepted
        assert (last.policy, last.revision) == (wanted, first.revision + 1)
        assert (last.release, last.rollout) == (first.release, first.rollout)
    after = fleet.api.get(f"{URL}/everyone").json()
    assert (after["devices"], after["accepted"]) == (2, 2)
    assert shown(fleet, "cam-1") == ("everyone", True)
    for _ in range(3):
        fleet.step(20)
    assert [len(device.accepted) for device in fleet.devices.values()] == [2, 2]


def test_a_policy_is_for_those_that_its_selector_means(fleet: Fleet) -> None:
    serving(fleet, "lab-1", stage="lab")
    serving(fleet, "shop-1", stage="shop")
    put(fleet, "everyone", CAREFUL)
    put(fleet, "lab", ADAPTIVE, selector="stage=lab", priority=10)
    put(fleet, "paris", {"dwell_s": 60.0}, selector="site=paris", priority=99)
    fleet.step()
    assert works_by(fleet.devices["lab-1"]).aim.deadline_ms == 20.0
    assert works_by(fleet.devices["shop-1"]) == PolicySpec(hot_headroom=0.6, cool_headroom=0.5)
    assert [item["name"] for item in fleet.api.get(URL).json()] == ["paris", "lab", "everyone"]
    assert [item["accepted"] for item in fleet.api.get(URL).json()] == [0, 1, 1]


def test_other_labels_are_another_policy(fleet: Fleet) -> None:
    serving(fleet, "cam-1", stage="shop")
    put(fleet, "lab", ADAPTIVE, selector="stage=lab")
    fleet.step()
    device = fleet.devices["cam-1"]
    assert len(device.accepted) == 1
    fleet.api.patch("/v1/devices/cam-1", json={"labels": {"stage": "lab"}}).raise_for_status()
    assert shown(fleet, "cam-1") == ("lab", False)
    fleet.step()
    assert works_by(device).aim.deadline_ms == 20.0
    fleet.api.patch("/v1/devices/cam-1", json={"labels": {"owner": "kim"}}).raise_for_status()
    fleet.step()
    assert works_by(device) == PolicySpec()
    assert [state.revision for state in device.accepted] == [1, 2, 3]


def test_without_the_policy_devices_get_the_default_again(fleet: Fleet) -> None:
    serving(fleet, "cam-1")
    put(fleet, "everyone", ADAPTIVE)
    fleet.step()
    removed = fleet.api.delete(f"{URL}/everyone")
    assert (removed.status_code, removed.json()["policy"]["kind"]) == (200, "adaptive")
    fleet.step()
    assert works_by(fleet.devices["cam-1"]) == PolicySpec()
    assert shown(fleet, "cam-1") == (None, True)
    assert fleet.api.get(URL).json() == []


def test_a_device_that_joins_gets_its_policy_with_its_first_release(fleet: Fleet) -> None:
    put(fleet, "lab", ADAPTIVE, selector="stage=lab")
    fleet.step()
    fleet.enrol("late", stage="lab")
    fleet.step()
    assert fleet.devices["late"].accepted == []
    assert shown(fleet, "late") == ("lab", False)
    fleet.run(fleet.roll_out("digits:1"))
    (first,) = fleet.devices["late"].accepted
    assert first.policy.aim.deadline_ms == 20.0
    assert first.release == ONE.ref


def test_a_device_that_is_enrolled_anew_with_other_labels_gets_what_is_for_them(
    fleet: Fleet,
) -> None:
    serving(fleet, "cam-1", stage="shop")
    put(fleet, "lab", ADAPTIVE, selector="stage=lab")
    fleet.step()
    for change in ({"state": "decommissioned"}, {"may_enrol_again": True}):
        fleet.api.patch("/v1/devices/cam-1", json=change).raise_for_status()
    device = fleet.devices["cam-1"]
    device.labels = {"stage": "lab"}
    token = fleet.api.post("/v1/tokens", json={}).json()["token"]
    assert device.ask_to_enrol(token).accepted
    device.connect()
    fleet.step()
    assert works_by(device).aim.deadline_ms == 20.0


def test_another_profile_is_another_policy(fleet: Fleet) -> None:
    serving(fleet, "cam-1")
    put(fleet, "small-boards", ADAPTIVE, selector="profile=rpi4")
    fleet.step()
    device = fleet.devices["cam-1"]
    assert len(device.accepted) == 1
    device.boot_id, device.profile = "boot-2", msgspec.structs.replace(PROFILE, name="rpi4")
    device.connect()
    fleet.step()
    assert works_by(device).aim.deadline_ms == 20.0


def test_a_device_that_is_away_gets_it_at_its_hello(fleet: Fleet) -> None:
    serving(fleet, "cam-1")
    device = fleet.devices["cam-1"]
    device.online = False
    put(fleet, "everyone", ADAPTIVE)
    fleet.step()
    assert len(device.accepted) == 1
    device.connect()
    assert works_by(device).aim.deadline_ms == 20.0


def test_a_device_that_lags_behind_is_reminded(fleet: Fleet) -> None:
    serving(fleet, "cam-1")
    device = fleet.devices["cam-1"]
    device.outcome = "silent"
    put(fleet, "everyone", ADAPTIVE)
    fleet.step()
    device.outcome = "succeeded"
    for _ in range(17):
        fleet.step()
    assert works_by(device).aim.deadline_ms == 20.0


def cut(fleet: Fleet, *, publishing: bool) -> None:
    """End the controller in a tick: before it publishes anything, or before it saves anything."""

    def gone(*_arguments: object, **_options: object) -> bool:
        raise KeyboardInterrupt

    if publishing:
        fleet.transport.publish = gone  # type: ignore[method-assign]  # the cut is in the wire
    else:
        event.listen(fleet.controller._database.engine, "commit", gone)
    with pytest.raises(KeyboardInterrupt):
        fleet.step()
    fleet.kill()


@pytest.mark.parametrize("publishing", [True, False], ids=["before-publishing", "before-saving"])
def test_a_controller_that_is_killed_goes_on(fleet: Fleet, publishing: bool) -> None:
    serving(fleet, "cam-1", "cam-2")
    put(fleet, "everyone", ADAPTIVE)
    cut(fleet, publishing=publishing)
    assert [len(device.accepted) for device in fleet.devices.values()] == [1, 1]
    fleet.step()
    for device in fleet.devices.values():
        assert [state.revision for state in device.accepted] == [1, 2]
        assert works_by(device).aim.deadline_ms == 20.0


@pytest.mark.parametrize("killed", [False, True], ids=["", "killed-at-every-step"])
def test_a_running_rollout_does_not_notice(fleet: Fleet, killed: bool) -> None:
    serving(fleet, *names("cam", 10))
    fleet.kill_every_step = killed
    rollout = fleet.roll_out("digits:2", stages=STAGES, max_in_flight=2)
    for number in range(40):
        put(fleet, "everyone", {"dwell_s": float(number)})
        fleet.step()
        if fleet.state(rollout) != "running":
            break
    found = fleet.show(rollout)
    assert (found["state"], found["counts"]) == ("succeeded", {"succeeded": 10})
    actions = [item["action"] for item in found["events"]]
    assert actions.count("start") == len({p["started_at_s"] for p in found["deployments"]})
    assert not {"restore", "expire", "halt"} & set(actions)
    for device in fleet.devices.values():
        releases = [state.release for state in device.accepted]
        switches = sum(a != b for a, b in itertools.pairwise(releases))
        assert switches == 1, "the release came once and stayed"
        revisions = [state.revision for state in device.accepted]
        assert revisions == sorted(set(revisions))


def test_a_report_for_the_revision_before_the_policy_still_counts(fleet: Fleet) -> None:
    fleet.enrol("cam-1")
    device = fleet.devices["cam-1"]
    device.outcome = "silent"
    rollout = fleet.roll_out("digits:1")
    fleet.step()
    put(fleet, "everyone", ADAPTIVE)
    fleet.step()
    device.active = ONE.digest
    device.report(1, ONE.digest, "succeeded")
    found = fleet.run(rollout, steps=2)
    assert (found["state"], found["counts"]) == ("succeeded", {"succeeded": 1})
    assert shown(fleet, "cam-1") == ("everyone", False)


def test_a_lost_outcome_is_asked_for_after_a_policy_too(fleet: Fleet) -> None:
    fleet.enrol("cam-1")
    device = fleet.devices["cam-1"]
    device.outcome = "silent"
    rollout = fleet.roll_out("digits:1")
    fleet.step()
    put(fleet, "everyone", ADAPTIVE)
    fleet.step()
    at_work = InstallReport(
        device="cam-1",
        revision=2,
        digest=ONE.digest,
        phase="fetching",
        outcome="running",
        active=None,
    )
    fleet.hub.deliver(Received(topics.up("cam-1", "report"), to_json(at_work)))
    assert shown(fleet, "cam-1") == ("everyone", True)
    device.outcome = "succeeded"
    assert fleet.run(rollout, steps=40)["state"] == "succeeded"


def test_a_success_may_be_taken_back_after_a_policy_too(fleet: Fleet) -> None:
    fleet.enrol(*names("cam", 4))
    rollout = fleet.roll_out("digits:1", stages=[{"count": 1}, {"percent": 100}], soak_s=600)
    for _ in range(3):
        fleet.step()
    put(fleet, "everyone", ADAPTIVE)
    fleet.step()
    (name,) = fleet.running(ONE.digest)
    device = fleet.devices[name]
    assert device.revision == 2
    device.active = None
    device.report(2, ONE.digest, "failed")
    found = fleet.run(rollout, steps=3)
    assert found["state"] == "halted"
    assert device.accepted[-1].release is None, "it was sent back"


def test_a_failed_device_goes_back_after_a_policy_too(fleet: Fleet) -> None:
    serving(fleet, *names("cam", 4))
    for device in fleet.devices.values():
        device.outcome = "silent"
    rollout = fleet.roll_out("digits:2", stages=[{"count": 1}], device_deadline_s=30)
    fleet.step()
    put(fleet, "everyone", ADAPTIVE)
    fleet.step()
    for device in fleet.devices.values():
        device.outcome = "succeeded"
        device.online = False
    fleet.clock.advance(40)
    assert fleet.run(rollout, steps=3)["state"] == "halted"
    for device in fleet.devices.values():
        device.connect()
    assert fleet.running(ONE.digest) == set(names("cam", 4))
    assert {works_by(d).aim.deadline_ms for d in fleet.devices.values()} == {20.0}


def test_what_failed_is_not_started_again(fleet: Fleet) -> None:
    fleet.enrol(*names("cam", 3))
    fleet.devices["cam-001"].outcome = "failed"
    rollout = fleet.roll_out("digits:1", max_failures=1)
    before = fleet.run(rollout)
    put(fleet, "everyone", ADAPTIVE)
    for _ in range(3):
        fleet.step(20)
    assert fleet.show(rollout) == before
    assert {d.accepted[-1].policy.aim.deadline_ms for d in fleet.devices.values()} == {20.0}


def test_a_restored_backup_catches_up_with_its_policy(fleet: Fleet) -> None:
    serving(fleet, "cam-1")
    put(fleet, "everyone", ADAPTIVE)
    fleet.step()
    device = fleet.devices["cam-1"]
    device.revision = 70
    device.connect()
    assert (device.revision, works_by(device).aim.deadline_ms) == (71, 20.0)


def test_setting_it_again_changes_nothing(fleet: Fleet) -> None:
    serving(fleet, "cam-1")
    first = put(fleet, "everyone", ADAPTIVE)
    fleet.step()
    again = put(fleet, "everyone", ADAPTIVE)
    assert again["changed_at_s"] == first["changed_at_s"]
    fleet.step()
    assert len(fleet.devices["cam-1"].accepted) == 2
    put(fleet, "namesake", ADAPTIVE, priority=5)
    fleet.step()
    assert len(fleet.devices["cam-1"].accepted) == 2, "the same under another name is no change"
    assert shown(fleet, "cam-1") == ("namesake", True)
    put(fleet, "plain", {}, priority=6)
    fleet.step()
    fleet.api.delete(f"{URL}/plain").raise_for_status()
    fleet.step()
    limits_ms = [s.policy.aim.deadline_ms for s in fleet.devices["cam-1"].accepted]
    assert limits_ms == [None, 20.0, None, 20.0]


def test_what_is_shown_can_be_set_again(fleet: Fleet) -> None:
    first = put(fleet, "everyone", ADAPTIVE, selector="site=berlin", priority=-3)
    assert first["policy"]["objective"] == {
        "min_retention": 0.0,
        "deadline_ms": 20.0,
        "deadline_probability": 0.95,
        "battery_lasts_s": 14400.0,
        "battery_until": None,
    }
    body = {key: first[key] for key in ("policy", "selector", "priority")}
    assert fleet.api.put(f"{URL}/everyone", json=body).json() == first
    assert fleet.api.get(f"{URL}/everyone").json() == first


@pytest.mark.parametrize(
    ("name", "body", "status", "code"),
    [
        ("x", {}, 422, "controller.invalid"),
        ("x", {"policy": {"hot_headrom": 0.9}}, 422, "controller.invalid"),
        ("x", {"policy": {"hot_headroom": 0.1}}, 422, "controller.invalid"),
        ("x", {"policy": {"objective": {"min_retention": 2.0}}}, 422, "controller.invalid"),
        ("x", {"policy": {}, "priority": 1001}, 422, "controller.invalid"),
        ("x", {"policy": {}, "priority": 0.5}, 422, "controller.invalid"),
        ("x", {"policy": {}, "selector": "site=="}, 422, "controller.selector"),
        ("x", {"policy": {}, "selector": "a" * 1025}, 422, "controller.selector"),
        ("X", {"policy": {}}, 422, "controller.invalid"),
        ("a" * 64, {"policy": {}}, 422, "controller.invalid"),
        ("a%00b", {"policy": {}}, 422, "controller.invalid"),
    ],
)
def test_what_cannot_be_set(
    fleet: Fleet, name: str, body: dict[str, Any], status: int, code: str
) -> None:
    answer = fleet.api.put(f"{URL}/{name}", json=body)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert "\n" not in answer.json()["message"]
    assert fleet.api.get(URL).json() == []


def test_numbers_that_are_none(fleet: Fleet) -> None:
    headers = {"content-type": "application/json"}
    for number in ("NaN", "Infinity", "-Infinity", "1e999"):
        content = f'{{"policy": {{"hot_headroom": {number}}}}}'
        answer = fleet.api.put(f"{URL}/x", content=content, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (422, "controller.invalid"), number


def test_unknown_policies(fleet: Fleet) -> None:
    for ask in (fleet.api.get, fleet.api.delete):
        answer = ask(f"{URL}/nothing")
        assert (answer.status_code, answer.json()["code"]) == (404, "controller.unknown.policy")


def test_there_are_not_too_many(fleet: Fleet) -> None:
    for number in range(MAX_POLICIES):
        put(fleet, f"p{number}", {})
    answer = fleet.api.put(f"{URL}/one-more", json={"policy": {}})
    assert (answer.status_code, answer.json()["code"]) == (409, "controller.conflict")
    put(fleet, "p0", ADAPTIVE)
