"""Which devices can take a release: asked through the API, and when a rollout begins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.simulators.controller_fleet import Fleet
from tests.simulators.packages import PROFILE, two_variants
from wire import topics
from wire.codec import sha256_hex, to_json
from wire.errors import SignatureError
from wire.installs import Refusal
from wire.transport import Received

pytestmark = pytest.mark.flow

ONE = two_variants("1", best="one")
TWO = two_variants("2", best="two")
LACKS = "no variant fits: best needs the runtime null; small needs the runtime null"


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(database_url, tmp_path)
    made.publish(ONE)
    made.publish(TWO)
    yield made
    made.close()


def cams(count: int) -> list[str]:
    return [f"cam-{number}" for number in range(count)]


def lack_runtime(fleet: Fleet, *devices: str) -> None:
    for name in devices:
        fleet.devices[name].runtimes = ()
        fleet.devices[name].connect()


def check(fleet: Fleet, release: str = "digits:1", **params: Any) -> dict[str, Any]:
    answer = fleet.api.get(f"/v1/releases/{release}/preflight", params=params)
    found: dict[str, Any] = answer.raise_for_status().json()
    return found


def create(fleet: Fleet, **body: Any) -> tuple[int, dict[str, Any]]:
    answer = fleet.api.post("/v1/rollouts", json={"release": "digits:1", **body})
    return answer.status_code, answer.json()


def states(shown: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {d["device"]: (d["state"], d["error_code"]) for d in shown["deployments"]}


def test_a_fleet_is_asked_before_anything_is_sent(fleet: Fleet) -> None:
    fleet.enrol(*cams(6), site="berlin")
    lack_runtime(fleet, "cam-1", "cam-2", "cam-3")
    cramped = fleet.devices["cam-4"]
    cramped.profile = msgspec.structs.replace(PROFILE, storage_bytes=10)
    cramped.connect()
    fleet.devices["cam-5"].leave()
    said = check(fleet, selector="site=berlin", limit=2)
    counts = {key: said[key] for key in ("takes", "runs", "offline", "refuses", "unknown")}
    assert counts == {"takes": 2, "runs": 0, "offline": 1, "refuses": 4, "unknown": 0}
    lacking, full = said["refusing"]
    assert lacking == {"reason": LACKS, "count": 3, "devices": ["cam-1", "cam-2"]}
    assert (full["count"], full["devices"]) == (1, ["cam-4"])
    assert "bytes of storage, but the profile allows 10" in full["reason"]
    assert check(fleet, selector="site=paris")["takes"] == 0
    assert not any(device.accepted for device in fleet.devices.values())


def test_what_is_not_known_is_no_refusal(fleet: Fleet) -> None:
    fleet.enrol("cam-1", "cam-2")
    token = fleet.api.post("/v1/tokens", json={"uses": 1}).json()["token"]
    silent = fleet.device("silent")
    silent.profile = msgspec.structs.replace(PROFILE, runtimes=())
    assert silent.ask_to_enrol(token).accepted
    fleet.api.patch("/v1/devices/cam-2", json={"state": "quarantined"}).raise_for_status()
    said = check(fleet)
    counts = {key: said[key] for key in ("takes", "refuses", "unknown", "shut_out")}
    assert counts == {"takes": 1, "refuses": 0, "unknown": 1, "shut_out": 1}
    assert said["unknown_devices"] == ["silent"]
    assert create(fleet)[0] == 201


def test_a_device_that_runs_it_takes_it_even_without_room_for_two(fleet: Fleet) -> None:
    fleet.enrol("cam-1")
    fleet.run(fleet.roll_out("digits:1"))
    device = fleet.devices["cam-1"]
    device.profile = msgspec.structs.replace(PROFILE, storage_bytes=3000)
    device.connect()
    assert (check(fleet)["takes"], check(fleet)["runs"]) == (1, 1)
    refused = check(fleet, "digits:2")["refusing"][0]["reason"]
    assert "of what it runs, but the profile allows 3000 to packages" in refused


def test_a_rollout_with_devices_that_cannot_take_it_does_not_begin(fleet: Fleet) -> None:
    fleet.enrol(*cams(3))
    lack_runtime(fleet, "cam-2")
    status, fault = create(fleet, selector="id in (cam-0, cam-1, cam-2)")
    assert (status, fault["code"]) == (409, "controller.unfit")
    assert fault["message"] == f"1 of 3 devices cannot take digits:1, such as cam-2: {LACKS}"
    assert fault["remedy"].startswith(
        "`fleet rollout check digits:1 --selector 'id in (cam-0, cam-1, cam-2)'` names them; --excl"
    )
    assert fleet.api.get("/v1/rollouts").json() == []
    assert create(fleet, unfit="refuse")[0] == 409
    assert create(fleet, unfit="perhaps")[0] == 422


def test_devices_that_cannot_take_it_are_left_out_and_named(fleet: Fleet) -> None:
    fleet.enrol(*cams(4))
    lack_runtime(fleet, "cam-2")
    status, shown = create(fleet, unfit="exclude", stages=[{"percent": 100}])
    assert status == 201
    assert states(shown)["cam-2"] == ("cancelled", "controller.unfit")
    assert [e["reason"] for e in shown["events"] if e["action"] == "skip"] == [
        "1 device left out: cannot take the release: cam-2"
    ]
    ended = fleet.run(shown["id"])
    assert (ended["state"], ended["counts"]) == ("succeeded", {"cancelled": 1, "succeeded": 3})
    assert ended["left_out"] == 1
    assert [each["left_out"] for each in fleet.api.get("/v1/rollouts").json()] == [1]
    assert fleet.devices["cam-2"].accepted == []
    again = fleet.api.post(f"/v1/rollouts/{shown['id']}/retry", json={})
    assert again.status_code == 409, "it still cannot take it"


def test_one_that_is_left_out_can_be_brought_along_later(fleet: Fleet) -> None:
    fleet.enrol(*cams(3))
    lack_runtime(fleet, "cam-2")
    fleet.run(create(fleet, unfit="exclude")[1]["id"])
    fleet.devices["cam-2"].runtimes = ("null",)
    fleet.devices["cam-2"].connect()
    assert check(fleet)["refuses"] == 0
    assert fleet.run(fleet.roll_out("digits:1"))["counts"] == {"succeeded": 3}


def test_a_halt_and_a_resume_bring_back_nobody_who_was_left_out(fleet: Fleet) -> None:
    fleet.enrol(*cams(6))
    lack_runtime(fleet, "cam-2")
    for device in fleet.devices.values():
        device.outcome = "failed"
    rollout = create(fleet, unfit="exclude", stages=[{"count": 1}, {"percent": 100}])[1]["id"]
    assert fleet.run(rollout)["state"] == "halted"
    for device in fleet.devices.values():
        device.outcome = "succeeded"
    fleet.api.post(f"/v1/rollouts/{rollout}/resume").raise_for_status()
    ended = fleet.run(rollout)
    assert ended["state"] == "succeeded"
    assert states(ended)["cam-2"] == ("cancelled", "controller.unfit")
    assert fleet.devices["cam-2"].accepted == []


def test_devices_that_cannot_take_it_may_fail(fleet: Fleet) -> None:
    fleet.enrol(*cams(3))
    lack_runtime(fleet, "cam-2")
    fleet.devices["cam-2"].outcome = "failed"
    status, shown = create(fleet, unfit="allow")
    assert status == 201
    assert "unfit" in {event["action"] for event in shown["events"]}
    ended = fleet.run(shown["id"])
    assert (ended["state"], states(ended)["cam-2"][0]) == ("halted", "failed")


@pytest.mark.parametrize("unfit", [None, "refuse", "exclude"])
def test_a_rollout_that_nobody_can_take_does_not_begin(fleet: Fleet, unfit: str | None) -> None:
    fleet.enrol("cam-1")
    lack_runtime(fleet, "cam-1")
    status, fault = create(fleet, unfit=unfit)
    assert (status, fault["code"]) == (409, "controller.unfit")
    assert fault["message"] == f"cam-1 cannot take digits:1: {LACKS}"
    assert "--allow-unfit" in fault["remedy"]


def test_the_operator_may_try_a_release_that_nobody_seems_to_take(fleet: Fleet) -> None:
    fleet.enrol("cam-1")
    lack_runtime(fleet, "cam-1")
    status, shown = create(fleet, unfit="allow")
    assert status == 201
    assert fleet.run(shown["id"])["state"] == "succeeded", "the device has the last word"


def test_devices_that_enrol_later_join_only_if_they_can_take_it(fleet: Fleet) -> None:
    fleet.enrol(*cams(2))
    fleet.devices["cam-1"].outcome = "busy"
    rollout = fleet.roll_out("digits:1")
    fleet.step()
    token = fleet.api.post("/v1/tokens", json={"uses": 2}).json()["token"]
    for name, runtimes in (("late-1", ("null",)), ("late-2", ())):
        late = fleet.device(name)
        late.runtimes = runtimes
        assert late.ask_to_enrol(token).accepted
        late.connect()
    for _ in range(5):
        fleet.step()
    shown = fleet.show(rollout)
    assert states(shown)["late-1"][0] == "succeeded"
    assert states(shown)["late-2"] == ("cancelled", "controller.unfit")
    skipped = [event for event in shown["events"] if event["action"] == "skip"]
    assert len(skipped) == 1, "it is asked once"


def test_a_fault_of_the_past_decides_nothing(fleet: Fleet) -> None:
    fleet.enrol("cam-1", "cam-2")
    refuse_signatures(fleet, "cam-1")
    assert fleet.run(fleet.roll_out("digits:1", selector="id=cam-1"))["state"] == "halted"
    assert fleet.api.get("/v1/devices/cam-1").json()["last_error"].startswith("wire.signature: ")
    assert (check(fleet)["takes"], check(fleet)["refuses"]) == (2, 0), "its trust may be mended"
    assert create(fleet, selector="id=cam-1")[0] == 201


def refuse_signatures(fleet: Fleet, name: str) -> None:
    """Let a device trust nothing that it is sent."""

    def refuse(received: Received) -> None:
        if topics.down_kind(received.topic) == "desired":
            refusal = Refusal(
                device=name,
                sha256=sha256_hex(received.payload),
                error_code=SignatureError.code,
                detail="0 of 1 signatures are valid",
            )
            fleet.controller.receive(Received(topics.up(name, "refusal"), to_json(refusal)))

    fleet.devices[name].outcome = "silent"
    fleet.hub.on(topics.all_down(name), refuse)


def test_an_unknown_release_or_selector_is_a_fault(fleet: Fleet) -> None:
    assert fleet.api.get("/v1/releases/digits:9/preflight").status_code == 404
    wrong = fleet.api.get("/v1/releases/digits:1/preflight", params={"selector": "a=("})
    assert wrong.status_code == 422
    assert fleet.api.get("/v1/releases/digits:1/preflight?limit=0").status_code == 422
    fleet.api.post("/v1/releases/digits:1/revoke").raise_for_status()
    assert fleet.api.get("/v1/releases/digits:1/preflight").status_code == 409
