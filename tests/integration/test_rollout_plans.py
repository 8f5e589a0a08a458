"""What a rollout would do is what it then does, and asking changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from controller.store.all_tables import CONTROL_METADATA
from tests.simulators.controller_fleet import Fleet, names
from tests.simulators.packages import two_variants
from wire import topics
from wire.codec import to_msgpack
from wire.telemetry import SumPoint, TelemetryBatch
from wire.transport import Received

pytestmark = pytest.mark.flow

ONE = two_variants("1", best="one")
TWO = two_variants("2", best="two" * 1000)
GATE = "p95(inference_latency_ms) <= +10%"


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(database_url, tmp_path)
    made.publish(ONE)
    made.publish(TWO)
    yield made
    made.close()


def plan(fleet: Fleet, release: str = "digits:2", **body: Any) -> dict[str, Any]:
    asked = {"release": release, **body}
    answer = fleet.api.post("/v1/rollouts/plan", json=asked, params={"limit": 100})
    found: dict[str, Any] = answer.raise_for_status().json()
    return found


def rows(database_url: str) -> dict[str, list[Any]]:
    engine = sqlalchemy.create_engine(database_url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        found = {
            table.name: sorted(map(str, connection.execute(sqlalchemy.select(table))))
            for table in CONTROL_METADATA.sorted_tables
            if table.name != "audit"  # which has that somebody asked
        }
    engine.dispose()
    return found


def test_a_rollout_does_what_its_plan_said_and_the_plan_changes_nothing(
    fleet: Fleet, database_url: str
) -> None:
    fleet.enrol(*names("cam", 12))
    fleet.devices["cam-003"].leave()
    settings: dict[str, Any] = {
        "stages": [{"count": 1}, {"percent": 50}, {"percent": 100}], "offline_limit_s": 0.0,
    }  # fmt: skip
    before = rows(database_url)
    said = plan(fleet, **settings)
    assert rows(database_url) == before
    assert (said["refused"], said["devices"], said["earlier"]) == ([], 12, None)
    assert [(s["target"], s["count"], s["offline"]) for s in said["stages"]] == [
        (1, 1, 0), (6, 5, 0), (12, 6, 1)
    ]  # fmt: skip
    assert said["stages"][-1]["devices"][-1] == "cam-003"
    assert said["stages"][0]["expected_s"] is None
    rollout = fleet.roll_out("digits:2", id=said["id"], **settings)
    assert rollout == said["id"]
    shown = fleet.run(rollout)
    began = {part["device"]: part["stage"] for part in shown["deployments"]}
    assert began == {name: s["number"] for s in said["stages"] for name in s["devices"]}
    twice = fleet.api.post("/v1/rollouts", json={"release": "digits:2", "id": rollout})
    assert twice.status_code == 409
    made_up = fleet.api.post("/v1/rollouts", json={"release": "digits:2", "id": "mine"})
    assert made_up.status_code == 422


def test_a_plan_with_gates_names_the_control_group_that_the_rollout_then_has(fleet: Fleet) -> None:
    fleet.enrol(*names("cam", 14))
    assert fleet.run(fleet.roll_out("digits:1"))["state"] == "succeeded"
    settings: dict[str, Any] = {
        "stages": [{"count": 2}, {"percent": 100}], "gates": [GATE], "soak_s": 60.0,
    }  # fmt: skip
    said = plan(fleet, **settings)
    assert said["gates"] == [GATE]
    assert [(s["target"], s["count"], s["asks_gates"]) for s in said["stages"]] == [
        (2, 2, False), (14, 7, True)
    ]  # fmt: skip
    rollout = fleet.roll_out("digits:2", id=said["id"], **settings)
    for _ in range(6):
        fleet.step(31.0)
    shown = fleet.show(rollout)
    assert said["control"] == shown["control"] == 5
    states = {part["device"]: part["state"] for part in shown["deployments"]}
    assert {name for name, state in states.items() if state != "succeeded"} == {
        *said["control_devices"]
    }


def test_the_first_rollout_of_a_model_has_no_gates(fleet: Fleet) -> None:
    """Nobody has anything to compare with, so they would hold for ever."""
    fleet.enrol(*names("cam", 14))
    why = "no device has another one of this model"
    for _ in range(2):  # another try of the same release does not make it older
        assert any(why in reason for reason in plan(fleet, gates=[GATE])["refused"])
        answer = fleet.api.post("/v1/rollouts", json={"release": "digits:2", "gates": [GATE]})
        assert answer.status_code == 422
        assert why in answer.json()["message"]
        fleet.run(fleet.roll_out("digits:2"))


def test_a_plan_says_why_the_rollout_would_not_begin(fleet: Fleet) -> None:
    fleet.enrol(*names("cam", 6), site="berlin")
    fleet.devices["cam-001"].runtimes = ()
    fleet.devices["cam-001"].connect()
    busy = fleet.roll_out("digits:1", selector="id in (cam-004, cam-005)", soak_s=3600.0)
    said = plan(fleet, selector="site=berlin", gates=[GATE])
    taken, unfit, few, first = said["refused"]
    assert taken.startswith(f"device cam-004 takes part in rollout {busy}, which has not ended; ")
    assert unfit.startswith("1 of 6 devices cannot take digits:2, such as cam-001: no variant fits")
    assert few.startswith("5 devices cannot show what a gate asks: it takes 10")
    assert "no device has another one of this model" in first
    assert said["busy"] == [{"rollout": busy, "count": 2, "devices": ["cam-004", "cam-005"]}]
    assert said["preflight"]["refuses"] == 1
    assert (said["devices"], said["stages"][0]["count"]) == (5, 3)
    assert plan(fleet, selector="site=paris")["refused"] == [
        "no enrolled device matches the selector 'site=paris'; list the devices, or enrol one"
    ]
    unknown = fleet.api.post("/v1/rollouts/plan", json={"release": "digits:9"})
    assert unknown.status_code == 404


def test_bytes_and_times_are_those_of_what_devices_need_and_of_earlier_installs(
    fleet: Fleet,
) -> None:
    fleet.enrol(*names("cam", 6))
    first = fleet.roll_out("digits:1", max_in_flight=1)
    assert fleet.run(first)["state"] == "succeeded"
    report(fleet, "cam-000", cellular=5000.0, other=10.0)
    report(fleet, "cam-001", other=10.0)
    fleet.step(120.0)
    said = plan(fleet, max_in_flight=4, soak_s=60.0)
    size_bytes = sum(map(len, TWO.blobs))
    assert said["by_profile"] == [
        {"kind": "bench", "devices": 6, "each_bytes": size_bytes, "total_bytes": 6 * size_bytes}
    ]
    assert [(each["kind"], each["devices"]) for each in said["by_network"]] == [
        ("cellular", 1), ("other", 1), ("", 4)
    ]  # fmt: skip
    assert said["earlier"]["count"] == 6
    times = said["earlier"]
    (stage,) = said["stages"]
    assert stage["expected_s"] == said["expected_s"] == 2 * times["median_s"] + 60.0
    assert stage["slow_s"] == 2 * times["slow_s"] + 60.0
    again = plan(fleet, "digits:1")
    assert (again["total_bytes"], again["preflight"]["runs"]) == (0, 6)


def report(fleet: Fleet, device: str, **networks: float) -> None:
    points = tuple(
        SumPoint(
            metric="fetched_bytes_total",
            minute=int(fleet.clock.now_s() // 60),
            attributes={"network": name},
            value=value,
        )
        for name, value in networks.items()
    )
    batch = TelemetryBatch(device=device, boot_id="boot-1", sequence=1, points=points)
    fleet.hub.deliver(Received(topics.up(device, "telemetry"), to_msgpack(batch)))
