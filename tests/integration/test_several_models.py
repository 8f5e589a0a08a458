"""Several models on one device: each is rolled out, reported, revoked and removed by itself."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from httpx import Response

from controller.domain.states import DeviceState
from controller.services.director import RESEND_EVERY_S
from controller.store import desired
from controller.store.database import Database
from tests.simulators.controller_fleet import Fleet, FleetDevice, names
from tests.simulators.packages import SignedPackage, package, two_variants, variant
from wire import topics
from wire.codec import sha256_hex, to_json
from wire.desired import MAX_MODELS, NAMED_MODELS, ONE_RELEASE
from wire.installs import Refusal
from wire.transport import Received

pytestmark = pytest.mark.flow


def faces_of(version: str) -> SignedPackage:
    return package(version, [(variant("best"), f"faces {version}".encode())], name="faces")


DIGITS, DIGITS_2 = two_variants("1", best="one"), two_variants("2", best="two")
FACES, FACES_2 = faces_of("1"), faces_of("2")
ALL = (DIGITS, DIGITS_2, FACES, FACES_2)


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(database_url, tmp_path)
    for each in ALL:
        made.publish(each)
        made.clock.advance(1)
    yield made
    made.close()


def bring(fleet: Fleet, *releases: str, **settings: object) -> None:
    for release in releases:
        assert fleet.run(fleet.roll_out(release, **settings))["state"] == "succeeded"


def with_both(fleet: Fleet, *devices: str) -> FleetDevice:
    """Enrol devices and bring both models to them; return the first."""
    fleet.enrol(*devices)
    bring(fleet, "digits:1", "faces:1")
    return fleet.devices[devices[0]]


def named(device: FleetDevice) -> dict[str, str | None]:
    """Return the models of the newest document, each with the digest of its release."""
    models = device.documents[-1].models
    return {model.name: model.release.digest if model.release else None for model in models}


def shown(fleet: Fleet, device: str = "cam-1") -> dict[str, dict[str, Any]]:
    found = fleet.api.get(f"/v1/devices/{device}").raise_for_status().json()
    return {model["name"]: model for model in found["models"]}


def counts(fleet: Fleet, rollout: str) -> object:
    return fleet.show(rollout)["counts"]


def removed(fleet: Fleet, model: str, selector: str = "") -> Response:
    answer: Response = fleet.api.delete(f"/v1/models/{model}", params={"selector": selector})
    return answer


def test_two_rollouts_at_once_and_one_of_them_halts(fleet: Fleet) -> None:
    devices = names("cam", 6)
    with_both(fleet, *devices)
    for device in fleet.devices.values():
        device.outcomes = {"faces": "failed"}
    stages = [{"count": 2}, {"percent": 100}]
    good = fleet.roll_out("digits:2", stages=stages)
    bad = fleet.roll_out("faces:2", stages=stages)
    for _ in range(8):
        fleet.step()
    assert (fleet.state(good), fleet.state(bad)) == ("succeeded", "halted")
    assert counts(fleet, good) == {"succeeded": 6}
    assert fleet.running(DIGITS_2.digest) == set(devices)
    assert fleet.running(FACES.digest) == set(devices), "it never left any of them"
    assert fleet.show(bad)["model"] == "faces"
    tried = [part["device"] for part in fleet.show(bad)["deployments"] if part["error_code"]]
    for name in tried:
        assert named(fleet.devices[name]) == {"digits": DIGITS_2.digest, "faces": FACES.digest}


@pytest.mark.parametrize("killed", [False, True], ids=["", "killed-at-every-step"])
def test_a_document_names_both_and_only_what_changed_has_a_new_revision(
    fleet: Fleet, killed: bool
) -> None:
    fleet.kill_every_step = killed
    device = with_both(fleet, "cam-1")
    first = device.documents[-1]
    bring(fleet, "digits:2")
    second = device.documents[-1]
    assert named(device) == {"digits": DIGITS_2.digest, "faces": FACES.digest}
    assert second.revision > first.revision
    revisions = [[model.revision for model in each.models] for each in (first, second)]
    assert revisions == [[1, first.revision], [second.revision, first.revision]]
    assert not second.faults()


def test_what_one_model_says_touches_no_deployment_of_the_other(fleet: Fleet) -> None:
    fleet.enrol("cam-1")
    device = fleet.devices["cam-1"]
    device.outcomes = {"digits": "busy", "faces": "busy"}
    one, other = fleet.roll_out("digits:1"), fleet.roll_out("faces:1")
    fleet.step()
    wanted = device.documents[-1]
    faces = wanted.model("faces")
    assert faces is not None
    device.report(faces.revision, FACES.digest, "failed", "faces")
    fleet.step()
    assert (fleet.state(one), fleet.state(other)) == ("running", "halted")
    assert fleet.show(one)["deployments"][0]["error_code"] == ""
    assert shown(fleet)["digits"]["last_error"] == ""
    assert shown(fleet)["faces"]["last_error"] == "agent.probe: the golden test failed"


def test_of_one_model_a_device_takes_part_in_one_rollout(fleet: Fleet) -> None:
    fleet.enrol("cam-1")
    fleet.devices["cam-1"].outcome = "busy"
    first = fleet.roll_out("digits:1")
    fleet.step()
    fleet.roll_out("faces:1")
    second = fleet.api.post("/v1/rollouts", json={"release": "digits:2"})
    assert second.status_code == 409
    assert f"takes part in rollout {first}" in second.json()["message"]


def test_a_first_install_that_fails_leaves_nothing_of_the_model(fleet: Fleet) -> None:
    fleet.enrol("cam-1")
    bring(fleet, "digits:1")
    device = fleet.devices["cam-1"]
    device.outcomes = {"faces": "failed"}
    rollout = fleet.roll_out("faces:1")
    assert fleet.run(rollout)["state"] == "halted"
    assert named(device) == {"digits": DIGITS.digest}
    assert device.actives == {"digits": DIGITS.digest}
    device.outcomes = {}
    again = fleet.api.post(f"/v1/rollouts/{rollout}/retry", json={}).raise_for_status().json()
    assert fleet.run(again["id"])["state"] == "succeeded"
    assert named(device) == {"digits": DIGITS.digest, "faces": FACES.digest}


def test_a_rollback_brings_back_one_model_and_no_release_of_another(fleet: Fleet) -> None:
    device = with_both(fleet, "cam-1")
    rollout = fleet.roll_out("digits:2")
    fleet.run(rollout)
    path = f"/v1/rollouts/{rollout}/rollback"
    wrong = fleet.api.post(path, json={"release": "faces:2"})
    assert wrong.status_code == 409
    assert f"rollout {rollout} is of model digits" in wrong.json()["message"]
    back = fleet.api.post(path, json={}).raise_for_status().json()
    assert fleet.run(back["id"])["state"] == "succeeded"
    assert device.actives == {"digits": DIGITS.digest, "faces": FACES.digest}


def test_a_revoked_release_holds_back_no_other_model(fleet: Fleet) -> None:
    device = with_both(fleet, "cam-1")
    before = device.revision
    fleet.api.post("/v1/releases/faces:1/revoke").raise_for_status()
    assert named(device) == {"digits": DIGITS.digest, "faces": None}
    assert device.revision > before, "a revision always means the same document"
    assert device.actives["faces"] == FACES.digest, "it goes on"
    bring(fleet, "digits:2")
    assert named(device) == {"digits": DIGITS_2.digest, "faces": None}


def test_a_device_that_lost_one_model_is_told_again(fleet: Fleet) -> None:
    device = with_both(fleet, "cam-1")
    device.actives["faces"] = None
    device.connect()
    assert device.actives == {"digits": DIGITS.digest, "faces": FACES.digest}
    device.outcomes = {"faces": "silent"}
    device.actives["faces"] = FACES_2.digest
    device.connect()
    listed = fleet.api.get("/v1/devices", params={"drifted": True}).json()
    assert [item["id"] for item in listed] == ["cam-1"]
    assert [model["drifted"] for model in listed[0]["models"]] == [False, True]
    device.outcomes = {}
    fleet.step(RESEND_EVERY_S + 1)
    assert device.actives["faces"] == FACES.digest


def test_a_device_that_refuses_a_document_has_failed_in_what_came_with_it(fleet: Fleet) -> None:
    fleet.enrol("cam-1")
    device = fleet.devices["cam-1"]
    device.outcome = "busy"
    first = fleet.roll_out("digits:1")
    fleet.step()
    envelopes: list[bytes] = []
    fleet.hub.on(topics.down("cam-1", "desired"), lambda each: envelopes.append(each.payload))
    device.outcome = "silent"
    second = fleet.roll_out("faces:1")
    fleet.step()
    refusal = Refusal(
        device="cam-1",
        sha256=sha256_hex(envelopes[-1]),
        error_code="agent.refused",
        detail="no",
    )
    fleet.controller.receive(Received(topics.up("cam-1", "refusal"), to_json(refusal)))
    device.outcome = "busy"
    fleet.step()
    assert (fleet.state(first), fleet.state(second)) == ("running", "halted")


def test_a_model_is_removed_and_the_others_stay(fleet: Fleet) -> None:
    device = with_both(fleet, "cam-1", "cam-2")
    rows = {model["name"]: model for model in fleet.api.get("/v1/models").json()}
    assert (rows["faces"]["running"], rows["faces"]["desired"]) == (2, 2)
    answer = removed(fleet, "faces", "id=cam-1").raise_for_status().json()
    assert answer == {"model": "faces", "devices": 1, "kept": []}
    assert device.actives == {"digits": DIGITS.digest}
    assert list(shown(fleet)) == ["digits"]
    assert fleet.devices["cam-2"].actives["faces"] == FACES.digest
    bring(fleet, "digits:2")
    assert named(device) == {"digits": DIGITS_2.digest}, "it is not named again"
    bring(fleet, "faces:2", selector="id=cam-1")
    assert device.actives == {"digits": DIGITS_2.digest, "faces": FACES_2.digest}


def test_a_model_is_not_removed_under_its_rollout(fleet: Fleet) -> None:
    device = with_both(fleet, "cam-1")
    device.outcome = "busy"
    rollout = fleet.roll_out("faces:2")
    fleet.step()
    refused = removed(fleet, "faces")
    assert refused.status_code == 409
    assert f"takes part in rollout {rollout}" in refused.json()["message"]
    assert removed(fleet, "digits").status_code == 200


@pytest.mark.parametrize(
    ("model", "code", "text"),
    [("face", "controller.unknown.model", "did you mean faces? there are the models"),
     ("faces", "controller.conflict", "`fleet device list`")],
)  # fmt: skip
def test_what_is_not_there_cannot_be_removed(
    fleet: Fleet, model: str, code: str, text: str
) -> None:
    fleet.enrol("cam-1")
    fault = removed(fleet, model).json()
    assert fault["code"] == code
    assert text in fault["remedy"]


def test_a_model_that_nobody_ordered_stays_until_it_is_removed(fleet: Fleet) -> None:
    fleet.enrol("cam-1")
    device = fleet.devices["cam-1"]
    device.actives["by-hand"] = "f" * 64
    device.connect()
    bring(fleet, "digits:1")
    assert named(device) == {"by-hand": None, "digits": DIGITS.digest}
    assert shown(fleet)["by-hand"]["release"] == "f" * 64
    removed(fleet, "by-hand").raise_for_status()
    assert device.actives == {"digits": DIGITS.digest}
    bring(fleet, "digits:2")
    assert named(device) == {"digits": DIGITS_2.digest}


def test_an_older_agent_is_left_out_of_a_second_model(fleet: Fleet) -> None:
    fleet.desired_form = ONE_RELEASE
    fleet.enrol("old")
    fleet.desired_form = NAMED_MODELS
    fleet.enrol("new")
    bring(fleet, "digits:1")
    why = "its agent has one model, digits: update the agent"
    refused = fleet.api.post("/v1/rollouts", json={"release": "faces:1"})
    assert refused.status_code == 409
    assert f"such as old: {why}" in refused.json()["message"]
    said = fleet.api.get("/v1/releases/faces:1/preflight").json()
    assert [(item["reason"], item["devices"]) for item in said["refusing"]] == [(why, ["old"])]
    bring(fleet, "faces:1", unfit="exclude")
    assert fleet.running(FACES.digest) == {"new"}
    bring(fleet, "digits:2")
    assert fleet.running(DIGITS_2.digest) == {"old", "new"}


def test_an_older_agent_that_is_to_run_two_hears_nothing_until_it_is_updated(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.desired_form = ONE_RELEASE
    fleet.enrol("cam-1")
    bring(fleet, "digits:1")
    device = fleet.devices["cam-1"]
    with caplog.at_level(logging.WARNING):
        rollout = fleet.roll_out("faces:1", unfit="allow")
        for _ in range(3):
            fleet.step(RESEND_EVERY_S + 1)
    assert len(device.documents) == 1
    (line,) = [text for text in caplog.messages if text.startswith("nothing is sent")]
    assert "the agent of device cam-1 has one model, and it should run digits, faces" in line
    by_hand = fleet.api.get("/v1/devices/cam-1/desired")
    assert by_hand.status_code == 409
    assert "has one model" in by_hand.json()["message"]
    device.desired_form, device.boot_id = NAMED_MODELS, "updated"
    device.connect()
    assert fleet.run(rollout)["state"] == "succeeded"
    assert device.actives == {"digits": DIGITS.digest, "faces": FACES.digest}


def test_an_update_of_the_agent_gives_its_document_a_new_revision(fleet: Fleet) -> None:
    fleet.desired_form = ONE_RELEASE
    fleet.enrol("cam-1")
    bring(fleet, "digits:1")
    device = fleet.devices["cam-1"]
    before = device.revision
    device.desired_form, device.boot_id = NAMED_MODELS, "updated"
    device.connect()
    assert device.revision == before + 1
    assert named(device) == {"digits": DIGITS.digest}


def test_an_older_agent_keeps_a_model_that_is_removed_and_takes_another(fleet: Fleet) -> None:
    fleet.desired_form = ONE_RELEASE
    fleet.enrol("cam-1")
    bring(fleet, "digits:1")
    assert removed(fleet, "digits").raise_for_status().json()["kept"] == ["cam-1"]
    device = fleet.devices["cam-1"]
    heard: list[object] = []
    device.hears = heard.append
    fleet.step(RESEND_EVERY_S + 1)
    assert heard == [], "it has answered"
    assert shown(fleet)["digits"]["release"] == "digits:1"
    bring(fleet, "faces:1")
    assert device.active == FACES.digest
    assert shown(fleet)["faces"]["release"] == "faces:1"


def test_an_older_agent_whose_first_install_fails_is_told_once_that_it_has_nothing(
    fleet: Fleet,
) -> None:
    fleet.desired_form = ONE_RELEASE
    fleet.enrol("cam-1")
    device = fleet.devices["cam-1"]
    device.outcome = "failed"
    assert fleet.run(fleet.roll_out("digits:1"))["state"] == "halted"
    assert [told.release is None for told in device.accepted] == [False, True]
    heard: list[object] = []
    device.hears = heard.append
    for _ in range(3):
        fleet.step(RESEND_EVERY_S + 1)
    assert heard == [], "it has answered"
    device.outcome = "succeeded"
    bring(fleet, "digits:1")
    assert device.active == DIGITS.digest


def test_a_device_has_a_greatest_number_of_models(fleet: Fleet, database_url: str) -> None:
    fleet.enrol("cam-1")
    database = Database(database_url)
    with database.transaction() as session:
        for number in range(MAX_MODELS):
            ordered: dict[str, str | None] = {"cam-1": None}
            desired.issue(session, f"m{number}", ordered, rollout=None, now_s=1.0)
    database.close()
    refused = fleet.api.post("/v1/rollouts", json={"release": "digits:1"})
    assert refused.status_code == 409
    why = f"it has {MAX_MODELS} models, and a device has {MAX_MODELS} at most"
    assert why in refused.json()["message"]


def test_a_policy_for_one_model_leaves_the_others(fleet: Fleet) -> None:
    device = with_both(fleet, "cam-1")
    body = {"model": "faces", "policy": {"kind": "rules", "sharing": {"weight": 2}}}
    fleet.api.put("/v1/policies/fast", json=body).raise_for_status()
    fleet.step()
    kinds = {model.name: model.policy.kind for model in device.documents[-1].models}
    assert kinds == {"digits": "adaptive", "faces": "rules"}
    assert {name: model["policy"] for name, model in shown(fleet).items()} == {
        "digits": None,
        "faces": "fast",
    }
    assert all(model["policy_accepted"] for model in shown(fleet).values())
    assert fleet.api.get("/v1/policies/fast").json()["accepted"] == 1


def test_a_policy_for_a_model_that_is_not_there_is_refused(fleet: Fleet) -> None:
    body = {"model": "digit", "policy": {}}
    fault = fleet.api.put("/v1/policies/fast", json=body)
    assert fault.status_code == 404
    assert fault.json()["message"] == "there is no model 'digit'"
    assert fault.json()["remedy"] == "did you mean digits? there are the models digits and faces"


@pytest.mark.parametrize(
    ("release", "remedy"),
    [
        ("digts:1", "did you mean digits:1 or digits:2? there are the releases"),
        ("faces:9", "did you mean faces:"),
        ("other:3", "there are the releases digits:2 and faces:2"),
    ],
)
def test_a_rollout_of_what_is_not_there_says_what_is(
    fleet: Fleet, release: str, remedy: str
) -> None:
    fleet.enrol("cam-1")
    fault = fleet.api.post("/v1/rollouts", json={"release": release}).json()
    assert fault["message"] == f"no release '{release}' has been published"
    assert remedy in fault["remedy"]


def test_a_device_that_is_shut_out_leaves_the_rollouts_of_all_its_models(fleet: Fleet) -> None:
    fleet.enrol("cam-1")
    fleet.devices["cam-1"].outcome = "busy"
    rollouts = [fleet.roll_out("digits:1"), fleet.roll_out("faces:1")]
    fleet.step()
    body = {"state": DeviceState.QUARANTINED}
    fleet.api.patch("/v1/devices/cam-1", json=body).raise_for_status()
    for rollout in rollouts:
        assert counts(fleet, rollout) == {"cancelled": 1}
