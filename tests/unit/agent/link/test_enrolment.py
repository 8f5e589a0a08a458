"""Enrolment: a proof, a signed yes or no, and what false answers cost."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from agent.errors import EnrolmentError, EnrolmentRefusedError, StoppedError
from agent.interrupts import Interrupts
from agent.link.enrolment import ASK_AGAIN_S, TIMEOUT_S, Applicant, Enrolment, Login
from agent.link.identity import Identity
from agent.link.outage import Outage
from telemetry.device.recorder import Recorder
from tests.simulators.clock import FakeClock
from tests.simulators.packages import (
    PROFILE,
    RELEASE_KEY,
    STRANGER_KEY,
    TRUST,
    desired,
    enrol_reply_to,
)
from tests.simulators.transport import MemoryHub, MemoryTransport
from wire.codec import from_json, to_json
from wire.enrolling import EnrolReply, EnrolRequest
from wire.enrolment import challenged_proof, enrol_proof, enrol_username, return_password
from wire.messages import decode_message
from wire.topics import ENROL_REQUESTS, enrol_reply
from wire.transport import Connection, ConnectionHandler, MessageHandler, Received
from wire.trust.envelope import SigningKey, is_valid
from wire.trust.root import Role, TrustRoot, encode_key

TOKEN = "one-use-token"
RETURN = return_password(TRUST.director.keys[0])
SILENT = "silent"
Answers = Callable[[bytes], bytes | None]


class SteppingClock(FakeClock):
    """Time passes with every look. Between two looks the device really waits, so they are few."""

    def __init__(self, step_s: float) -> None:
        super().__init__()
        self.step_s = step_s

    def monotonic_s(self) -> float:
        self.advance(self.step_s)
        return super().monotonic_s()


class Unreachable(MemoryTransport):
    """A connection that never comes, and says why, or nothing."""

    def __init__(self, hub: MemoryHub, reason: str) -> None:
        super().__init__(hub)
        self._reason = reason

    def start(self, on_message: MessageHandler, on_connection: ConnectionHandler) -> None:
        del on_message
        if self._reason != SILENT:
            on_connection(Connection(up=False, reason=self._reason))


class World:
    """A device without an account yet, and whoever answers it."""

    def __init__(
        self,
        directory: Path,
        *,
        accounts: Callable[[Login], bool] = lambda _l: True,
        answers: tuple[Answers, ...] = (enrol_reply_to,),
        step_s: float = 2.0,
        trust: TrustRoot = TRUST,
        obstacle: str = "",
    ) -> None:
        self.hub = MemoryHub()
        self.obstacle = obstacle
        self.identity = Identity(directory, "dev-1")
        self.logins: list[Login] = []
        self.requests: list[EnrolRequest] = []
        self.payloads: list[bytes] = []
        self.answers = answers
        """What is said to each request, in this order."""

        self.accounts = accounts
        self.transports: list[MemoryTransport] = []
        self.clock = SteppingClock(step_s)
        self.recorder = Recorder(self.clock)
        self.outage = Outage("broker:1883", self.recorder, self.clock)
        self.interrupts = Interrupts(self.clock)
        self.controller = self.hub.on(ENROL_REQUESTS, self.hear)
        self.enrolment = Enrolment(
            Applicant(device="dev-1", profile=PROFILE, labels={"site": "a"}, agent_version="1"),
            self.identity,
            self.connect,
            trust=trust,
            outage=self.outage,
            interrupts=self.interrupts,
            clock=self.clock,
        )

    def connect(self, login: Login) -> MemoryTransport:
        self.logins.append(login)
        if self.obstacle:
            return Unreachable(self.hub, self.obstacle)
        transport = self.hub.connect(refused=not self.accounts(login))
        self.transports.append(transport)
        return transport

    def hear(self, received: Received) -> None:
        self.payloads.append(received.payload)
        self.requests.append(decode_message(received.payload, EnrolRequest))
        for answer in self.answers:
            if (said := answer(received.payload)) is not None:
                self.controller.publish(enrol_reply("dev-1"), said)

    def is_enrolled(self, directory: Path) -> bool:
        return Identity(directory, "dev-1").credentials.enrolled


def nothing(_request: bytes) -> None:
    return None


def unsigned(_request: bytes) -> bytes:
    return to_json(EnrolReply(device="dev-1", accepted=True))


def by(key: object) -> Answers:
    return lambda request: enrol_reply_to(request, key=key)  # type: ignore[arg-type]


def of_another_document(request: bytes) -> bytes:
    """Wrap a desired state, which the director did sign, as an answer."""
    reply = from_json(enrol_reply_to(request), EnrolReply)
    other = desired(1, None)[1].decode()
    return to_json(msgspec.structs.replace(reply, signed=other))


def to_another_request(request: bytes) -> bytes:
    """Answer with what the director said to an earlier attempt of the same device."""
    earlier = msgspec.structs.replace(from_json(request, EnrolRequest), nonce="earlier")
    return enrol_reply_to(to_json(earlier))


def to_another_device(request: bytes) -> bytes:
    other = msgspec.structs.replace(from_json(request, EnrolRequest), device="dev-2")
    return enrol_reply_to(to_json(other))


def test_a_signed_yes_is_remembered(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.enrolment.apply(TOKEN)
    assert world.is_enrolled(tmp_path)
    assert len(world.logins) == 1
    assert all(transport.closed for transport in world.transports)


def test_the_request_proves_that_the_device_holds_its_key(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.enrolment.apply(TOKEN)
    request, login = world.requests[0], world.logins[0]
    assert (login.username, login.password) == (enrol_username(TOKEN), TOKEN)
    account = world.identity.own_account
    assert (request.password, request.client_id) == (account.password, account.client_id)
    assert request.labels == {"site": "a"}
    proof = enrol_proof("dev-1", TOKEN, request.password)
    key = base64.b64decode(request.public_key)
    assert key == world.identity.key.public_key
    assert is_valid(key, proof, base64.b64decode(request.signature))


def test_no_two_attempts_are_alike_and_nobody_knows_their_client_identifier(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    world.enrolment.apply(TOKEN)
    world.enrolment.apply(TOKEN)
    assert world.requests[0].nonce != world.requests[1].nonce
    assert world.requests[0].password == world.requests[1].password
    assert len({login.client_id for login in world.logins}) == 2
    assert all(len(login.client_id) >= 32 for login in world.logins)


def test_a_no_is_said_with_its_reason(tmp_path: Path) -> None:
    world = World(
        tmp_path,
        answers=(lambda r: enrol_reply_to(r, accepted=False, reason="the token has expired"),),
    )
    with pytest.raises(EnrolmentRefusedError, match="the token has expired"):
        world.enrolment.apply(TOKEN)
    assert not world.is_enrolled(tmp_path)


@pytest.mark.parametrize(
    "false",
    [
        unsigned, by(STRANGER_KEY), by(RELEASE_KEY), of_another_document, to_another_request,
        to_another_device, lambda _r: b"garbage", lambda _r: b"",
    ],
    ids=[
        "unsigned", "of a stranger", "of another role", "another document", "to another request",
        "to another device", "garbage", "empty",
    ],
)  # fmt: skip
def test_a_false_yes_enrols_nobody_and_a_true_one_after_it_does(
    tmp_path: Path, false: Answers
) -> None:
    world = World(tmp_path, answers=(false,), step_s=5.0)
    with pytest.raises(EnrolmentError) as caught:
        world.enrolment.apply(TOKEN)
    assert caught.value.retryable
    assert not world.is_enrolled(tmp_path)
    world.answers = (false, enrol_reply_to)
    world.enrolment.apply(TOKEN)
    assert world.is_enrolled(tmp_path)


def test_the_controller_hears_why_its_answer_was_not_believed(tmp_path: Path) -> None:
    world = World(tmp_path, answers=(by(STRANGER_KEY),))
    for _ in range(2):
        with pytest.raises(EnrolmentError):
            world.enrolment.apply(TOKEN)
    doubts = [request.doubt for request in world.requests]
    assert doubts[0] is msgspec.UNSET
    assert "0 of 1 needed signatures" in str(doubts[-1])


def test_an_answer_that_cannot_be_trusted_is_said_with_a_remedy_before_the_time_is_up(
    tmp_path: Path,
) -> None:
    for false, why in ((by(STRANGER_KEY), "0 of 1 needed signatures"), (unsigned, "not signed")):
        world = World(tmp_path, answers=(false,))
        with pytest.raises(EnrolmentError, match=why) as caught:
            world.enrolment.apply(TOKEN)
        assert "trust" in caught.value.remedy
        assert world.clock.monotonic_s() < TIMEOUT_S / 2


def challenging(request: bytes) -> bytes:
    """Answer as a controller does that knows the device's key."""
    challenge = decode_message(request, EnrolRequest).challenge
    if challenge == "challenge":
        return enrol_reply_to(request)
    return enrol_reply_to(request, accepted=False, reason="no", challenge="challenge")


def test_a_challenge_is_signed_at_once_with_the_account_that_is_asked_for(tmp_path: Path) -> None:
    world = World(tmp_path, answers=(challenging,), step_s=0.01)
    world.enrolment.apply(None)
    assert world.is_enrolled(tmp_path)
    first, second = world.requests
    assert first.challenge is msgspec.UNSET
    assert (second.password, second.client_id) == (first.password, first.client_id)
    assert second.nonce != first.nonce
    proof = challenged_proof(
        device="dev-1",
        token="",
        password=second.password,
        client_id=str(second.client_id),
        nonce=str(second.nonce),
        challenge="challenge",
    )
    key = world.identity.key.public_key
    assert is_valid(key, proof, base64.b64decode(second.signature))
    assert world.clock.monotonic_s() < ASK_AGAIN_S


def test_challenges_without_end_are_a_refusal(tmp_path: Path) -> None:
    world = World(
        tmp_path,
        answers=(lambda r: enrol_reply_to(r, accepted=False, reason="no", challenge="again"),),
    )
    with pytest.raises(EnrolmentRefusedError, match="no"):
        world.enrolment.apply(None)
    assert len(world.requests) < 10


@pytest.mark.parametrize("false", [STRANGER_KEY, RELEASE_KEY])
def test_a_challenge_that_the_director_did_not_sign_is_not_answered(
    tmp_path: Path, false: SigningKey
) -> None:
    world = World(
        tmp_path,
        answers=(lambda r: enrol_reply_to(r, accepted=False, challenge="evil", key=false),),
    )
    with pytest.raises(EnrolmentError, match="cannot be trusted"):
        world.enrolment.apply(None)
    assert {request.challenge for request in world.requests} == {msgspec.UNSET}


def test_silence_is_asked_again_and_then_given_up_for_now(tmp_path: Path) -> None:
    world = World(tmp_path, answers=(nothing,), step_s=6.0)
    with pytest.raises(EnrolmentError, match="the controller does not answer") as caught:
        world.enrolment.apply(TOKEN)
    assert caught.value.retryable
    assert len(world.payloads) > 2
    assert len(set(world.payloads)) == 1, "one attempt is one request"
    assert world.outage.reason == "not enrolled: the controller does not answer"


def test_what_keeps_the_device_from_its_broker_is_said_at_once(tmp_path: Path) -> None:
    world = World(tmp_path, obstacle="the host nowhere is unknown")
    with pytest.raises(EnrolmentError, match="the host nowhere is unknown"):
        world.enrolment.apply(TOKEN)
    (event,) = world.recorder.drain()[1]
    assert (event.kind, event.reason) == ("refused", "not enrolled: the host nowhere is unknown")
    assert event.at_s - FakeClock().now_s() < 4 * world.clock.step_s


def test_a_broker_that_says_nothing_is_told_within_seconds(tmp_path: Path) -> None:
    world = World(tmp_path, obstacle=SILENT)
    with pytest.raises(EnrolmentError, match="no MQTT broker answers at broker:1883 within"):
        world.enrolment.apply(TOKEN)
    (event,) = world.recorder.drain()[1]
    assert event.at_s - FakeClock().now_s() < 15


def test_without_a_token_the_key_alone_is_shown(tmp_path: Path) -> None:
    world = World(tmp_path, accounts=lambda login: login.password == RETURN)
    world.enrolment.apply(None)
    assert world.is_enrolled(tmp_path)
    (login,) = world.logins
    assert login.username == enrol_username(RETURN)
    assert world.requests[0].token == ""


def test_a_token_that_is_over_does_not_keep_a_known_device_out(tmp_path: Path) -> None:
    world = World(tmp_path, accounts=lambda login: login.password == RETURN)
    world.enrolment.apply(TOKEN)
    assert world.is_enrolled(tmp_path)
    assert [login.password for login in world.logins] == [TOKEN, RETURN]


def test_each_of_several_directors_has_its_turn(tmp_path: Path) -> None:
    new, old = encode_key(STRANGER_KEY.public_key), TRUST.director.keys[0]
    trust = TrustRoot(release=TRUST.release, director=Role(keys=(new, old)))
    world = World(tmp_path, accounts=lambda login: login.password == RETURN, trust=trust)
    with pytest.raises(EnrolmentRefusedError):
        world.enrolment.apply(None)
    world.enrolment.apply(None)
    assert world.is_enrolled(tmp_path)


@pytest.mark.parametrize("token", [TOKEN, None])
def test_a_device_that_nobody_knows_is_told_where_to_get_a_token(
    tmp_path: Path, token: str | None
) -> None:
    world = World(tmp_path, accounts=lambda _login: False)
    with pytest.raises(EnrolmentRefusedError, match="token") as caught:
        world.enrolment.apply(token)
    assert "fleet token create" in caught.value.remedy
    assert TOKEN not in str(caught.value)
    assert not world.is_enrolled(tmp_path)


def test_a_stop_ends_the_waiting(tmp_path: Path) -> None:
    world = World(tmp_path, answers=(nothing,))
    world.interrupts.stop()
    with pytest.raises(StoppedError):
        world.enrolment.apply(TOKEN)
