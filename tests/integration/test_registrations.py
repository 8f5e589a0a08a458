"""Devices that are registered by serial number before they enrol."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from controller.domain.registration import read_registrations
from controller.errors import InvalidRequestError
from tests.integration.test_waiting_devices import ask, queue, token, waits
from tests.simulators.controller_fleet import Fleet
from tests.simulators.packages import STRANGER_KEY


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(database_url, tmp_path)
    yield made
    made.close()


def register(fleet: Fleet, text: str) -> httpx.Response:
    devices = [
        {"serial": each.serial, "device": each.device, "labels": each.labels, "line": each.line}
        for each in read_registrations(text)
    ]
    answer: httpx.Response = fleet.api.post("/v1/registrations", json={"devices": devices})
    return answer


def test_a_registered_device_is_in_with_its_labels_and_once(fleet: Fleet) -> None:
    assert register(fleet, "id,serial,site,rack\ncam-1,a1,berlin,7\n,a2,hamburg,\n").is_success
    secret = token(fleet, uses=9, labels={"site": "none"})
    assert ask(fleet.device("cam-1", rack="0"), secret, "a1").accepted
    labels = fleet.api.get("/v1/devices/cam-1").json()["labels"]
    assert labels == {"site": "berlin", "rack": "7"}
    assert ask(fleet.device("any-name"), secret, "a2").accepted
    assert waits(ask(fleet.device("copy"), secret, "a2")), "a serial number lets in one device"
    first, second = fleet.api.get("/v1/registrations").json()
    assert (first["claimed_by"], second["claimed_by"]) == ("cam-1", "any-name")


def test_a_registered_identifier_is_kept_for_its_serial_number(fleet: Fleet) -> None:
    assert register(fleet, "id,serial\ncam-1,a1\n").is_success
    everybody = token(fleet, "auto", uses=9)
    assert waits(ask(fleet.device("cam-1"), everybody, "b7", key=STRANGER_KEY))
    assert waits(ask(fleet.device("cam-2"), token(fleet), "a1")), "that is not its identifier"
    assert fleet.api.delete("/v1/registrations", params={"serial": "a1"}).is_success
    assert fleet.api.delete("/v1/registrations", params={"serial": "a1"}).status_code == 404


def test_a_device_that_waits_is_let_in_when_it_is_registered(fleet: Fleet) -> None:
    secret, device = token(fleet), fleet.device("cam-1")
    assert waits(ask(device, secret, "a1"))
    assert register(fleet, "serial,site\na1,berlin\n").is_success
    assert ask(device, secret, "a1").accepted
    assert queue(fleet) == {}
    assert fleet.api.get("/v1/devices/cam-1").json()["labels"] == {"site": "berlin"}


def test_an_identifier_with_two_serial_numbers_is_refused_by_line(fleet: Fleet) -> None:
    assert register(fleet, "id,serial\ncam-1,a1\n").is_success
    answer = register(fleet, "id,serial\ncam-2,a2\ncam-1,a9\n")
    assert answer.status_code == 409
    assert answer.json()["message"].startswith("line 3: cam-1 is registered with the serial number")
    assert [each["serial"] for each in fleet.api.get("/v1/registrations").json()] == ["a1"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "line 1: there is no column serial"),
        ("id;serial\n", "line 1: there is no column serial (the columns are parted by commas)"),
        ("serial,serial\n", "line 1: two columns are called 'serial'"),
        ("serial,Site\n", "line 1: 'Site' is not a valid label"),
        ("id,serial\n\ncam-1\n", "line 3: it has 1 cells, and line 1 has 2"),
        ("id,serial\nCam 1,a1\n", "line 2: not a device identifier: 'Cam 1'"),
        ("serial\na b\n", "line 2: 'a b' is no serial number"),
        ("serial,site\na1,no space here\n", "line 2: the value of label site"),
        ("serial\na1\na2\na1\n", "line 4: a1 stands in line 2, too"),
        ('serial\n"a1\n', "line 2: unexpected end of data"),
        ("serial\r\na\u2028b\r\n", "line 2: 'a\\u2028b' is no serial number"),
        ("serial\na b\nc d\n", "line 2: 'a b' is no serial number"),
    ],
)
def test_a_fault_in_the_file_names_its_line(text: str, fault: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read_registrations(text)
    assert caught.value.message.startswith(fault)
