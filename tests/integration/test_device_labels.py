"""Labels of several devices, changed by one order: the API, the audit log, and the command."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.api.server import HttpServer
from controller.domain.selectors import MAX_LABELS
from tests.simulators.controller_fleet import Fleet
from tests.simulators.packages import two_variants
from tests.simulators.stack import Done, fleet_here

pytestmark = pytest.mark.flow

URL = "/v1/devices/labels"


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(database_url, tmp_path)
    made.publish(two_variants("1"))
    made.enrol("cam-1", "cam-2", site="berlin")
    made.enrol("cam-3", site="paris")
    yield made
    made.close()


def label(fleet: Fleet, **asked: Any) -> dict[str, Any]:
    shown: dict[str, Any] = fleet.api.post(URL, json=asked).raise_for_status().json()
    return shown


def labels(fleet: Fleet) -> dict[str, dict[str, str]]:
    found = fleet.api.get("/v1/devices").raise_for_status().json()
    return {device["id"]: device["labels"] for device in found}


def subject(fleet: Fleet) -> str:
    (row,) = fleet.api.get("/v1/audit", params={"limit": 1}).json()
    return f"{row['action']} {row['subject']} {row['outcome']}"


def test_devices_that_are_named_or_selected_get_labels_and_lose_others(fleet: Fleet) -> None:
    done = label(fleet, devices=["cam-3", "cam-1"], set={"site": "berlin", "owner": "kim"})
    assert (done["matched"], done["changed"]) == (2, 2)
    new, other = done["devices"]
    assert new == {"device": "cam-1", "before": {}, "after": {"owner": "kim"}}
    assert (other["device"], other["before"]) == ("cam-3", {"site": "paris"})
    assert other["after"] == {"site": "berlin", "owner": "kim"}
    assert subject(fleet) == (f"POST {URL} site=berlin owner=kim on 2 of cam-3, cam-1 committed")
    done = label(fleet, selector="site=berlin", set={"owner": "kim"}, remove=["stage"])
    assert (done["matched"], done["changed"]) == (3, 1), "what it has already is no change"
    done = label(fleet, selector="owner=kim", remove=["owner"])
    assert done["devices"][0] == {"device": "cam-1", "before": {"owner": "kim"}, "after": {}}
    assert all(each == {"site": "berlin"} for each in labels(fleet).values())
    assert subject(fleet).endswith("owner- on 3 of owner=kim committed")


def test_a_change_reaches_the_policies_of_all_of_them(fleet: Fleet) -> None:
    fleet.roll_out("digits:1")
    for _ in range(3):
        fleet.step(1.0)
    policy = {"selector": "stage=canary", "policy": {"kind": "rules"}}
    fleet.api.put("/v1/policies/calm", json=policy).raise_for_status()
    label(fleet, selector="site=berlin", set={"stage": "canary"})
    fleet.step(1.0)
    found = fleet.api.get("/v1/devices").json()
    assert [device["policy"] for device in found] == ["calm", "calm", None]


def test_a_dry_run_changes_nothing(fleet: Fleet) -> None:
    before = labels(fleet)
    done = label(fleet, selector="", set={"site": "rome"}, dry_run=True)
    assert (done["matched"], done["changed"]) == (3, 3)
    assert labels(fleet) == before


@pytest.mark.parametrize(
    ("asked", "status", "text"),
    [
        ({"set": {"a": "1"}}, 422, "no device is named"),
        ({"devices": ["cam-1"], "selector": "", "set": {"a": "1"}}, 422, "one of the two"),
        ({"devices": ["cam-1"]}, 422, "no label is to be set or removed"),
        ({"devices": ["cam-1"], "set": {"a": "1"}, "remove": ["a"]}, 422, "and to be removed"),
        ({"devices": ["cam-1", "cam-9"], "set": {"a": "1"}}, 404, "no device 'cam-9' is enrolled"),
        ({"selector": "", "remove": [""]}, 422, "'' is not a valid label"),
        ({"selector": "", "remove": ["site", "a\0"]}, 422, "'a\\x00' is not a valid label"),
        ({"selector": "", "remove": ["x" * 4000]}, 422, "is not a valid label"),
        ({"selector": "", "remove": ["arch"]}, 422, "it is an attribute"),
        ({"selector": "site=rome", "set": {"a": "1"}}, 422, "no device matches the selector"),
        ({"devices": ["cam-1"], "set": {"a": "b c"}}, 422, "cam-1: the value of label a is not"),
        ({"devices": ["cam-1"], "set": {"profile": "x"}}, 422, "it is an attribute"),
        ({"selector": "site=", "set": {"a": "1"}}, 422, "a value is missing"),
    ],
)
def test_what_cannot_be_changes_no_device(
    fleet: Fleet, asked: dict[str, Any], status: int, text: str
) -> None:
    before = labels(fleet)
    answer = fleet.api.post(URL, json=asked)
    assert (answer.status_code, text in answer.json()["message"]) == (status, True), answer.text
    assert labels(fleet) == before


def test_one_device_that_would_have_too_many_labels_changes_none(fleet: Fleet) -> None:
    full = {f"k{number}": "1" for number in range(MAX_LABELS)}
    fleet.api.patch("/v1/devices/cam-2", json={"labels": full}).raise_for_status()
    answer = fleet.api.post(URL, json={"selector": "", "set": {"one": "more"}})
    assert answer.status_code == 422
    assert answer.json()["message"].startswith("cam-2: ")
    assert labels(fleet)["cam-1"] == {"site": "berlin"}


def test_the_command_tells_a_line_for_each_change_and_a_number(
    fleet: Fleet, tmp_path: Path
) -> None:
    server = HttpServer("127.0.0.1", 0)
    server.start(fleet.controller.app)
    url, token = f"http://{server.host}:{server.port}", str(tmp_path / "api.token")

    def run(*words: str) -> Done:
        return fleet_here("device", "label", *words, "--url", url, "--token-file", token)

    try:
        done = run("cam-1", "cam-3", "site=rome", "owner=kim")
        assert (done.code, done.out.splitlines()) == (
            0,
            [
                "cam-1: owner=kim, site=rome (was berlin)",
                "cam-3: owner=kim, site=rome (was paris)",
                "all of 2 devices changed",
            ],
        )
        done = run("--selector", "owner=kim", "owner-", "--dry-run")
        assert done.out.splitlines()[-1] == "all of 2 devices would be changed"
        assert done.err == "nothing was changed: --dry-run\n"
        fleet.api.put("/v1/groups/mine", json={"selector": "id=cam-*"}).raise_for_status()
        done = run("--group", "mine", "owner-")
        assert done.out.splitlines()[1:] == [
            "cam-3: owner removed (was kim)",
            "2 of 3 devices changed",
        ]
        assert run("cam-2", "site=berlin").out == "nothing to change on 1 device\n"
        assert run("cam-2", "site=rome", "--json").json["devices"][0]["after"] == {"site": "rome"}
        both = run("cam-1", "a=1", "--selector", "site=rome", "--group", "mine")
        assert (both.code, both.err) == (
            2, "fleet: --selector and --group are both given; give one of them\n",
        )  # fmt: skip
    finally:
        server.stop()
