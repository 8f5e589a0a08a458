"""Enrolment, and what the controller makes of messages that are wrong."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.domain.faults import QUIET_S
from tests.simulators.controller_fleet import Fleet, FleetDevice
from tests.simulators.packages import PROFILE, STRANGER_KEY, TRUST, two_variants
from tests.simulators.patience import until
from wire import topics
from wire.codec import sha256_hex, to_json, to_msgpack
from wire.delivery import NOTHING_LEFT, Chunk, ChunkRequest
from wire.enrolment import client_id, enrol_username, return_password
from wire.errors import TransportError
from wire.installs import InstallReport
from wire.messages import decode_message
from wire.presence import Hello, Presence
from wire.telemetry import Event, TelemetryBatch
from wire.transport import Connection, Received

ONE, TWO = (two_variants(version, best=version) for version in ("1", "2"))
ANOTHER_TOKEN = "make another with `fleet token create`"
WRONG_TOKEN = f"the token is wrong, expired, used up or revoked; {ANOTHER_TOKEN}"
USED_UP = f"the token is used up; {ANOTHER_TOKEN}"


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(database_url, tmp_path)
    yield made
    made.close()


def token(fleet: Fleet, **settings: object) -> str:
    made = fleet.api.post("/v1/tokens", json=settings).raise_for_status().json()
    secret: str = made["token"]
    return secret


def test_a_token_opens_the_broker_and_the_fleet(fleet: Fleet) -> None:
    secret = token(fleet, labels={"site": "berlin"})
    assert fleet.access.enrolment == {enrol_username(secret): secret}
    device = fleet.device("cam-1", site="claimed", rack="7")
    assert device.ask_to_enrol(secret).accepted
    assert fleet.access.passwords == {"cam-1": device.password}
    shown = fleet.api.get("/v1/devices/cam-1").json()
    assert shown["labels"] == {"site": "berlin", "rack": "7"}
    assert (shown["state"], shown["online"], shown["revision"]) == ("enrolled", False, 0)


def test_a_used_up_token_admits_nobody_else_but_still_answers(fleet: Fleet) -> None:
    secret = token(fleet)
    first, second = fleet.device("cam-1"), fleet.device("cam-2")
    assert first.ask_to_enrol(secret).accepted
    assert second.ask_to_enrol(secret).reason == USED_UP
    first.password = "another password of the device"
    assert first.ask_to_enrol(secret).accepted
    assert fleet.access.passwords["cam-1"] == first.password


def of_tokens(fleet: Fleet) -> set[str]:
    """The passwords of the accounts but for that of returning devices."""
    return {*fleet.access.enrolment.values()} - {return_password(TRUST.director.keys[0])}


def test_the_account_of_a_token_goes_when_it_is_over(fleet: Fleet) -> None:
    used, unused = token(fleet), token(fleet, expires_in_s=300)
    assert fleet.device("cam-1").ask_to_enrol(used).accepted
    fleet.step()
    assert of_tokens(fleet) == {used, unused}, "the answer may still be on its way"
    fleet.step(60)
    assert of_tokens(fleet) == {unused}
    fleet.access.broken = TransportError("away")
    fleet.step(300)
    fleet.access.broken = None
    fleet.kill()
    fleet.step()
    assert of_tokens(fleet) == set()
    assert fleet.device("cam-2").ask_to_enrol(unused).reason == WRONG_TOKEN


def test_a_token_without_an_account_is_none(fleet: Fleet) -> None:
    fleet.access.broken = TransportError("away")
    assert fleet.api.post("/v1/tokens", json={}).status_code == 503
    fleet.access.broken = None
    (made,) = fleet.api.get("/v1/tokens").json()
    assert made["state"] == "closed"


def test_a_broker_that_comes_back_while_it_is_asked_is_asked_again(fleet: Fleet) -> None:
    fleet.controller.on_connection(Connection(up=True))
    fleet.step()
    made = dict(fleet.access.enrolment)
    assert len(made) == 1

    def lose() -> None:
        fleet.access.meanwhile = lambda: None
        fleet.access.enrolment.clear()
        fleet.controller.on_connection(Connection(up=True))

    fleet.access.meanwhile = lose
    fleet.controller.on_connection(Connection(up=True))
    fleet.step()
    assert fleet.access.enrolment == {}
    fleet.step()
    assert fleet.access.enrolment == made


def test_a_known_device_needs_its_own_key(fleet: Fleet) -> None:
    fleet.enrol("cam-1")
    device = fleet.devices["cam-1"]
    secret = token(fleet, uses=5)
    reply = device.ask_to_enrol(secret, key=STRANGER_KEY)
    assert not reply.accepted
    assert "another key; choose another in agent.toml, or" in reply.reason
    assert "`fleet device decommission` and then `fleet device readmit`" in reply.reason
    assert device.ask_to_enrol(secret).accepted


def test_a_known_device_gets_a_new_account_by_its_key_alone(fleet: Fleet) -> None:
    fleet.publish(ONE)
    fleet.enrol("cam-1")
    assert fleet.run(fleet.roll_out("digits:1"))["state"] == "succeeded"
    device = fleet.devices["cam-1"]
    fleet.access.passwords.clear()  # the broker lost its store
    for secret in ("", "a token that was never made"):
        device.password = f"another password {secret}"
        assert device.ask_to_enrol(secret).accepted
        assert fleet.access.passwords == {"cam-1": device.password}
    shown = fleet.api.get("/v1/devices/cam-1").json()
    assert (shown["release"], shown["revision"]) == ("digits:1", 1), "nothing else changed"
    for name in ("cam-1", "cam-2"):
        stranger = fleet.devices.get(name) or fleet.device(name)
        answer = stranger.ask_to_enrol("", key=STRANGER_KEY)
        assert not answer.accepted
        assert "there is no token, and no enrolled device of that name" in answer.reason
        assert "name it as token_file in agent.toml" in answer.reason


@pytest.mark.parametrize("state", ["quarantined", "decommissioned"])
def test_a_device_that_was_shut_out_does_not_return_by_its_key(fleet: Fleet, state: str) -> None:
    fleet.enrol("cam-1")
    fleet.api.patch("/v1/devices/cam-1", json={"state": state}).raise_for_status()
    answer = fleet.devices["cam-1"].ask_to_enrol("")
    assert (answer.accepted, state in answer.reason) == (False, True)
    assert fleet.access.refused == {"cam-1"}
    if state == "decommissioned":
        fleet.api.patch("/v1/devices/cam-1", json={"may_enrol_again": True}).raise_for_status()
        assert not fleet.devices["cam-1"].ask_to_enrol("").accepted, "that takes a token"


def test_a_device_that_is_shut_out_while_it_enrols_gets_no_account(fleet: Fleet) -> None:
    fleet.enrol("cam-1")
    change = {"state": "decommissioned"}
    fleet.access.meanwhile = lambda: fleet.api.patch("/v1/devices/cam-1", json=change)
    answer = fleet.devices["cam-1"].ask_to_enrol("")
    assert (answer.accepted, answer.reason) == (False, "the device is decommissioned")
    assert fleet.access.refused == {"cam-1"}


def test_a_device_that_does_not_believe_the_answer_is_shown(fleet: Fleet) -> None:
    secret, device = token(fleet), fleet.device("cam-1")

    def last_error() -> str:
        shown: str = fleet.api.get("/v1/devices/cam-1").json()["last_error"]
        return shown

    assert device.ask_to_enrol(secret).accepted
    assert last_error() == ""
    assert device.ask_to_enrol(secret, doubt="0 of 1\x1b[2J needed" + "x" * 1000).accepted
    assert last_error().startswith(
        "agent.enrolment: the device does not believe this controller: 0"
    )
    assert last_error().isprintable()
    assert device.ask_to_enrol("").accepted
    assert last_error() == ""


def test_an_account_is_bound_to_a_client_identifier_of_that_device_alone(fleet: Fleet) -> None:
    secret, device = token(fleet, uses=9), fleet.device("cam-1")
    own = client_id("cam-1", "0" * 32)
    assert device.ask_to_enrol(secret, client_id=own).accepted
    assert fleet.access.client_ids == {"cam-1": own}
    for other in (client_id("cam-2", "0" * 32), "cam-2", "controller", f"cam-1:{'x' * 32}", "+"):
        answer = device.ask_to_enrol(secret, client_id=other)
        assert (answer.accepted, "client identifier" in answer.reason) == (False, True)
    assert fleet.access.client_ids == {"cam-1": own}
    assert device.ask_to_enrol(secret).accepted
    assert fleet.access.client_ids == {"cam-1": "cam-1"}, "as older agents connect"


def test_the_account_for_returning_devices_is_made_for_each_connection_with_the_broker(
    fleet: Fleet,
) -> None:
    password = return_password(TRUST.director.keys[0])
    account = {enrol_username(password): password}
    fleet.step()
    assert fleet.access.enrolment == account
    fleet.access.enrolment.clear()  # the broker lost its store, and comes back
    fleet.access.broken = TransportError("away")
    fleet.controller.on_connection(Connection(up=True))
    fleet.step()
    fleet.access.broken = None
    fleet.step(60)
    assert fleet.access.enrolment == account


def test_a_request_that_is_too_large_is_not_read(fleet: Fleet) -> None:
    device, secret = fleet.device("cam-1"), token(fleet)
    device.labels = {f"key-{number}": "x" * 100 for number in range(1000)}
    with pytest.raises(AssertionError, match="no answer"):
        device.ask_to_enrol(secret)


def test_a_quarantined_device_does_not_enrol_itself_out(fleet: Fleet) -> None:
    fleet.enrol("cam-1")
    secret = token(fleet)
    fleet.api.patch("/v1/devices/cam-1", json={"state": "quarantined"}).raise_for_status()
    assert not fleet.devices["cam-1"].ask_to_enrol(secret).accepted
    assert fleet.access.refused == {"cam-1"}


def test_the_name_of_a_decommissioned_device_is_blocked_until_it_is_readmitted(
    fleet: Fleet,
) -> None:
    fleet.publish(ONE)
    fleet.enrol("cam-1")
    rollout = fleet.roll_out("digits:1")
    fleet.run(rollout)
    fleet.api.patch("/v1/devices/cam-1", json={"state": "decommissioned"}).raise_for_status()
    device, secret = fleet.devices["cam-1"], token(fleet, uses=5)
    for key in (None, STRANGER_KEY):
        assert "blocked" in device.ask_to_enrol(secret, key=key).reason
    assert fleet.access.refused == {"cam-1"}
    fleet.api.patch("/v1/devices/cam-1", json={"may_enrol_again": True}).raise_for_status()
    assert device.ask_to_enrol(secret, key=STRANGER_KEY).accepted
    assert fleet.access.refused == set()
    assert "another key" in device.ask_to_enrol(secret).reason, "one device took the place"
    shown = fleet.api.get("/v1/devices/cam-1").json()
    assert (shown["state"], shown["release"], shown["revision"]) == ("enrolled", None, 1)


def with_three_releases(fleet: Fleet) -> None:
    """Publish three releases, and let three devices run the first one."""
    for version in "123":
        fleet.publish(two_variants(version, best=version))
    fleet.enrol("cam-1", "cam-2", "cam-3")
    fleet.run(fleet.roll_out("digits:1"))


def takes_the_name(fleet: Fleet, gone: str) -> FleetDevice:
    """Enrol another device in the name of a decommissioned one."""
    fleet.api.patch(f"/v1/devices/{gone}", json={"may_enrol_again": True}).raise_for_status()
    fleet.devices.pop(gone).outcome = "silent"
    device = fleet.device(gone)
    assert device.ask_to_enrol(token(fleet), key=STRANGER_KEY).accepted
    device.connect()
    fleet.step()
    return device


@pytest.mark.parametrize("stopped", ["halted", "rolled back", "way back", "goes on"])
def test_a_device_that_takes_the_name_of_another_begins_nothing_that_was_stopped(
    fleet: Fleet, stopped: str
) -> None:
    for package in (ONE, TWO):
        fleet.publish(package)
    fleet.enrol("cam-1", "cam-2", "cam-3")
    fleet.run(fleet.roll_out("digits:1"))
    rollout = fleet.roll_out("digits:2", stages=[{"count": 2}, {"percent": 100}], approval=True)
    for _ in range(3):
        fleet.step()
    gone = min(fleet.running(TWO.digest))
    if stopped == "way back":
        fleet.devices[gone].outcome = "busy"
        rollout = (
            fleet.api.post(f"/v1/rollouts/{rollout}/rollback", json={})
            .raise_for_status()
            .json()["id"]
        )
        fleet.step()
        fleet.api.post(f"/v1/rollouts/{rollout}/abort").raise_for_status()
    fleet.api.patch(f"/v1/devices/{gone}", json={"state": "decommissioned"}).raise_for_status()
    if stopped == "halted":
        fleet.api.post(f"/v1/rollouts/{rollout}/abort").raise_for_status()
    elif stopped == "rolled back":
        back = (
            fleet.api.post(f"/v1/rollouts/{rollout}/rollback", json={})
            .raise_for_status()
            .json()["id"]
        )
        assert fleet.run(back)["state"] == "succeeded"
    device = takes_the_name(fleet, gone)
    fleet.step()
    assert device.active == (TWO.digest if stopped == "goes on" else ONE.digest)
    told = [event["reason"] for event in fleet.show(rollout)["events"]]
    is_told = any("enrolled anew, with what was there before" in reason for reason in told)
    assert is_told is (stopped != "way back"), "it goes back by the order that it has"


def states(fleet: Fleet, rollout: str) -> dict[str, str]:
    return {part["device"]: part["state"] for part in fleet.show(rollout)["deployments"]}


@pytest.mark.parametrize("how", ["paused", "halted"])
def test_a_device_that_takes_a_name_begins_in_a_rollout_that_stands_when_that_goes_on(
    fleet: Fleet, how: str
) -> None:
    for package in (ONE, TWO):
        fleet.publish(package)
    fleet.enrol("cam-1", "cam-2", "cam-3")
    fleet.run(fleet.roll_out("digits:1"))
    rollout = fleet.roll_out("digits:2", stages=[{"count": 2}, {"percent": 100}], soak_s=60.0)
    for _ in range(3):
        fleet.step()
    gone, other = sorted(fleet.running(TWO.digest))
    fleet.api.patch(f"/v1/devices/{gone}", json={"state": "decommissioned"}).raise_for_status()
    if how == "paused":
        fleet.api.post(f"/v1/rollouts/{rollout}/pause").raise_for_status()
    else:
        it = fleet.devices[other]
        it.report(it.documents[-1].models[0].revision, TWO.digest, "failed", "digits")
        fleet.step()
    assert fleet.state(rollout) == how
    device = takes_the_name(fleet, gone)
    for _ in range(3):
        fleet.step()
    assert device.active == ONE.digest
    assert states(fleet, rollout)[gone] == ("pending" if how == "paused" else "cancelled")
    device.outcome = "busy"
    fleet.api.post(f"/v1/rollouts/{rollout}/resume").raise_for_status()
    fleet.step()
    assert states(fleet, rollout)[gone] == "assigned"
    device.outcome, device.active = "succeeded", TWO.digest
    device.report(device.documents[-1].models[0].revision, TWO.digest, "succeeded", "digits")
    assert states(fleet, rollout)[gone] == "succeeded"


def test_a_device_that_takes_a_name_keeps_what_that_had_before_the_rollout_too(
    fleet: Fleet,
) -> None:
    for package in (ONE, TWO):
        fleet.publish(package)
    fleet.enrol("cam-1", "cam-2")
    fleet.run(fleet.roll_out("digits:1"))
    again = fleet.roll_out("digits:1", soak_s=60.0)
    for _ in range(3):
        fleet.step()
    fleet.api.patch("/v1/devices/cam-1", json={"state": "decommissioned"}).raise_for_status()
    fleet.api.post(f"/v1/rollouts/{again}/abort").raise_for_status()
    assert takes_the_name(fleet, "cam-1").active == ONE.digest


@pytest.mark.parametrize("way", ["retry", "restored", "chain"])
def test_whichever_rollout_brought_a_name_its_release_that_release_stays_stopped(
    fleet: Fleet, way: str
) -> None:
    """By another try, by the end of a later rollout, or two rollouts before."""
    with_three_releases(fleet)
    gone = "cam-1"
    fleet.devices[gone].outcome = "failed" if way == "retry" else "succeeded"
    bad = fleet.roll_out("digits:2", max_failures=3)
    fleet.run(bad)
    fleet.devices[gone].outcome = "failed" if way == "restored" else "succeeded"
    newer = ""
    if way == "retry":
        again = fleet.api.post(f"/v1/rollouts/{bad}/retry", json={"only_failed": True})
        fleet.run(again.raise_for_status().json()["id"])
    else:
        newer = fleet.roll_out("digits:3", selector=f"id={gone}", soak_s=3600.0)
        for _ in range(4):
            fleet.step()
    fleet.devices[gone].outcome = "succeeded"
    for _ in range(3):
        fleet.step()
    fleet.api.patch(f"/v1/devices/{gone}", json={"state": "decommissioned"}).raise_for_status()
    if newer and fleet.state(newer) == "running":
        fleet.api.post(f"/v1/rollouts/{newer}/abort").raise_for_status()
    back = fleet.api.post(f"/v1/rollouts/{bad}/rollback", json={}).raise_for_status().json()["id"]
    assert fleet.run(back)["state"] == "succeeded"
    device = takes_the_name(fleet, gone)
    assert device.active == ONE.digest


def test_what_a_rollback_took_away_is_no_way_back_for_who_takes_a_name(fleet: Fleet) -> None:
    with_three_releases(fleet)
    second = fleet.roll_out("digits:2")
    fleet.run(second)
    third = fleet.roll_out("digits:3")
    fleet.run(third)
    for rollout in (third, second):
        if rollout == second:
            gone = {"state": "decommissioned"}
            fleet.api.patch("/v1/devices/cam-1", json=gone).raise_for_status()
        back = fleet.api.post(f"/v1/rollouts/{rollout}/rollback", json={}).raise_for_status()
        assert fleet.run(back.json()["id"])["state"] == "succeeded"
    assert takes_the_name(fleet, "cam-1").active == ONE.digest


@pytest.mark.parametrize("how", ["pause", "abort"])
def test_who_takes_a_name_begins_no_other_release_of_a_rollback_that_does_not_go_on(
    fleet: Fleet, how: str
) -> None:
    """What is brought out in the place of what is bad is not proved by that."""
    with_three_releases(fleet)
    bad = fleet.roll_out("digits:2", soak_s=60.0)
    for _ in range(3):
        fleet.step()
    asked = {"release": "digits:3"}
    back = fleet.api.post(f"/v1/rollouts/{bad}/rollback", json=asked).raise_for_status()
    for _ in range(3):
        fleet.step()
    fleet.api.post(f"/v1/rollouts/{back.json()['id']}/{how}").raise_for_status()
    fleet.api.patch("/v1/devices/cam-1", json={"state": "decommissioned"}).raise_for_status()
    assert takes_the_name(fleet, "cam-1").active == ONE.digest


def test_who_takes_a_name_has_what_an_earlier_rollout_proved(fleet: Fleet) -> None:
    """Between two rollouts of one release there was one that was halted."""
    for version in "123":
        fleet.publish(two_variants(version, best=version))
    fleet.enrol("cam-1", "cam-2", "cam-3")
    for version in "12":
        fleet.run(fleet.roll_out(f"digits:{version}"))
    third = fleet.roll_out("digits:3", soak_s=60.0)
    for _ in range(3):
        fleet.step()
    fleet.api.post(f"/v1/rollouts/{third}/abort").raise_for_status()
    again = fleet.roll_out("digits:2", soak_s=60.0)
    for _ in range(3):
        fleet.step()
    assert fleet.running(TWO.digest) == {"cam-1", "cam-2", "cam-3"}
    fleet.api.post(f"/v1/rollouts/{again}/pause").raise_for_status()
    fleet.api.patch("/v1/devices/cam-1", json={"state": "decommissioned"}).raise_for_status()
    assert takes_the_name(fleet, "cam-1").active == TWO.digest


def test_who_takes_a_name_has_what_a_later_rollout_proved(fleet: Fleet) -> None:
    """A release that was halted, and kept by one device, is rolled out to all later."""
    for package in (ONE, TWO):
        fleet.publish(package)
    fleet.enrol("cam-1", "cam-2", "cam-3")
    fleet.run(fleet.roll_out("digits:1"))
    halted = fleet.roll_out("digits:2", selector="id=cam-1", soak_s=60.0)
    for _ in range(3):
        fleet.step()
    fleet.api.post(f"/v1/rollouts/{halted}/abort").raise_for_status()
    fleet.step()
    fleet.run(fleet.roll_out("digits:2"))
    assert fleet.running(TWO.digest) == {"cam-1", "cam-2", "cam-3"}
    fleet.api.patch("/v1/devices/cam-1", json={"state": "decommissioned"}).raise_for_status()
    assert takes_the_name(fleet, "cam-1").active == TWO.digest


def test_who_takes_a_name_in_a_rollout_that_another_one_takes_over_does_not_hold_it_up(
    fleet: Fleet,
) -> None:
    with_three_releases(fleet)
    older = fleet.roll_out("digits:2", stages=[{"count": 1}, {"percent": 100}], soak_s=60.0)
    for _ in range(3):
        fleet.step()
    (gone,) = fleet.running(TWO.digest)
    fleet.api.post(f"/v1/rollouts/{older}/pause").raise_for_status()
    fleet.devices[gone].outcome = "silent"
    newer = fleet.roll_out("digits:3", supersede=True)
    fleet.api.patch(f"/v1/devices/{gone}", json={"state": "decommissioned"}).raise_for_status()
    takes_the_name(fleet, gone)
    for _ in range(5):
        fleet.step()
    assert (fleet.state(older), fleet.state(newer)) == ("succeeded", "succeeded")


def test_a_device_that_takes_a_name_has_nothing_where_nothing_else_was_there_before(
    fleet: Fleet,
) -> None:
    fleet.publish(ONE)
    fleet.enrol("cam-1", "cam-2")
    rollout = fleet.roll_out("digits:1", stages=[{"count": 1}, {"percent": 100}], approval=True)
    for _ in range(3):
        fleet.step()
    (gone,) = fleet.running(ONE.digest)
    fleet.api.patch(f"/v1/devices/{gone}", json={"state": "decommissioned"}).raise_for_status()
    fleet.api.post(f"/v1/rollouts/{rollout}/abort").raise_for_status()
    device = takes_the_name(fleet, gone)
    assert device.active is None


def test_only_a_decommissioned_device_is_readmitted(fleet: Fleet) -> None:
    fleet.enrol("cam-1")
    answer = fleet.api.patch("/v1/devices/cam-1", json={"may_enrol_again": True})
    assert (answer.status_code, answer.json()["code"]) == (409, "controller.transition")


def test_tokens_are_listed_without_their_secrets(fleet: Fleet) -> None:
    secret = token(fleet, uses=3, labels={"site": "berlin"})
    assert fleet.device("cam-1").ask_to_enrol(secret).accepted
    fleet.step(5)
    token(fleet)
    newest, oldest = fleet.api.get("/v1/tokens").json()
    assert (newest["uses_left"], newest["used_at_s"], newest["labels"]) == (1, None, {})
    assert (oldest["uses_left"], oldest["labels"], oldest["state"]) == (
        2, {"site": "berlin"}, "open",
    )  # fmt: skip
    assert newest["created_at_s"] == oldest["used_at_s"] + 5
    assert oldest["id"] in fleet.access.enrolment
    assert secret not in str(fleet.api.get("/v1/tokens").json())


def test_a_revoked_token_lets_nobody_in_and_leaves_who_is_in(fleet: Fleet) -> None:
    made = fleet.api.post("/v1/tokens", json={"uses": 3}).raise_for_status().json()
    secret, url = made["token"], f"/v1/tokens/{made['id']}"
    first = fleet.device("cam-1")
    assert first.ask_to_enrol(secret).accepted
    fleet.access.broken = TransportError("away")
    assert fleet.api.delete(url).status_code == 503
    assert fleet.device("cam-2").ask_to_enrol(secret).reason == WRONG_TOKEN
    fleet.access.broken = None
    for _ in range(2):
        ended = fleet.api.delete(url).raise_for_status().json()
        assert (ended["state"], ended["uses_left"]) == ("closed", 0)
    assert fleet.access.enrolment == {}
    assert fleet.api.get("/v1/devices/cam-1").json()["state"] == "enrolled"
    answer = fleet.api.delete("/v1/tokens/enrol-00000000")
    assert (answer.status_code, answer.json()["code"]) == (404, "controller.unknown.token")


def test_an_answer_that_the_broker_held_up_comes_at_the_next_request(fleet: Fleet) -> None:
    secret = token(fleet)
    device = fleet.device("cam-1")
    fleet.access.broken = TransportError("away")
    with pytest.raises(AssertionError, match="no answer"):
        device.ask_to_enrol(secret)
    fleet.access.broken = None
    fleet.kill()
    assert device.ask_to_enrol(secret).accepted


def test_wrong_messages_stop_nothing(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    fleet.publish(ONE)
    fleet.enrol("cam-1")
    hello = Hello(
        device="cam-2",
        boot_id="b",
        agent_version="1",
        profile=PROFILE,
        revision=0,
        release=None,
        variant=None,
    )
    wrong = [
        Received(topics.up("cam-1", "hello"), b"\xff\xfe not json"),
        Received(topics.up("cam-1", "hello"), to_json(hello)),
        Received(topics.up("cam-1", "presence"), b"[]"),
        Received(topics.up("cam-1", "report"), b"{}" * 200_000),
        Received(topics.up("cam-1", "telemetry"), to_json(hello)),
        Received(topics.up("cam-1", "chunk_request"), b""),
        Received(topics.up("cam-2", "hello"), to_json(hello)),
        Received(
            topics.up("cam-2", "telemetry"),
            to_msgpack(TelemetryBatch(device="cam-2", boot_id="b", sequence=0)),
        ),
        Received(topics.enrol_request("cam-2"), b"{}"),
        Received("edgefleet/v1/dev/Bad Name/up/hello", b""),
        Received("edgefleet/v1/dev/cam-1/up/gossip", b""),
        Received("edgefleet/v1/enrol/x/y/z", b""),
        Received("elsewhere\nforged", b""),
    ]
    for received in wrong:
        caplog.clear()
        fleet.controller.receive(received)
        assert len(caplog.records) == 1, received.topic
        assert caplog.records[0].levelname == "WARNING"
    rollout = fleet.roll_out("digits:1")
    assert fleet.run(rollout)["state"] == "succeeded"


def test_a_report_for_an_older_revision_is_ignored(fleet: Fleet) -> None:
    fleet.publish(ONE)
    fleet.enrol("cam-1")
    device = fleet.devices["cam-1"]
    device.outcome = "silent"
    rollout = fleet.roll_out("digits:1")
    fleet.step()
    device.report(0, ONE.digest, "failed")
    device.report(7, ONE.digest, "failed")
    assert fleet.show(rollout)["counts"] == {"assigned": 1}


def test_a_report_that_comes_late_does_not_count_as_the_newest(fleet: Fleet) -> None:
    fleet.publish(ONE)
    fleet.enrol("cam-1")
    device = fleet.devices["cam-1"]
    device.outcome = "silent"
    fleet.roll_out("digits:1")
    fleet.step()

    def report(sequence: int, active: str | None, *, boot_id: str = "boot-1") -> str | None:
        message = InstallReport(
            device="cam-1", boot_id=boot_id, sequence=sequence, revision=1, digest=ONE.digest,
            phase="confirming", outcome="running", active=active, variant="best",
        )  # fmt: skip
        fleet.controller.receive(Received(topics.up("cam-1", "report"), to_json(message)))
        shown: str | None = fleet.api.get("/v1/devices/cam-1").json()["release"]
        return shown

    assert report(5, ONE.digest) == "digits:1"
    assert report(4, None) == "digits:1"
    assert report(5, None) == "digits:1"
    assert report(2**70, None) == "digits:1"
    assert report(6, None) is None
    assert report(1, ONE.digest, boot_id="boot-2") is None, "it has not said hello"
    device.boot_id = "boot-2"
    device.connect()
    assert report(7, ONE.digest) is None, "of the start before"
    assert report(1, ONE.digest, boot_id="boot-2") == "digits:1"
    plain = InstallReport(
        device="cam-1", revision=1, digest=ONE.digest, phase="idle", outcome="running", active=None
    )
    fleet.controller.receive(Received(topics.up("cam-1", "report"), to_json(plain)))
    assert fleet.api.get("/v1/devices/cam-1").json()["release"] is None, "one that does not count"


def test_no_number_of_a_device_breaks_a_handler(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.publish(ONE)
    fleet.enrol("cam-1")
    assert fleet.run(fleet.roll_out("digits:1"))["state"] == "succeeded"
    fleet.controller.delivery.start()
    request = (
        '{"device": "cam-1", "sha256": "%s", "chunk_bytes": 65536, "indices": [%d],'
        ' "number": %d, "seen": [%d, 0], "patience_s": %s}'
    )
    numbers = (10**30, 2**64, 2**63, 2**53, 2**40, -1, -(2**70))
    for index, number, seen in itertools.product((0, *numbers), repeat=3):
        text = request % (ONE.index.files[0].sha256, index, number, seen, "1e300")
        fleet.hub.deliver(Received(topics.up("cam-1", "chunk_request"), text.encode()))
    chunks: list[Received] = []
    fleet.hub.on(topics.down("cam-1", "chunk"), chunks.append)
    honest = ChunkRequest(
        device="cam-1",
        sha256=ONE.index.files[0].sha256,
        chunk_bytes=65536,
        indices=(0,),
        number=2**41,
        seen=(2**41, NOTHING_LEFT),  # what was sent before is not waited for
        patience_s=1.0,
    )
    fleet.hub.deliver(Received(topics.up("cam-1", "chunk_request"), to_json(honest)))
    until(lambda: bool(chunks), lambda: "an answer to an honest request")
    times = (float("nan"), float("inf"), -float("inf"), 1e300, -1e300)
    batch = TelemetryBatch(
        device="cam-1",
        boot_id="boot-1",
        sequence=1,
        events=tuple(Event(at_s=at_s, kind="switch", reason="r") for at_s in times),
    )
    fleet.controller.receive(Received(topics.up("cam-1", "telemetry"), to_msgpack(batch)))
    (kept,) = fleet.api.get("/v1/devices/cam-1/events").json()
    assert kept["at_s"] > fleet.clock.now_s(), (
        "the one ahead; the others are before all that is kept"
    )
    assert not [record for record in caplog.records if record.exc_info]


def test_progress_is_shown(fleet: Fleet) -> None:
    fleet.publish(ONE)
    fleet.enrol("cam-1")
    fleet.devices["cam-1"].outcome = "silent"
    rollout = fleet.roll_out("digits:1")
    fleet.step()
    report = InstallReport(
        device="cam-1",
        revision=1,
        digest=ONE.digest,
        phase="fetching",
        outcome="running",
        active=None,
        done_bytes=10,
        total_bytes=100,
    )
    fleet.controller.receive(Received(topics.up("cam-1", "report"), to_json(report)))
    (part,) = fleet.show(rollout)["deployments"]
    assert (part["phase"], part["done_bytes"], part["total_bytes"]) == ("fetching", 10, 100)
    assert fleet.api.get("/v1/devices/cam-1").json()["phase"] == "fetching"


def test_presence_and_silence(fleet: Fleet) -> None:
    fleet.enrol("cam-1")

    def online() -> bool:
        shown: bool = fleet.api.get("/v1/devices/cam-1").json()["online"]
        return shown

    def say(*, up: bool, boot_id: str) -> None:
        presence = Presence(device="cam-1", online=up, boot_id=boot_id)
        fleet.controller.receive(Received(topics.up("cam-1", "presence"), to_json(presence)))

    assert online()
    say(up=False, boot_id="an earlier boot")
    assert online(), "a late last will of an earlier boot says nothing about this one"
    say(up=False, boot_id="boot-1")
    assert not online()
    fleet.devices["cam-1"].connect()
    assert online()
    fleet.step(181)
    assert not online()


def test_chunks_of_what_is_assigned_and_nothing_else(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.publish(ONE)
    fleet.publish(two_variants("2"))
    fleet.enrol("cam-1", "cam-2")
    fleet.run(fleet.roll_out("digits:1", selector="id=cam-1"))
    fleet.controller.delivery.start()
    chunks: list[Chunk] = []
    for name in ("cam-1", "cam-2"):
        fleet.hub.on(
            topics.down(name, "chunk"),
            lambda got: chunks.append(decode_message(got.payload, Chunk, packed=True)),
        )

    def ask(device: str, sha256: str, *indices: int, answers: int = 1) -> list[Chunk]:
        chunks.clear()
        request = ChunkRequest(device=device, sha256=sha256, chunk_bytes=1024, indices=indices)
        fleet.hub.deliver(Received(topics.up(device, "chunk_request"), to_json(request)))
        until(lambda: len(chunks) >= answers, lambda: f"{answers} answers: {chunks}")
        return list(chunks)

    for blob in ONE.blobs:
        sha256 = sha256_hex(blob)
        count = max(1, -(-len(blob) // 1024))
        got = ask("cam-1", sha256, *range(count), answers=count)
        assert b"".join(chunk.data for chunk in got) == blob
        assert ask("cam-1", sha256, count)[0].missing
        assert ask("cam-2", sha256, 0)[0].missing
    other = two_variants("2").ref.envelope_sha256
    assert ask("cam-1", other, 0)[0].missing
    assert ask("cam-1", "f" * 64, 0, 1)[0].missing
    for indices in ((), (0, 0), (-1,), tuple(range(65))):
        caplog.clear()
        fleet.clock.advance(QUIET_S)
        assert ask("cam-1", other, *indices, answers=0) == []
        until(lambda: "was refused" in caplog.text, lambda: caplog.text)


def test_a_piece_that_cannot_be_sent_stands_in_nobodys_way(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.publish(ONE)
    fleet.enrol("cam-1", "cam-2")
    assert fleet.run(fleet.roll_out("digits:1"))["state"] == "succeeded"
    fleet.controller.delivery.start()
    got: list[Received] = []

    def fail(_received: Received) -> None:
        raise OverflowError("no message can say that")

    fleet.hub.on(topics.down("cam-1", "chunk"), fail)
    fleet.hub.on(topics.down("cam-2", "chunk"), got.append)
    for device in ("cam-1", "cam-2"):
        request = ChunkRequest(
            device=device,
            sha256=ONE.index.files[0].sha256,
            chunk_bytes=1024,
            indices=(0,),
            number=1,
            patience_s=100.0,
        )
        fleet.hub.deliver(Received(topics.up(device, "chunk_request"), to_json(request)))
    until(lambda: bool(got), lambda: "an answer to the other device")
    assert len([record for record in caplog.records if record.exc_info]) == 1
