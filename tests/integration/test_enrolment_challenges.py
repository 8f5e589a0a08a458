"""A request to enrol that was recorded, and is sent again, changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import event

from controller.services.challenges import STEP_S
from controller.services.enrol_rate import BURST
from controller.services.enrolment import ANSWER_GRACE_S
from controller.services.valid_tokens import READ_EVERY_S
from tests.simulators.controller_fleet import Fleet, FleetDevice
from tests.simulators.packages import TRUST
from wire import topics
from wire.codec import to_json
from wire.enrolling import EnrolRequest
from wire.enrolment import client_id, return_password
from wire.transport import Received
from wire.trust.envelope import SigningKey

OLD, NEW = client_id("cam-1", "0" * 32), client_id("cam-1", "1" * 32)


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(database_url, tmp_path)
    yield made
    made.close()


@pytest.fixture
def device(fleet: Fleet) -> FleetDevice:
    return fleet.device("cam-1")


def token(fleet: Fleet, uses: int = 1) -> str:
    answer = fleet.api.post("/v1/tokens", json={"uses": uses})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["token"])


def end_tokens(fleet: Fleet) -> None:
    fleet.clock.advance(ANSWER_GRACE_S + 1)
    fleet.controller.tick()
    returning = return_password(TRUST.director.keys[0])
    assert list(fleet.access.enrolment.values()) == [returning]


def account(fleet: Fleet) -> tuple[str, str]:
    return fleet.access.passwords["cam-1"], fleet.access.client_ids["cam-1"]


def test_a_request_from_before_tls_does_not_bring_its_password_back(
    fleet: Fleet, device: FleetDevice
) -> None:
    secret = token(fleet)
    device.password = "a password that was read"
    recorded = to_json(device.enrol_request(secret, client_id=OLD))
    assert device.ask(recorded).accepted
    end_tokens(fleet)
    device.password = "a password that nobody has read"
    assert device.ask_to_enrol("", client_id=NEW).accepted
    assert account(fleet) == (device.password, NEW)
    answer = device.ask(recorded)
    assert not answer.accepted
    assert "challenge" in answer.reason
    assert account(fleet) == (device.password, NEW)


def test_a_lost_answer_is_asked_for_again_without_a_challenge(
    fleet: Fleet, device: FleetDevice
) -> None:
    request = to_json(device.enrol_request(token(fleet)))
    for _ in range(3):
        answer = device.ask(request)
        assert (answer.accepted, answer.challenge) == (True, msgspec.UNSET)


def challenge_for(fleet: Fleet, device: FleetDevice) -> tuple[EnrolRequest, str]:
    assert device.ask_to_enrol(token(fleet)).accepted
    end_tokens(fleet)
    request = device.enrol_request("", client_id=NEW)
    challenge = device.ask(to_json(request)).challenge
    assert isinstance(challenge, str)
    return request, challenge


def test_a_challenge_is_for_one_key_and_some_minutes(fleet: Fleet, device: FleetDevice) -> None:
    request, challenge = challenge_for(fleet, device)
    signed = to_json(device.challenged(request, challenge))
    assert device.ask(signed).accepted
    assert device.ask(signed).accepted, "its answer may be lost, too"
    fleet.clock.advance(2 * STEP_S)
    late = device.ask(signed)
    assert not late.accepted
    assert late.challenge not in {challenge, msgspec.UNSET}
    invented = device.ask(to_json(device.challenged(request, "\u00e9 invented")))
    assert not invented.accepted


@pytest.mark.parametrize("changed", ["nonce", "client_id", "password", "challenge"])
def test_the_proof_covers_what_is_asked_for(
    fleet: Fleet, device: FleetDevice, changed: str
) -> None:
    request, challenge = challenge_for(fleet, device)
    before = account(fleet)
    signed = device.challenged(request, challenge)
    other = {changed: OLD if changed == "client_id" else "something of another's"}
    answer = device.ask(to_json(msgspec.structs.replace(signed, **other)))
    assert (answer.accepted, "proof of possession" in answer.reason) == (False, True)
    assert account(fleet) == before


def test_a_flood_without_a_token_is_dropped_and_holds_up_nobody_with_one(
    fleet: Fleet, device: FleetDevice, caplog: pytest.LogCaptureFixture
) -> None:
    secret = token(fleet, uses=3)
    assert device.ask_to_enrol(secret).accepted
    stranger = fleet.device("cam-2")
    forged = [
        to_json(stranger.enrol_request(wrong, key=SigningKey(b"o" * 32)))
        for wrong in ("", "no such token")
    ]
    for _ in range(int(BURST)):
        for payload in forged:
            fleet.hub.deliver(Received(topics.enrol_request("cam-2"), payload))
    before = len(stranger.replies)
    assert before <= BURST
    for payload in forged:
        fleet.hub.deliver(Received(topics.enrol_request("cam-2"), payload))
    assert len(stranger.replies) == before, "they are dropped without an answer"
    assert stranger.ask_to_enrol(secret).accepted
    assert caplog.text.count("requests a second to enrol without a valid token") == 1
    fleet.clock.advance(ANSWER_GRACE_S)
    assert device.ask_to_enrol("", client_id=NEW).accepted, "who returns asks again later"


def test_invented_tokens_cost_one_read_a_second_and_a_new_token_waits_no_longer(
    fleet: Fleet,
) -> None:
    stranger, newcomer = fleet.device("cam-2"), fleet.device("cam-3")

    def flood() -> None:
        for number in range(int(BURST)):
            forged = stranger.enrol_request(f"invented-{number}", key=SigningKey(b"o" * 32))
            fleet.hub.deliver(Received(topics.enrol_request("cam-2"), to_json(forged)))

    flood()
    statements: list[str] = []
    event.listen(
        fleet.controller._database.engine,
        "before_cursor_execute",
        lambda _c, _cursor, statement, *_: statements.append(statement),
    )
    flood()
    assert len([each for each in statements if "FROM enrolment_token" in each]) == 1
    secret = token(fleet)
    payload = to_json(newcomer.enrol_request(secret))
    fleet.hub.deliver(Received(topics.enrol_request("cam-3"), payload))
    assert newcomer.replies == [], "it is not known yet"
    fleet.clock.advance(READ_EVERY_S)
    flood()
    assert newcomer.ask_to_enrol(secret).accepted
