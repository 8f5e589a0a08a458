"""The controller shows how far transfers are, without a write for each report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from tests.simulators.controller_fleet import Fleet, names
from tests.simulators.packages import two_variants
from wire import topics
from wire.codec import to_json
from wire.installs import InstallReport
from wire.transport import Received

pytestmark = pytest.mark.flow

ONE = two_variants("1")
MIB = 2**20


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(database_url, tmp_path)
    yield made
    made.close()


def report(fleet: Fleet, device: str, done_mib: int, **changes: Any) -> None:
    """Say that so much of 10 MiB has come."""
    sender = fleet.devices[device]
    sender.sequence += 1
    known: dict[str, Any] = {
        "phase": "fetching",
        "outcome": "running",
        "done_bytes": done_mib * MIB,
        "total_bytes": 10 * MIB,
        "rate_bytes_per_s": float(MIB),
        "bytes_by_source": {"local": MIB, "mqtt": (done_mib - 1) * MIB},
    }
    said = InstallReport(
        device=device, boot_id=sender.boot_id, sequence=sender.sequence, revision=1,
        digest=ONE.digest, active=None, **(known | changes),
    )  # fmt: skip
    fleet.controller.receive(Received(topics.up(device, "report"), to_json(said)))


def transfer(fleet: Fleet, device: str) -> Any:
    return fleet.api.get(f"/v1/devices/{device}").json()["transfer"]


def fetching(fleet: Fleet, *devices: str, **settings: object) -> str:
    """Let devices begin to fetch, and return their rollout."""
    fleet.publish(ONE)
    fleet.enrol(*devices)
    for device in fleet.devices.values():
        device.outcome = "silent"
    rollout = fleet.roll_out("digits:1", **settings)
    fleet.step()
    return rollout


def test_a_device_shows_how_far_its_transfer_is_until_it_ends(fleet: Fleet) -> None:
    fetching(fleet, "cam-1")
    assert transfer(fleet, "cam-1") is None
    report(fleet, "cam-1", 3)
    fleet.clock.advance(2.0)
    assert transfer(fleet, "cam-1") == {
        "done_bytes": 3 * MIB,
        "total_bytes": 10 * MIB,
        "rate_bytes_per_s": MIB,
        "rest_s": 5.0,
        "news_age_s": 2.0,
        "bytes_by_source": {"local": MIB, "mqtt": 2 * MIB},
    }
    (listed,) = fleet.api.get("/v1/devices").json()
    assert listed["transfer"]["done_bytes"] == 3 * MIB
    fleet.clock.advance(38.0)
    late = transfer(fleet, "cam-1")
    assert (late["news_age_s"], late["rest_s"]) == (40.0, None)
    report(fleet, "cam-1", 9)
    assert transfer(fleet, "cam-1")["rest_s"] == 1.0
    report(fleet, "cam-1", 10, phase="verifying")
    assert transfer(fleet, "cam-1") is None


@pytest.mark.parametrize("outcome", ["succeeded", "failed"])
def test_an_outcome_ends_a_transfer(fleet: Fleet, outcome: str) -> None:
    rollout = fetching(fleet, "cam-1")
    report(fleet, "cam-1", 3)
    report(fleet, "cam-1", 4, outcome=outcome)
    assert transfer(fleet, "cam-1") is None
    assert fleet.show(rollout)["transfers"] is None


def test_a_report_that_says_only_how_far_it_is_writes_nothing(fleet: Fleet) -> None:
    rollout = fetching(fleet, "cam-1")
    report(fleet, "cam-1", 1)
    written: list[str] = []

    def note(_c: object, _cursor: object, statement: str, *_rest: object) -> None:
        if statement.startswith(("INSERT", "UPDATE", "DELETE")):
            written.append(statement)

    engine = fleet.controller._database.engine
    event.listen(engine, "before_cursor_execute", note)
    for done_mib in range(2, 8):
        report(fleet, "cam-1", done_mib)
    assert written == []
    (part,) = fleet.show(rollout)["deployments"]
    assert (part["done_bytes"], part["total_bytes"]) == (7 * MIB, 10 * MIB)
    report(fleet, "cam-1", 8, detail="hook x says later")
    assert written != [], "what is new is written"
    written.clear()
    report(fleet, "cam-1", 10, phase="verifying")
    assert written != []


def test_an_earlier_report_that_comes_late_changes_nothing(fleet: Fleet) -> None:
    fetching(fleet, "cam-1")
    report(fleet, "cam-1", 2)
    report(fleet, "cam-1", 5)
    fleet.devices["cam-1"].sequence -= 2
    report(fleet, "cam-1", 2)
    assert transfer(fleet, "cam-1")["done_bytes"] == 5 * MIB


def test_after_a_restart_the_next_report_brings_the_figures_back(fleet: Fleet) -> None:
    rollout = fetching(fleet, "cam-1")
    report(fleet, "cam-1", 2)
    report(fleet, "cam-1", 3)
    fleet.kill()
    assert transfer(fleet, "cam-1") is None
    report(fleet, "cam-1", 4)
    assert transfer(fleet, "cam-1")["done_bytes"] == 4 * MIB
    (part,) = fleet.show(rollout)["deployments"]
    assert part["transfer"]["done_bytes"] == 4 * MIB


def test_a_device_that_fetches_and_tells_so_is_not_reminded(fleet: Fleet) -> None:
    fetching(fleet, "cam-1")
    orders: list[object] = []
    fleet.devices["cam-1"].hears = orders.append
    for done_mib in range(1, 8):
        report(fleet, "cam-1", done_mib)
        fleet.step(9.0)
    assert orders == []
    for _ in range(4):
        fleet.step(9.0)
    assert orders != [], "there was no news for a while"


def test_the_transfers_of_a_rollout_are_shown_together(fleet: Fleet) -> None:
    fleet.publish(ONE)
    devices = names("cam", 4)
    fleet.enrol(*devices)
    for device in fleet.devices.values():
        device.outcome = "silent"
    rollout = fleet.roll_out("digits:1", stages=[{"count": 4}, {"percent": 100}])
    fleet.step()
    assert fleet.show(rollout)["transfers"] is None
    for name, done_mib in zip(devices[:3], (2, 4, 8), strict=True):
        report(fleet, name, done_mib)
    shown = fleet.show(rollout)
    together = {
        "devices": 3, "silent": 0, "done_bytes": 14 * MIB, "total_bytes": 30 * MIB,
        "rate_bytes_per_s": 3 * MIB, "half_rest_s": 6.0, "rest_s": 8.0,
    }  # fmt: skip
    assert shown["transfers"] == together
    assert [stage["transfers"] for stage in shown["stages"]] == [together, None]
    assert fleet.api.get("/v1/rollouts").json()[0]["transfers"] is None
    fleet.clock.advance(31.0)
    report(fleet, devices[2], 9)
    shown = fleet.show(rollout)["transfers"]
    assert (shown["silent"], shown["rate_bytes_per_s"]) == (2, MIB)
    assert (shown["half_rest_s"], shown["rest_s"]) == (None, None), "who could tell?"


def test_a_device_that_is_shut_out_shows_no_transfer(fleet: Fleet) -> None:
    fetching(fleet, "cam-1")
    report(fleet, "cam-1", 2)
    fleet.api.patch("/v1/devices/cam-1", json={"state": "quarantined"}).raise_for_status()
    assert transfer(fleet, "cam-1") is None


def test_an_older_agent_that_tells_no_rate_is_shown_without_one(fleet: Fleet) -> None:
    fetching(fleet, "cam-1")
    text = (
        '{"schema_version":1,"device":"cam-1","revision":1,"digest":"%s","phase":"fetching",'
        '"outcome":"running","active":null,"done_bytes":10,"total_bytes":100}'
    )
    said = Received(topics.up("cam-1", "report"), (text % ONE.digest).encode())
    fleet.controller.receive(said)
    shown = transfer(fleet, "cam-1")
    assert (shown["done_bytes"], shown["rate_bytes_per_s"], shown["rest_s"]) == (10, None, None)
    assert shown["bytes_by_source"] == {}
