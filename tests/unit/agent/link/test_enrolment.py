"""Enrolment: a proof, a yes or a no, and what a lost yes costs."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.errors import EnrolmentError, EnrolmentRefusedError, StoppedError
from agent.interrupts import Interrupts
from agent.link.enrolment import Applicant, Enrolment, Login
from agent.link.identity import Identity
from tests.simulators.clock import FakeClock
from tests.simulators.packages import PROFILE
from tests.simulators.transport import MemoryHub, MemoryTransport
from wire.codec import to_json
from wire.enrolment import enrol_username
from wire.messages import EnrolReply, EnrolRequest, decode_message, enrol_proof
from wire.topics import ENROL_REQUESTS, enrol_reply
from wire.transport import Connection, ConnectionHandler, MessageHandler, Received
from wire.trust.envelope import is_valid

TOKEN = "one-use-token"


class SteppingClock(FakeClock):
    """Half a second passes with every look."""

    def monotonic_s(self) -> float:
        self.advance(0.5)
        return super().monotonic_s()


class World:
    """A device without a name yet, and whoever answers it."""

    def __init__(
        self, directory: Path, *, accounts: Callable[[Login], bool] = lambda _l: True
    ) -> None:
        self.hub = MemoryHub()
        self.identity = Identity(directory, "dev-1")
        self.logins: list[Login] = []
        self.requests: list[EnrolRequest] = []
        self.reply: EnrolReply | None = EnrolReply(device="dev-1", accepted=True)
        self.accounts = accounts
        self.transports: list[MemoryTransport] = []
        self.clock = SteppingClock()
        self.interrupts = Interrupts(self.clock)
        self.controller = self.hub.on(ENROL_REQUESTS, self.hear)
        self.enrolment = Enrolment(
            Applicant(device="dev-1", profile=PROFILE, labels={"site": "a"}, agent_version="1"),
            self.identity,
            self.connect,
            interrupts=self.interrupts,
            clock=self.clock,
        )

    def connect(self, login: Login) -> MemoryTransport:
        self.logins.append(login)
        transport = self.hub.connect(refused=not self.accounts(login))
        self.transports.append(transport)
        return transport

    def hear(self, received: Received) -> None:
        self.requests.append(decode_message(received.payload, EnrolRequest))
        if self.reply is not None:
            self.controller.publish(enrol_reply("dev-1"), to_json(self.reply))


def test_a_yes_is_remembered(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.enrolment.ensure(TOKEN)
    assert Identity(tmp_path, "dev-1").credentials.enrolled
    world.enrolment.ensure(None)
    assert len(world.logins) == 1
    assert all(transport.closed for transport in world.transports)


def test_the_request_proves_that_the_device_holds_its_key(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.enrolment.ensure(TOKEN)
    request, login = world.requests[0], world.logins[0]
    assert (login.username, login.password) == (enrol_username(TOKEN), TOKEN)
    assert request.password == world.identity.credentials.password
    assert request.labels == {"site": "a"}
    proof = enrol_proof("dev-1", TOKEN, request.password)
    key = base64.b64decode(request.public_key)
    assert key == world.identity.key.public_key
    assert is_valid(key, proof, base64.b64decode(request.signature))


def test_a_no_is_said_with_its_reason(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.reply = EnrolReply(device="dev-1", accepted=False, reason="the token has expired")
    with pytest.raises(EnrolmentRefusedError, match="the token has expired"):
        world.enrolment.ensure(TOKEN)
    assert not world.identity.credentials.enrolled


def test_silence_is_asked_again_and_then_given_up_for_now(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.reply = None

    class Impatient(FakeClock):
        def monotonic_s(self) -> float:
            self.advance(6)
            return super().monotonic_s()

    world.enrolment = Enrolment(
        Applicant(device="dev-1", profile=PROFILE, labels={}, agent_version="1"),
        world.identity,
        world.connect,
        interrupts=world.interrupts,
        clock=Impatient(),
    )
    with pytest.raises(EnrolmentError) as caught:
        world.enrolment.ensure(TOKEN)
    assert caught.value.retryable
    assert len(world.requests) > 2
    assert len({request.password for request in world.requests}) == 1


def test_garbage_and_answers_to_others_are_none_of_ours(tmp_path: Path) -> None:
    world = World(tmp_path)

    def babble(_received: Received) -> None:
        other = to_json(EnrolReply(device="dev-2", accepted=False))
        world.controller.publish(enrol_reply("dev-1"), b"garbage")
        world.controller.publish(enrol_reply("dev-1"), other)

    # It speaks before the controller, which subscribed first.
    babbler = world.hub.on(ENROL_REQUESTS, babble)
    world.hub.transports.remove(babbler)
    world.hub.transports.insert(0, babbler)
    world.enrolment.ensure(TOKEN)
    assert world.identity.credentials.enrolled


def test_without_a_token_it_says_where_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(EnrolmentRefusedError) as caught:
        World(tmp_path).enrolment.ensure(None)
    assert "fleet token create" in caught.value.remedy


def test_a_lost_yes_is_found_by_the_account_that_it_opened(tmp_path: Path) -> None:
    world = World(tmp_path, accounts=lambda login: login.username == "dev-1")
    world.enrolment.ensure(TOKEN)
    assert world.identity.credentials.enrolled
    assert [login.username for login in world.logins] == [enrol_username(TOKEN), "dev-1"]


def test_a_token_that_opens_nothing_is_said(tmp_path: Path) -> None:
    world = World(tmp_path, accounts=lambda _login: False)
    with pytest.raises(
        EnrolmentRefusedError, match="does not accept the enrolment token"
    ) as caught:
        world.enrolment.ensure(TOKEN)
    assert TOKEN not in str(caught.value)
    assert not world.identity.credentials.enrolled


def test_a_stop_ends_the_waiting(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.reply = None
    world.interrupts.stop()
    with pytest.raises(StoppedError):
        world.enrolment.ensure(TOKEN)


class Unreachable(MemoryTransport):
    """A broker that cannot be reached, for a reason."""

    def start(self, _on_message: MessageHandler, on_connection: ConnectionHandler) -> None:
        on_connection(Connection(up=False, reason="no MQTT broker answers at 127.0.0.1:1"))


def test_a_broker_that_cannot_be_reached_is_said_at_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    enrolment = Enrolment(
        Applicant(device="dev-1", profile=PROFILE, labels={}, agent_version="1"),
        world.identity,
        lambda _login: Unreachable(world.hub),
        interrupts=world.interrupts,
        clock=world.clock,
    )
    with pytest.raises(EnrolmentError, match=r"no MQTT broker answers at 127\.0\.0\.1:1") as caught:
        enrolment.ensure(TOKEN)
    assert caught.value.retryable
    assert world.clock.monotonic_s() < 5, "it did not wait for an answer that cannot come"
