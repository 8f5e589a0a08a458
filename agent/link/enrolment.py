"""Enrols a device: it shows its token and its key, and waits for the controller to accept them.

Rules:
- The token is for a broker account that may only ask for enrolment. When the controller accepts, it
  makes the device's own account.
- Asking twice is safe: the device sends the same key and password each time.
- If the broker refuses a token, the token may be used up by an acceptance that got lost: the device
  tries the account that it asked for before it gives up.
"""

from __future__ import annotations

import base64
import queue
from collections.abc import Callable
from typing import Final, Self

import msgspec

from agent.errors import EnrolmentError, EnrolmentRefusedError
from agent.interrupts import Interrupts
from agent.link.identity import Identity
from wire.clock import Clock
from wire.codec import to_json
from wire.enrolment import enrol_username
from wire.errors import WireFormatError
from wire.messages import EnrolReply, EnrolRequest, decode_message, enrol_proof
from wire.mqtt import LastWill
from wire.profile import DeviceProfile
from wire.topics import enrol_reply, enrol_request
from wire.transport import Connection, Received, Transport
from wire.trust.envelope import SigningKey
from wire.trust.root import encode_key

TIMEOUT_S: Final = 60.0
ASK_AGAIN_S: Final = 5.0
LOGIN_TIMEOUT_S: Final = 10.0
POLL_S: Final = 0.2


class Login(msgspec.Struct, frozen=True, kw_only=True):
    """What a client sends to log in to the broker."""

    client_id: str
    username: str | None = None
    password: str | None = None
    will: LastWill | None = None


Connect = Callable[[Login], Transport]


class Applicant(msgspec.Struct, frozen=True, kw_only=True):
    """The data about itself that a device sends when it asks to be enrolled."""

    device: str
    profile: DeviceProfile
    labels: dict[str, str]
    agent_version: str


class Enrolment:
    """Makes sure that this device is enrolled.

    Args:
        applicant: The data that the device sends about itself.
        identity: Its key and credentials.
        connect: Makes a connection to the broker.
        interrupts: Ends the waiting.
        clock: For deadlines.
    """

    def __init__(
        self,
        applicant: Applicant,
        identity: Identity,
        connect: Connect,
        *,
        interrupts: Interrupts,
        clock: Clock,
    ) -> None:
        self._applicant = applicant
        self._identity = identity
        self._connect = connect
        self._interrupts = interrupts
        self._clock = clock

    def ensure(self, token: str | None) -> None:
        """Enrol the device, unless it is enrolled already.

        Args:
            token: The enrolment token; not needed if the device is enrolled already.

        Raises:
            EnrolmentError: There is no connection or no answer; try again later.
            EnrolmentRefusedError: The controller refuses, or the broker refuses the token.
            StoppedError: The agent is being stopped.
            StorageError: The acceptance could not be saved.
        """
        if self._identity.credentials.enrolled:
            return
        if token is None:
            raise EnrolmentRefusedError(
                "the device is not enrolled and has no enrolment token",
                remedy="write a token from `fleet token create` to token_file",
            )
        if not self._ask(token) and not self._may_login():
            raise EnrolmentRefusedError(
                "the broker does not accept the enrolment token",
                remedy="write a new token from `fleet token create` to token_file",
            )
        self._identity.confirm()

    def _ask(self, token: str) -> bool:
        """Ask until there is an answer; return False if the broker refuses the token.

        Raises:
            EnrolmentError: There is no connection, or the controller did not answer.
            EnrolmentRefusedError: The controller refuses.
        """
        device = self._applicant.device
        login = Login(client_id=f"enrol-{device}", username=enrol_username(token), password=token)
        request = to_json(_request(self._applicant, self._identity, token))
        asked_s = float("-inf")
        connected = False
        with _Inbox(self._connect(login), enrol_reply(device)) as inbox:
            end_s = self._clock.monotonic_s() + TIMEOUT_S
            while (now_s := self._clock.monotonic_s()) < end_s:
                if connected and now_s - asked_s >= ASK_AGAIN_S:
                    inbox.transport.publish(enrol_request(device), request)
                    asked_s = now_s
                item = self._next(inbox)
                if isinstance(item, Received) and (reply := _reply(item, device)) is not None:
                    if not reply.accepted:
                        raise EnrolmentRefusedError(
                            f"the controller refused the enrolment: {reply.reason}"
                        )
                    return True
                if isinstance(item, Connection):
                    connected = item.up
                    if item.refused:
                        return False
                    if not item.up and asked_s < 0:  # it has never been connected
                        raise EnrolmentError(f"cannot ask to be enrolled: {item.reason}")
        raise EnrolmentError(f"the controller did not answer the enrolment within {TIMEOUT_S:g} s")

    def _may_login(self) -> bool:
        credentials = self._identity.credentials
        login = Login(
            client_id=credentials.device,
            username=credentials.device,
            password=credentials.password,
        )
        with _Inbox(self._connect(login), None) as inbox:
            end_s = self._clock.monotonic_s() + LOGIN_TIMEOUT_S
            while self._clock.monotonic_s() < end_s:
                item = self._next(inbox)
                if isinstance(item, Connection) and (item.up or item.refused):
                    return item.up
        return False

    def _next(self, inbox: _Inbox) -> Received | Connection | None:
        self._interrupts.check(abandon=False)
        return inbox.get()


class _Inbox:
    """A connection whose messages wait in a queue, for the length of a `with` block."""

    def __init__(self, transport: Transport, topic_filter: str | None) -> None:
        self.transport = transport
        self._queue: queue.Queue[Received | Connection] = queue.Queue(maxsize=64)
        if topic_filter is not None:
            transport.subscribe(topic_filter)

    def __enter__(self) -> Self:
        self.transport.start(self._put, self._put)
        return self

    def __exit__(self, *_exc: object) -> None:
        self.transport.close()

    def get(self) -> Received | Connection | None:
        try:
            return self._queue.get(timeout=POLL_S)
        except queue.Empty:
            return None

    def _put(self, item: Received | Connection) -> None:
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            return  # the device asks again


def _request(applicant: Applicant, identity: Identity, token: str) -> EnrolRequest:
    key: SigningKey = identity.key
    password = identity.credentials.password
    proof = key.sign(enrol_proof(applicant.device, token, password))
    return EnrolRequest(
        device=applicant.device,
        token=token,
        public_key=encode_key(key.public_key),
        password=password,
        signature=base64.b64encode(proof).decode(),
        profile=applicant.profile,
        labels=applicant.labels,
        agent_version=applicant.agent_version,
    )


def _reply(received: Received, device: str) -> EnrolReply | None:
    try:
        reply = decode_message(received.payload, EnrolReply)
    except WireFormatError:
        return None
    return reply if reply.device == device else None
