"""Measurements through the API: who is asked, what is believed, what comes home."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controller.store import releases
from controller.store.database import Database
from tests.simulators.controller_fleet import Fleet
from tests.simulators.packages import PROFILE, TRUST, SignedPackage, package, variant
from tests.unit.wire.test_measuring import GOOD
from wire import topics
from wire.codec import sha256_hex, to_json
from wire.measuring import (
    MEASURE_PAYLOAD_TYPE,
    Measure,
    Measured,
    MeasuredVariant,
    ProfileFigures,
    files_digest,
)
from wire.messages import decode_message
from wire.package.variant import Variant
from wire.transport import Received

pytestmark = pytest.mark.flow


def with_files(name: str) -> Variant:
    found = variant(name)
    info = msgspec.structs.replace(
        found.info, files_sha256={"model.json": sha256_hex(name.encode())}
    )
    return msgspec.structs.replace(found, info=info)


VARIANTS = with_files("best"), with_files("small")


def release(version: str) -> SignedPackage:
    return package(version, [(found, found.name.encode()) for found in VARIANTS])


ONE = release("1")


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(database_url, tmp_path)
    made.publish(ONE)
    made.enrol("cam-1", "cam-2", "cam-3", site="lab")
    yield made
    made.close()


def lend(fleet: Fleet, *names: str, lent: bool = True) -> None:
    for name in names:
        fleet.api.patch(f"/v1/devices/{name}", json={"lent": lent}).raise_for_status()


def ask(fleet: Fleet, selector: str = "site=lab", **more: Any) -> tuple[int, dict[str, Any]]:
    body = {"release": "digits:1", "selector": selector, **more}
    answer = fleet.api.post("/v1/measurements", json=body)
    return answer.status_code, answer.json()


def hear(fleet: Fleet, *names: str) -> list[Measure]:
    """Listen to requests; the list fills as they come."""
    heard: list[Measure] = []

    def take(received: Received) -> None:
        payload = TRUST.unseal(received.payload, role="director", payload_type=MEASURE_PAYLOAD_TYPE)
        heard.append(decode_message(payload, Measure))

    for name in names:
        fleet.hub.on(topics.down(name, "measure"), take)
    return heard


def answer(fleet: Fleet, name: str, identifier: str, latency_ms: float = 5.0, **more: Any) -> None:
    performance = msgspec.structs.replace(GOOD, latency_p50_ms=latency_ms)
    known: dict[str, Any] = {
        "state": "measured",
        "variants": tuple(MeasuredVariant(name=v.name, performance=performance) for v in VARIANTS),
    }
    measured = Measured(device=name, id=identifier, **known | more)
    fleet.hub.deliver(Received(topics.up(name, "measured"), to_json(measured)))


def shown(fleet: Fleet, identifier: str) -> dict[str, tuple[str, str]]:
    found = fleet.api.get(f"/v1/measurements/{identifier}").raise_for_status().json()
    return {part["device"]: (part["state"], part["reason"]) for part in found["devices"]}


def figures(fleet: Fleet, **params: str) -> list[ProfileFigures]:
    found = fleet.api.get("/v1/measurements/figures", params=params).raise_for_status()
    return msgspec.json.decode(found.content, type=list[ProfileFigures])


def test_only_lent_devices_are_asked_by_a_signed_request(fleet: Fleet) -> None:
    lend(fleet, "cam-1")
    heard = hear(fleet, "cam-1", "cam-2", "cam-3")
    status, found = ask(fleet)
    assert status == 201
    assert [(m.device, m.boot_id, m.release) for m in heard] == [("cam-1", "boot-1", ONE.ref)]
    assert set(found["not_asked"]) == {"cam-2", "cam-3"}
    assert shown(fleet, found["id"]) == {"cam-1": ("asked", "")}


def test_without_a_lent_device_nothing_is_asked(fleet: Fleet) -> None:
    heard = hear(fleet, "cam-1", "cam-2", "cam-3")
    status, fault = ask(fleet)
    assert (status, heard) == (409, [])
    assert "is not lent" in fault["message"]
    lend(fleet, "cam-1")
    lend(fleet, "cam-1", lent=False)
    assert ask(fleet)[0] == 409


def test_a_device_that_enrols_again_is_no_longer_lent(fleet: Fleet) -> None:
    lend(fleet, "cam-1")
    assert fleet.api.get("/v1/devices/cam-1").json()["lent"]
    fleet.api.patch("/v1/devices/cam-1", json={"state": "decommissioned"}).raise_for_status()
    fleet.api.patch("/v1/devices/cam-1", json={"may_enrol_again": True}).raise_for_status()
    fleet.enrol("cam-1")
    assert not fleet.api.get("/v1/devices/cam-1").json()["lent"]


def test_a_device_is_asked_once_until_it_answers(fleet: Fleet) -> None:
    lend(fleet, "cam-1")
    _, first = ask(fleet)
    status, fault = ask(fleet, "id=cam-1")
    assert status == 409
    assert f"measurement {first['id']} on it is not answered yet" in fault["message"]
    assert f"fleet measure cancel {first['id']}" in fault["remedy"]
    answer(fleet, "cam-1", first["id"])
    assert ask(fleet)[0] == 201


def test_who_could_be_asked_is_told_without_asking_anybody(fleet: Fleet) -> None:
    def askable(selector: str) -> tuple[int, dict[str, Any]]:
        found = fleet.api.get("/v1/measurements/devices", params={"selector": selector})
        return found.status_code, found.json()

    assert askable("site=(")[0] == 422
    assert askable("site=nowhere")[0] == 409
    assert askable("site=lab")[0] == 409
    lend(fleet, "cam-1")
    heard = hear(fleet, "cam-1", "cam-2", "cam-3")
    status, found = askable("site=lab")
    assert (status, found["devices"]) == (200, ["cam-1"])
    assert set(found["not_asked"]) == {"cam-2", "cam-3"}
    assert heard == []
    assert fleet.api.get("/v1/measurements").json() == []


def test_the_operator_can_wait_no_longer(fleet: Fleet) -> None:
    lend(fleet, "cam-1", "cam-2")
    _, found = ask(fleet)
    answer(fleet, "cam-2", found["id"])
    path = f"/v1/measurements/{found['id']}/cancel"
    fleet.api.post(path).raise_for_status()
    state, reason = shown(fleet, found["id"])["cam-1"]
    assert state == "timed-out"
    assert "operator" in reason
    assert shown(fleet, found["id"])["cam-2"] == ("measured", "")
    assert ask(fleet, "id=cam-1")[0] == 201, "it can be asked again"
    answer(fleet, "cam-1", found["id"])
    assert shown(fleet, found["id"])["cam-1"] == ("measured", ""), "late, but true"
    assert fleet.api.post("/v1/measurements/m1/cancel").status_code == 404


def test_figures_come_home_by_profile_with_the_digests_of_the_files(fleet: Fleet) -> None:
    lend(fleet, "cam-1", "cam-2", "cam-3")
    _, found = ask(fleet)
    for name, latency_ms in (("cam-1", 9.0), ("cam-2", 5.0), ("cam-3", 1.0)):
        answer(fleet, name, found["id"], latency_ms)
    kept = figures(fleet)
    assert [(f.profile, f.release, f.variant) for f in kept] == [
        (PROFILE.name, "digits:1", "best"),
        (PROFILE.name, "digits:1", "small"),
    ]
    assert [f.files_sha256 for f in kept] == [files_digest(v.info) for v in VARIANTS]
    assert {f.figures.performance.latency_p50_ms for f in kept} == {5.0}, "the middle one"
    assert {f.figures.devices for f in kept} == {3}
    assert kept == figures(fleet, profile=PROFILE.name)
    assert figures(fleet, profile="another") == []
    fleet.kill()
    assert figures(fleet) == kept


def test_a_newer_answer_that_broke_off_takes_nothing_from_a_whole_one(fleet: Fleet) -> None:
    lend(fleet, "cam-1")
    _, found = ask(fleet)
    answer(fleet, "cam-1", found["id"])
    kept = figures(fleet)
    fleet.clock.advance(1)
    _, found = ask(fleet)
    part = MeasuredVariant(name="best", performance=GOOD)
    answer(fleet, "cam-1", found["id"], state="refused", reason="heat", variants=(part,))
    assert figures(fleet) == kept
    assert len(kept) == len(VARIANTS)


def test_figures_of_a_device_that_was_shut_out_do_not_count(fleet: Fleet) -> None:
    lend(fleet, "cam-1", "cam-2", "cam-3")
    _, found = ask(fleet)
    for name, latency_ms in (("cam-1", 9.0), ("cam-2", 5.0), ("cam-3", 1.0)):
        answer(fleet, name, found["id"], latency_ms)

    def counted() -> set[tuple[int, float]]:
        told = (f.figures for f in figures(fleet))
        return {(each.devices, each.performance.latency_p50_ms) for each in told}

    assert counted() == {(3, 5.0)}
    fleet.api.patch("/v1/devices/cam-3", json={"state": "quarantined"}).raise_for_status()
    assert counted() == {(2, 5.0)}
    fleet.api.patch("/v1/devices/cam-2", json={"state": "decommissioned"}).raise_for_status()
    assert counted() == {(1, 9.0)}
    fleet.api.patch("/v1/devices/cam-2", json={"may_enrol_again": True}).raise_for_status()
    fleet.clock.advance(1)
    fleet.enrol("cam-2")
    assert counted() == {(1, 9.0)}, "what it said before it enrolled again is of another device"


def test_a_device_that_does_not_answer_ends_as_timed_out(fleet: Fleet) -> None:
    lend(fleet, "cam-1")
    _, found = ask(fleet, limit_s=60)
    fleet.clock.advance(59)
    fleet.controller.tick()
    assert shown(fleet, found["id"])["cam-1"][0] == "asked"
    fleet.clock.advance(2)
    fleet.controller.tick()
    state, reason = shown(fleet, found["id"])["cam-1"]
    assert state == "timed-out"
    assert "earlier version" in reason
    answer(fleet, "cam-1", found["id"])
    assert shown(fleet, found["id"])["cam-1"] == ("measured", ""), "late, but true"


def test_what_a_device_says_of_itself_is_bounded_and_cleaned(fleet: Fleet) -> None:
    lend(fleet, "cam-1")
    _, found = ask(fleet)
    answer(fleet, "cam-1", found["id"], state="refused", variants=(), reason="\x1b[31m" + "x" * 999)
    state, reason = shown(fleet, found["id"])["cam-1"]
    assert state == "refused"
    assert "\x1b" not in reason
    assert len(reason) <= 500
    assert figures(fleet) == []
    _, found = ask(fleet)
    silent = MeasuredVariant(name="best", reason="y" * 10_000)
    answer(fleet, "cam-1", found["id"], variants=(silent,), reason="x" * 10_000)
    kept = fleet.api.get(f"/v1/measurements/{found['id']}").json()["devices"][0]["figures"]
    assert len(kept["reason"]) == len(kept["variants"][0]["reason"]) == 500


@pytest.mark.parametrize(
    ("sender", "more"),
    [
        ("cam-2", {}),
        ("cam-1", {"id": "m0000000000"}),
        ("cam-1", {"variants": (MeasuredVariant(name="best"),)}),
        ("cam-1", {"temperature_before_c": 1e9}),
    ],
)
def test_an_answer_that_nobody_asked_for_or_that_cannot_be_is_not_believed(
    fleet: Fleet, sender: str, more: dict[str, Any]
) -> None:
    lend(fleet, "cam-1")
    _, found = ask(fleet)
    said = dict(more)
    answer(fleet, sender, said.pop("id", found["id"]), **said)
    assert shown(fleet, found["id"]) == {"cam-1": ("asked", "")}
    assert figures(fleet) == []


def test_a_variant_that_the_package_does_not_have_gets_no_figures(fleet: Fleet) -> None:
    lend(fleet, "cam-1")
    _, found = ask(fleet)
    stranger = MeasuredVariant(name="stranger", performance=GOOD)
    answer(fleet, "cam-1", found["id"], variants=(stranger,))
    assert figures(fleet) == []
    lend(fleet, "cam-2", "cam-3")
    _, found = ask(fleet, "id in (cam-2, cam-3)")
    answer(fleet, "cam-2", found["id"])
    answer(fleet, "cam-3", found["id"])
    assert {f.variant for f in figures(fleet)} == {"best", "small"}, "two devices answered"


def test_a_device_may_read_the_release_while_it_is_asked_to_measure_it(fleet: Fleet) -> None:
    lend(fleet, "cam-1")
    blob = sha256_hex(b"best")

    def readable(device: str) -> bool:
        database = Database(fleet.config.database_url)
        with database.reading() as transaction:
            found = releases.readable_blobs(transaction, [(device, blob)])
        database.close()
        return bool(found)

    assert not readable("cam-1")
    _, found = ask(fleet)
    assert readable("cam-1")
    assert not readable("cam-2")
    answer(fleet, "cam-1", found["id"])
    assert not readable("cam-1")


def test_requests_are_listed_and_unknown_ones_are_not_found(fleet: Fleet) -> None:
    lend(fleet, "cam-1", "cam-2")
    _, first = ask(fleet, "id=cam-1")
    fleet.clock.advance(1)
    _, second = ask(fleet, "id=cam-2")
    listed = fleet.api.get("/v1/measurements").raise_for_status().json()
    assert [each["id"] for each in listed] == [second["id"], first["id"]]
    assert fleet.api.get("/v1/measurements/m1").status_code == 404
    assert ask(fleet, "site=(")[0] == 422
    assert ask(fleet, release="digits:2")[0] == 404
