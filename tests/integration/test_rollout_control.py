"""What controls a rollout that goes on: its limits by kind, its members, and what a halt does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import wire.desired
from tests.simulators.controller_fleet import Fleet, names
from tests.simulators.packages import two_variants
from wire.clock import local_time
from wire.windows import opens_in_s, parse_window

pytestmark = pytest.mark.flow

ONE, TWO = (two_variants(version, best=version) for version in ("1", "2"))
DEVICES = names("cam", 6)


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(database_url, tmp_path)
    for package in (ONE, TWO):
        made.publish(package)
    made.enrol(*DEVICES)
    yield made
    made.close()


def order(fleet: Fleet, rollout: str, name: str, **body: object) -> Any:
    return fleet.api.post(f"/v1/rollouts/{rollout}/{name}", json=body)


def part(shown: dict[str, Any], device: str) -> dict[str, Any]:
    found: dict[str, Any] = next(d for d in shown["deployments"] if d["device"] == device)
    return found


def reasons(shown: dict[str, Any], action: str) -> list[str]:
    return [item["reason"] for item in shown["events"] if item["action"] == action]


def test_devices_that_are_silent_have_a_limit_of_their_own(fleet: Fleet) -> None:
    fleet.devices["cam-001"].outcome = "silent"
    fleet.devices["cam-004"].outcome = "silent"
    settings = {"device_deadline_s": 5, "max_failures": 0}
    rollout = fleet.roll_out("digits:1", max_timed_out=2, **settings)
    shown = fleet.run(rollout)
    assert shown["state"] == "succeeded"
    sums = {"failed": 0, "refused": 0, "timed_out": 2}
    assert shown["failures"] == sums | {"certain_percent": 0.0, "worst_percent": 0.0}
    fleet.devices["cam-002"].outcome = fleet.devices["cam-003"].outcome = "silent"
    shown = fleet.run(fleet.roll_out("digits:2", max_timed_out=2, **settings))
    assert shown["state"] == "halted"
    assert "timed out" in shown["reason"]
    assert shown["reason"].endswith("allowed: 2")


def test_devices_join_at_the_tail_and_leave_before_they_start(fleet: Fleet) -> None:
    for device in fleet.devices.values():
        device.outcome = "busy"
    stages = [{"count": 2}, {"percent": 100}]
    rollout = fleet.roll_out(
        "digits:1", selector="id in (cam-000, cam-001, cam-002, cam-003)", stages=stages
    )
    fleet.step()
    shown = fleet.show(rollout)
    working = [d["device"] for d in shown["deployments"] if d["state"] == "assigned"]
    idle = [d["device"] for d in shown["deployments"] if d["state"] == "pending"]
    assert (len(working), len(idle)) == (2, 2)
    left = order(fleet, rollout, "exclude", devices=[idle[0], working[0]]).json()
    assert left["changed"] == [idle[0]]
    assert left["unchanged"][working[0]].startswith("it has its order: it finishes, and counts")
    added = order(fleet, rollout, "add", devices=["cam-004", idle[1], idle[0], "nobody"]).json()
    assert added["changed"] == ["cam-004"]
    assert added["unchanged"]["nobody"] == "no device of that name is enrolled"
    assert set(added["unchanged"]) == {*idle, "nobody"}
    assert order(fleet, rollout, "add", selector="").json()["changed"] == ["cam-005"]
    nobody = order(fleet, rollout, "exclude", devices=["nobody"]).json()
    assert (nobody["changed"], nobody["unchanged"]) == ([], {"nobody": "it is not in the rollout"})
    assert order(fleet, rollout, "add").status_code == 422
    for what in ("add", "exclude"):
        again = order(fleet, rollout, what, devices=[idle[0]]).json()
        assert again["unchanged"][idle[0]].startswith("it was taken out by the operator")
        nobody = order(fleet, rollout, what, selector="sitte=berlin")
        assert (nobody.status_code, "no enrolled device matches" in nobody.text) == (422, True)
    for device in fleet.devices.values():
        device.outcome = "succeeded"
    for name in working:
        fleet.devices[name].actives["digits"] = ONE.digest
        fleet.devices[name].report(1, ONE.digest, "succeeded", "digits")
    assert fleet.run(rollout)["state"] == "succeeded"
    assert fleet.running(ONE.digest) == set(DEVICES) - {idle[0]}
    assert part(fleet.show(rollout), idle[0])["error_code"] == "controller.excluded"
    assert order(fleet, rollout, "add", devices=[idle[0]]).status_code == 409


def test_who_was_taken_out_does_not_come_back_after_a_halt(fleet: Fleet) -> None:
    rollout = fleet.roll_out("digits:1", max_in_flight=1)
    gone = fleet.show(rollout)["deployments"][-1]["device"]
    order(fleet, rollout, "exclude", devices=[gone]).raise_for_status()
    for device in fleet.devices.values():
        device.outcome = "failed"
    assert fleet.run(rollout)["state"] == "halted"
    for device in fleet.devices.values():
        device.outcome = "succeeded"
    order(fleet, rollout, "resume").raise_for_status()
    assert fleet.run(rollout)["state"] == "succeeded"
    assert gone not in fleet.running(ONE.digest)


@pytest.mark.parametrize("killed", [False, True], ids=["", "killed-at-every-step"])
def test_a_halt_reverts_once_what_succeeded(fleet: Fleet, killed: bool) -> None:
    assert fleet.run(fleet.roll_out("digits:1"))["state"] == "succeeded"
    fleet.devices["cam-002"].outcome = "failed"
    fleet.kill_every_step = killed
    rollout = fleet.roll_out("digits:2", max_in_flight=2, on_halt="revert")
    shown = fleet.run(rollout)
    assert shown["state"] == "halted"
    fleet.devices["cam-002"].outcome = "succeeded"
    (told,) = reasons(fleet.show(rollout), "revert")
    back = [each for each in fleet.api.get("/v1/rollouts").json() if each["rollback_of"] == rollout]
    (rollback,) = [each["id"] for each in back]
    assert told == f"rollout {rollback} reverts what has the release"
    assert fleet.run(rollback)["state"] == "succeeded"
    assert fleet.running(ONE.digest) == set(DEVICES)
    fleet.step()
    assert len(fleet.api.get("/v1/rollouts").json()) == 3


def test_a_rollback_soaks_and_waits_for_nobody_unless_asked(fleet: Fleet) -> None:
    assert fleet.run(fleet.roll_out("digits:1"))["state"] == "succeeded"
    stages = [{"count": 2, "soak_s": 100.0, "approval": True}, {"percent": 100}]
    rollout = fleet.roll_out("digits:2", stages=stages, soak_s=100, rate={"per_minute": 60.0})
    for _ in range(5):
        fleet.step()
    assert len(fleet.running(TWO.digest)) == 2
    back = order(fleet, rollout, "rollback").json()
    assert fleet.show(rollout)["rolled_back_by"] == back["id"]
    assert [(s["soak_s"], s["approval"]) for s in back["stages"]] == [(0.0, False)] * 2
    assert back["rate"] is None
    assert fleet.run(back["id"], steps=8)["state"] == "succeeded"
    slow = order(fleet, rollout, "rollback", release="digits:2", keep_pace=True).json()
    assert [(s["soak_s"], s["approval"]) for s in slow["stages"]] == [(100.0, True), (100.0, False)]
    assert slow["rate"]["per_minute"] == 60.0


def test_only_a_way_back_to_what_devices_had_goes_without_the_pace(fleet: Fleet) -> None:
    assert fleet.run(fleet.roll_out("digits:1"))["state"] == "succeeded"
    rollout = fleet.roll_out("digits:2", soak_s=100, rate={"per_minute": 60.0}, approval=True)
    for _ in range(12):
        fleet.step()
    assert fleet.running(TWO.digest)

    def pace_of(first: str, **body: object) -> tuple[float, bool]:
        made = order(fleet, first, "rollback", **body).json()
        back.append(made["id"])
        fleet.step()
        return made["stages"][0]["soak_s"], made["rate"] is not None

    back: list[str] = []
    assert pace_of(rollout, release="digits:1") == (0.0, False)
    for _ in range(5):
        fleet.step()
    assert fleet.running(ONE.digest) == set(DEVICES)
    assert pace_of(back[0]) == (100.0, True)
    order(fleet, back[1], "abort").raise_for_status()
    assert pace_of(rollout, release="digits:2") == (100.0, True)


def test_a_way_back_does_not_wait_for_the_chosen_device_that_left(fleet: Fleet) -> None:
    assert fleet.run(fleet.roll_out("digits:1"))["state"] == "succeeded"
    rollout = fleet.roll_out("digits:2", stages=[{"selector": "id=cam-002"}, {"percent": 100}])
    assert fleet.run(rollout)["state"] == "succeeded"
    fleet.devices["cam-002"].leave()
    back = order(fleet, rollout, "rollback").json()["id"]
    for _ in range(5):
        fleet.step()
    assert fleet.running(ONE.digest) == set(DEVICES) - {"cam-002"}
    assert "waits for 1 device that is offline" in fleet.show(back)["reason"]
    fleet.devices["cam-002"].connect()
    assert fleet.run(back)["state"] == "succeeded"
    assert fleet.running(ONE.digest) == set(DEVICES)


def test_a_halt_before_anybody_has_the_release_reverts_nothing_and_says_so(fleet: Fleet) -> None:
    for device in fleet.devices.values():
        device.outcome = "failed"
    rollout = fleet.roll_out("digits:1", on_halt="revert")
    assert fleet.run(rollout)["state"] == "halted"
    (told,) = reasons(fleet.show(rollout), "revert")
    assert told.startswith("nothing is reverted: ")
    assert len(fleet.api.get("/v1/rollouts").json()) == 1


WINDOWS = ["22:00-05:00", "sat,sun 10:00-18:00"]


def test_windows_come_with_the_order_and_leave_out_agents_that_do_not_read_them(
    fleet: Fleet,
) -> None:
    fleet.desired_form = wire.desired.WINDOWS
    fleet.enrol("new-1")
    for body in ({}, {"unfit": "exclude"}):
        plan = fleet.api.post(
            "/v1/rollouts/plan", json={"release": "digits:1", "windows": WINDOWS, **body}
        ).json()
        assert plan["preflight"]["refusing"][0]["reason"].startswith("its agent knows no windows")
        assert bool(plan["refused"]) is not bool(body)
        windows = [window for text in WINDOWS if (window := parse_window(text))]
        assert plan["opens_in_s"] == opens_in_s(windows, local_time(fleet.clock.now_s()))
    path = "/v1/releases/digits:1/preflight"
    assert fleet.api.get(path).json()["refuses"] == 0
    assert fleet.api.get(path, params={"windowed": True}).json()["refuses"] == len(DEVICES)
    rollout = fleet.roll_out("digits:1", windows=WINDOWS, unfit="exclude")
    assert fleet.run(rollout)["state"] == "succeeded"
    assert fleet.running(ONE.digest) == {"new-1"}
    assert fleet.devices["new-1"].documents[-1].models[0].windows == tuple(WINDOWS)
    back = fleet.run(fleet.roll_out("digits:2", selector="id=new-1"))
    assert back["windows"] == []
    assert fleet.devices["new-1"].documents[-1].models[0].hours == ()
    refused = fleet.api.post("/v1/rollouts", json={"release": "digits:1", "windows": ["5-6"]})
    assert refused.status_code == 422
    assert "is no window that opens" in refused.json()["message"]


def test_a_device_that_waits_for_its_window_is_not_silent(fleet: Fleet) -> None:
    device = fleet.devices["cam-000"]
    device.desired_form, device.boot_id = wire.desired.WINDOWS, "updated"
    device.connect()
    device.outcome, device.phase, device.waits_for = "busy", "staging", "the rollout activates it"
    rollout = fleet.roll_out(
        "digits:1",
        selector="id=cam-000",
        windows=["sat 10:00-18:00"],
        device_deadline_s=3600,
        offline_limit_s=3600,
    )
    for _ in range(12):
        fleet.step(12 * 3600)
    assert fleet.state(rollout) == "running"


def test_an_update_of_the_agent_brings_the_windows_in_a_new_revision(fleet: Fleet) -> None:
    device = fleet.devices["cam-000"]
    fleet.run(fleet.roll_out("digits:1", selector="id=cam-000", windows=WINDOWS, unfit="allow"))
    assert device.documents[-1].models[0].hours == ()
    before, device.desired_form, device.boot_id = device.revision, wire.desired.WINDOWS, "updated"
    device.connect()
    assert device.revision == before + 1
    assert device.documents[-1].models[0].hours == tuple(WINDOWS)


def test_a_wait_for_a_window_is_no_absence(fleet: Fleet) -> None:
    device = fleet.devices["cam-000"]
    device.outcome, device.phase, device.waits_for = "busy", "verifying", "waits for its window"
    rollout = fleet.roll_out(
        "digits:1", selector="id=cam-000", offline_limit_s=60.0, device_deadline_s=600.0
    )
    for _ in range(5):
        fleet.step(30.0)
    device.phase, device.waits_for = "probing", ""
    device.report(device.revisions["digits"], ONE.digest, "busy", "digits")
    device.leave()
    fleet.step(3.0)
    fleet.step(3.0)
    assert fleet.state(rollout) == "running"
    fleet.step(70.0)
    assert "did not come back" in fleet.show(rollout)["reason"]


def test_who_joins_holds_up_no_stage_but_the_last(fleet: Fleet) -> None:
    first = ("cam-000", "cam-001", "cam-002", "cam-003")
    stages = [{"count": 2}, {"percent": 100}]
    rollout = fleet.roll_out(
        "digits:1", selector=f"id in ({','.join(first)})", stages=stages, soak_s=100.0
    )
    fleet.step()
    fleet.step()
    fleet.step(60.0)
    order(fleet, rollout, "add", devices=["cam-004"])
    fleet.step(50.0)
    assert [stage["state"] for stage in fleet.show(rollout)["stages"]] == ["done", "running"]
    fleet.step()
    fleet.step(60.0)
    assert len(fleet.running(ONE.digest)) == 5
    order(fleet, rollout, "add", devices=["cam-005"])
    fleet.step(50.0)
    fleet.step()
    fleet.step(60.0)
    assert fleet.state(rollout) == "running", "it soaks with the one that joined"
    fleet.step(50.0)
    assert fleet.state(rollout) == "succeeded"
    assert len(fleet.running(ONE.digest)) == 6
