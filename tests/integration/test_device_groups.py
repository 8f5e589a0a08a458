"""Groups and attributes from end to end: API, commands, and what is chosen by them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import delete

from controller.api.server import HttpServer
from controller.store.database import Database
from controller.store.group_tables import DeviceGroupRow
from tests.simulators.controller_fleet import Fleet
from tests.simulators.packages import PROFILE, two_variants
from tests.simulators.stack import Done, fleet_here

pytestmark = pytest.mark.flow

ONE = two_variants("1.2.0", best="one")
URL = "/v1/groups"
KEY = "xNlMo9OL/w8qCUYvd2X7gOvQxXM9lqTIDlGRjUJLbGA="
ALERT = {"kind": "absence", "name": "lost"}


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(database_url, tmp_path)
    made.publish(ONE)
    made.enrol("cam-1", "cam-2", site="berlin")
    made.enrol("cam-3", site="paris")
    yield made
    made.close()


def put(fleet: Fleet, name: str, selector: str) -> dict[str, Any]:
    answer = fleet.api.put(f"{URL}/{name}", json={"selector": selector})
    shown: dict[str, Any] = answer.raise_for_status().json()
    return shown


def selected(fleet: Fleet, selector: str) -> list[str]:
    answer = fleet.api.get("/v1/devices", params={"selector": selector}).raise_for_status()
    return [device["id"] for device in answer.json()]


def refused(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["message"]


def test_a_group_means_what_its_selector_means_now(fleet: Fleet) -> None:
    shown = put(fleet, "near", "site=berlin")
    assert shown["devices"] == ["cam-1", "cam-2"]
    assert put(fleet, "near", "site=berlin") == shown, "repeating it changes nothing"
    put(fleet, "some", "group:near and id!=cam-1")
    assert selected(fleet, "group:some or id=cam-3") == ["cam-2", "cam-3"]
    fleet.api.patch("/v1/devices/cam-2", json={"labels": {"site": "rome"}}).raise_for_status()
    assert selected(fleet, "group:some") == []
    put(fleet, "near", "site in (berlin,rome)")
    assert selected(fleet, "group:some") == ["cam-2"]
    assert [group["name"] for group in fleet.api.get(URL).json()] == ["near", "some"]
    assert fleet.api.get(f"{URL}/near").json()["used_by"] == {"groups": ["some"]}
    for each in ("some", "near"):
        assert fleet.api.delete(f"{URL}/{each}").status_code == 200
    assert fleet.api.get(URL).json() == []


def test_a_group_that_is_used_stays(fleet: Fleet) -> None:
    put(fleet, "near", "site=berlin")
    put(fleet, "free", "group:near")
    api, asks = fleet.api, {"selector": "a or group:near"}
    rollout = fleet.roll_out("digits:1.2.0", selector="group:near")
    api.put("/v1/policies/lab", json={"policy": {}, **asks}).raise_for_status()
    api.put("/v1/captures/digits", json={"share": 0.1, "public_key": KEY, **asks})
    rules = {"alert": [{**ALERT, "selector": "group:near"}]}
    applied = api.put("/v1/alerts/rules", json={"rules": rules})
    assert applied.status_code == 200, applied.text
    query = {"metric": "temperature_c", **asks}
    api.put("/v1/telemetry/saved/q", json={"query": query}).raise_for_status()
    used_by = api.get(f"{URL}/near").json()["used_by"]
    assert used_by == {
        "groups": ["free"], "rollouts": [rollout], "policies": ["lab"], "captures": ["digits"],
        "alerts": ["lost"], "saved queries": ["q"],
    }  # fmt: skip
    status, message = refused(api.delete(f"{URL}/near"))
    assert status == 409
    assert message == (
        f"group near is in use by groups free; rollouts {rollout}; policies lab; captures digits; "
        "alerts lost; saved queries q"
    )
    assert fleet.run(rollout)["state"] == "succeeded"
    assert "rollouts" not in api.get(f"{URL}/near").json()["used_by"]


def test_an_alert_with_a_wrong_selector_is_named(fleet: Fleet) -> None:
    for selector in ("a or", "a or group:none"):
        rules = {"alert": [{**ALERT, "selector": selector}]}
        fault = fleet.api.put("/v1/alerts/rules", json={"rules": rules}).json()
        assert fault["message"].startswith("alert lost: cannot read the selector at character ")
        assert fault["expression"] == selector


def test_a_rollout_whose_group_is_gone_goes_on_without_newcomers(fleet: Fleet) -> None:
    """As when two controllers made the one and removed the other at the same moment."""
    put(fleet, "near", "site=berlin")
    rollout = fleet.roll_out("digits:1.2.0", selector="group:near")
    fleet.controller.stop()
    database = Database(fleet.config.database_url)
    with database.transaction() as session:
        session.execute(delete(DeviceGroupRow))
    database.close()
    fleet.stay_down(0)
    assert fleet.run(rollout)["state"] == "succeeded"


@pytest.mark.parametrize(
    ("name", "selector", "status", "code", "character"),
    [
        ("near", "group:near", 422, "controller.selector", 1),
        ("x", "a or group:nea", 422, "controller.selector", 6),
        ("x", "a or", 422, "controller.selector", 5),
        ("x", "", 422, "controller.invalid", 0),
        ("X", "a", 422, "controller.invalid", 0),
    ],
)
def test_what_no_group_can_be(
    fleet: Fleet, name: str, selector: str, status: int, code: str, character: int
) -> None:
    put(fleet, "near", "site=berlin")
    answer = fleet.api.put(f"{URL}/{name}", json={"selector": selector})
    fault = answer.json()
    assert (answer.status_code, fault["code"], fault["character"]) == (status, code, character)
    assert fault["expression"] == (selector if character else "")
    assert "\n" not in fault["message"]
    assert fleet.api.get(f"{URL}/none").json()["code"] == "controller.unknown.group"


def test_policies_follow_what_their_selectors_mean(fleet: Fleet) -> None:
    assert fleet.run(fleet.roll_out("digits:1.2.0"))["state"] == "succeeded"

    def policies() -> list[str | None]:
        fleet.step()
        return [device.accepted[-1].policy.kind for device in fleet.devices.values()]

    put(fleet, "chosen", "site=berlin and cpu_count>=4")
    body = {"policy": {"kind": "rules"}, "selector": "group:chosen"}
    fleet.api.put("/v1/policies/p", json=body).raise_for_status()
    usual = policies()
    put(fleet, "chosen", "site=paris")
    assert policies() == [usual[0], usual[1], "rules"]
    put(fleet, "chosen", "memory_bytes>=64GiB")
    large = fleet.devices["cam-2"]
    large.profile = msgspec.structs.replace(PROFILE, memory_bytes=64 * 2**30)
    assert "rules" not in policies()
    large.connect()
    assert policies() == [usual[0], "rules", usual[2]]
    for selector in ("online=true", "model.digits=1.2.0"):
        answer = fleet.api.put("/v1/policies/q", json={**body, "selector": selector})
        assert "changes while a device works" in refused(answer)[1]
    answer = fleet.api.put(f"{URL}/chosen", json={"selector": "x or silent_s>1h"})
    assert "silent_s changes" in refused(answer)[1]


def test_labels_and_attributes_are_shown_apart_and_select_apart(fleet: Fleet) -> None:
    assert fleet.run(fleet.roll_out("digits:1.2.0", selector="id=cam-1"))["state"] == "succeeded"
    fleet.enrol("old", cpu_count="many")  # as an earlier version let it
    shown = fleet.api.get("/v1/devices/old").json()
    assert shown["labels"] == {"cpu_count": "many"}
    assert shown["attributes"]["cpu_count"] == PROFILE.cpu_count
    assert selected(fleet, f"cpu_count={PROFILE.cpu_count} and label:cpu_count=many") == ["old"]
    labels = {"cpu_count": "many", "site": "rome"}
    fleet.api.patch("/v1/devices/old", json={"labels": labels}).raise_for_status()
    answer = fleet.api.patch("/v1/devices/old", json={"labels": {**labels, "online": "x"}})
    assert "'online' is not a valid label: it is an attribute" in refused(answer)[1]
    assert selected(fleet, "model.digits=1.2.0") == ["cam-1"]
    assert selected(fleet, "agent_version<1.1 and not model.digits>=1.2") == [
        "cam-2", "cam-3", "old",
    ]  # fmt: skip
    fleet.devices["cam-3"].leave()
    fleet.clock.advance(3600)
    assert selected(fleet, "silent_s>59m and online=false") == ["cam-3"]


def test_the_commands(sqlite_template: Path, tmp_path: Path) -> None:
    database = tmp_path / "fleet.db"
    database.write_bytes(sqlite_template.read_bytes())
    made = Fleet(f"sqlite:///{database}", tmp_path)
    made.enrol("cam-1", "cam-2", site="berlin")
    server = HttpServer("127.0.0.1", 0)
    server.start(made.controller.app)
    where = (
        "--url",
        f"http://127.0.0.1:{server.port}",
        "--token-file",
        str(tmp_path / "api.token"),
    )

    def run(*words: str) -> Done:
        return fleet_here(*words, *where)

    try:
        assert run("group", "list").err == (
            "there are no groups; `fleet group set NAME SELECTOR` makes one\n"
        )
        done = run("group", "set", "near", "site=berlin and agent_version<2")
        assert (done.code, done.out) == (0, "group near means 2 enrolled devices now\n")
        assert run("group", "list").out.splitlines()[1].startswith("near   site=berlin and")
        assert run("group", "show", "near").out.splitlines()[-3:] == [
            "devices   2", "cam-1", "cam-2",
        ]  # fmt: skip
        assert run("group", "show", "near", "--json").json["devices"] == ["cam-1", "cam-2"]
        (first, _) = run("device", "list", "--selector", "group:near", "--json").json
        assert (first["labels"], first["attributes"]["id"]) == ({"site": "berlin"}, "cam-1")
        shown = run("device", "show", "cam-1").out
        assert "site=berlin" in shown
        assert f"memory_bytes   {PROFILE.memory_bytes}\n" in shown
        none = run("device", "list", "--selector", "sit=berlin")
        assert "no device has a label 'sit'; did you mean site?" in none.err
        wrong = run("device", "list", "--selector", "site=berlin and (a or")
        fault, *place = wrong.err.splitlines()
        assert (wrong.code, place) == (2, ["  site=berlin and (a or", " " * 23 + "^"])
        assert fault.startswith("fleet: cannot read the selector at character 22: a condition is")
        assert run("group", "remove", "near").out == "group near is removed\n"
        assert "there is no group 'near'" in run("group", "remove", "near").err
    finally:
        server.stop()
        made.close()
