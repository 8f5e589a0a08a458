"""A device that is asked to report reports now, and queries have it when that is told."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.services.report_requests import ASK_EVERY_S
from tests.simulators.controller_fleet import Fleet, TestClient
from tests.simulators.reporting_device import ReportingDevice
from wire.codec import to_json
from wire.presence import Presence
from wire.topics import up
from wire.transport import Received

REPORTS = "/v1/telemetry/reports/cam-1"


@pytest.fixture
def fleet(sqlite_template: Path, tmp_path: Path) -> Iterator[Fleet]:
    made = tmp_path / "fleet.db"
    shutil.copyfile(sqlite_template, made)
    fleet = Fleet(f"sqlite:///{made}", tmp_path)
    yield fleet
    fleet.close()


@pytest.fixture
def client(fleet: Fleet) -> TestClient:
    return fleet.api


@pytest.fixture
def device(fleet: Fleet, tmp_path: Path) -> ReportingDevice:
    fleet.enrol("cam-1")
    device = ReportingDevice(fleet.hub, "cam-1", tmp_path, "start", fleet.clock)
    device.connect()
    device.pump.tick()
    return device


def total(client: TestClient) -> list[list[object]]:
    asked = {"metric": "n_total", "stat": "total"}
    answer = client.get("/v1/telemetry/query", params=asked)
    return list(answer.json()["rows"]) if answer.status_code == 200 else []


def test_what_a_device_recorded_is_in_a_query_when_its_report_is_stored(
    client: TestClient, device: ReportingDevice
) -> None:
    device.recorder.add("n_total", 3, {})
    device.pump.tick()
    assert total(client) == [], "its report is due in a minute"
    asked = client.post(REPORTS).json()
    state = f"{REPORTS}/{asked['id']}"
    assert client.get(state).json() == {"stored": False}
    device.hear()
    assert client.get(state).json() == {"stored": True}
    assert total(client) == [[3]]
    assert client.get(f"{REPORTS}/another").json() == {"stored": False}


def test_a_device_with_nothing_to_report_answers(
    fleet: Fleet, client: TestClient, device: ReportingDevice
) -> None:
    for _ in range(2):
        asked = client.post(REPORTS).json()
        device.hear()
        assert client.get(f"{REPORTS}/{asked['id']}").json() == {"stored": True}
        fleet.clock.advance(ASK_EVERY_S)


def test_nobody_makes_a_device_report_without_rest(
    fleet: Fleet, client: TestClient, device: ReportingDevice
) -> None:
    assert client.post(REPORTS).status_code == 201
    again = client.post(REPORTS)
    assert (again.status_code, again.json()["message"]) == (
        409, "device cam-1 was asked to report just now",
    )  # fmt: skip
    sent = len(fleet.hub.published)
    device.hear()
    batches = [
        each for each in fleet.hub.published[sent:] if each.topic == up("cam-1", "telemetry")
    ]
    assert len(batches) == 1


def test_a_device_that_is_offline_or_shut_out_is_not_asked(
    fleet: Fleet, client: TestClient
) -> None:
    fleet.enrol("cam-1")
    gone = Presence(device="cam-1", online=False, boot_id="boot-1")
    fleet.hub.deliver(Received(up("cam-1", "presence"), to_json(gone)))
    answer = client.post(REPORTS)
    assert (answer.status_code, answer.json()["message"]) == (409, "device cam-1 is offline")
    client.patch("/v1/devices/cam-1", json={"state": "quarantined"})
    assert client.post(REPORTS).json()["message"] == "device cam-1 is quarantined"
    assert client.post("/v1/telemetry/reports/nobody").status_code == 404
