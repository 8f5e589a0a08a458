"""Enrols a device: it shows its token or its key, and waits for the controller to accept them.

Rules:
- A device with a token asks through the account of the token; without one, or if the broker refuses
  that, through the account for devices whose key the controller knows (`wire.enrolment`).
- Only an answer that the director signed, for this device and for this very request, counts.
- A controller that knows the device's key answers with a challenge; the device asks again at once,
  and signs the challenge. A recorded request is of no use to anybody.
- It asks for a certificate, too. A controller that gives certificates sends one with its answer;
  another one makes an account with the password.
- Asking again is safe: the device asks for the same account each time. It says why it did not
  believe the last answer, so that the controller can show that.
"""

from __future__ import annotations

import base64
import queue
import secrets
from collections.abc import Callable, Iterator
from typing import Final, Self

import msgspec

from agent.errors import (
    CertificateError,
    EnrolmentError,
    EnrolmentRefusedError,
    EnrolmentWaitsError,
)
from agent.interrupts import Interrupts
from agent.link.identity import Identity, ShownCertificate
from agent.link.outage import SILENCE_S, Outage
from agent.trust.keeper import MetadataTrust
from wire.clock import Clock
from wire.codec import sha256_hex, to_json
from wire.enrolling import ENROL_PAYLOAD_TYPE, EnrolAnswer, EnrolReply, EnrolRequest
from wire.enrolment import (
    challenged_proof,
    csr_proof,
    enrol_proof,
    enrol_username,
    return_password,
)
from wire.errors import FleetError, SignatureError
from wire.messages import decode_message
from wire.mqtt import LastWill
from wire.profile import DeviceProfile
from wire.topics import enrol_reply, enrol_request
from wire.transport import Connection, Received, Transport
from wire.trust.root import Trust, encode_key

TIMEOUT_S: Final = 60.0
ASK_AGAIN_S: Final = 5.0
DOUBT_S: Final = 10.0
"""How long to wait for a good answer after one that cannot be trusted."""

POLL_S: Final = 0.2
SECRET_BYTES: Final = 16
MAX_DOUBT_CHARS: Final = 300
MAX_CHALLENGES: Final = 3
"""For one attempt: one, and two more if the link is so slow that it is over when it comes."""

Draft = Callable[[str], bytes]
"""Makes a request with a challenge; empty for none."""


class Login(msgspec.Struct, frozen=True, kw_only=True):
    """What a client sends to log in to the broker."""

    client_id: str
    username: str | None = None
    password: str | None = None
    certificate: ShownCertificate | None = None
    will: LastWill | None = None


Connect = Callable[[Login], Transport]


class Applicant(msgspec.Struct, frozen=True, kw_only=True):
    """The data about itself that a device sends when it asks to be enrolled."""

    device: str
    profile: DeviceProfile
    labels: dict[str, str]
    agent_version: str
    serial: str | None = None
    """The serial number of its hardware, if one is known."""


class Enrolment:
    """Enrols this device.

    Args:
        applicant: The data that the device sends about itself.
        identity: Its key, and the account for which it asks.
        connect: Makes a connection to the broker.
        trust: The keys that may sign the answer.
        outage: Takes what is in the way, while the device waits.
        interrupts: Ends the waiting.
        clock: For deadlines.
    """

    def __init__(
        self,
        applicant: Applicant,
        identity: Identity,
        connect: Connect,
        *,
        trust: Trust,
        outage: Outage,
        interrupts: Interrupts,
        clock: Clock,
    ) -> None:
        self._applicant = applicant
        self._identity = identity
        self._connect = connect
        self._trust = trust
        self._outage = outage
        self._interrupts = interrupts
        self._clock = clock
        self._attempts = 0
        self._doubt = ""
        self._csr = ""
        self._no_csr = ""
        """Why the device asks for no certificate; empty if it does."""

    def apply(self, token: str | None) -> None:
        """Ask until the controller has answered; after that, the device has its account.

        Args:
            token: The enrolment token, if there is one.

        Raises:
            CertificateError: The certificate is not of this device's key.
            EnrolmentError: The controller did not answer, or nobody can trust the answer; try again
                later.
            EnrolmentRefusedError: The controller refuses, or the broker refuses the accounts.
            EnrolmentWaitsError: An operator has to let the device in; ask again later.
            StoppedError: The agent is being stopped.
            StorageError: The acceptance could not be saved.
        """
        self._prepare()
        for password in self._passwords(token):
            answer = self._ask(password, token or "")
            if answer is not None:
                self._identity.confirm(answer.certificate)
                return
        if token:
            fact = "the broker accepts neither the enrolment token nor the device's key"
        else:
            fact = "the broker does not know this device, and it has no enrolment token"
        raise EnrolmentRefusedError(
            fact, remedy="write a new token from `fleet token create` to token_file"
        )

    def _prepare(self) -> None:
        """Make the request for a certificate; a controller with passwords alone needs none."""
        self._csr = self._no_csr = ""
        try:
            self._csr = self._identity.tls_key.request()
        except CertificateError as exc:
            self._no_csr = str(exc)

    def _passwords(self, token: str | None) -> Iterator[str]:
        """Yield the passwords of the accounts through which to ask."""
        if token:
            yield token
        # A trust file with several keys is used while they change: each has its turn.
        names = self._trust.fleet_names
        yield return_password(names[self._attempts % len(names)])
        self._attempts += 1

    def _ask(self, password: str, token: str) -> EnrolAnswer | None:
        """Ask until the controller accepts; return None if the broker refuses the account.

        Raises:
            EnrolmentError: No answer that can be trusted has come.
            EnrolmentRefusedError: The controller refuses.
            EnrolmentWaitsError: An operator has to let the device in.
        """
        device = self._applicant.device
        # Nobody else must be able to end this connection by its client identifier.
        client_id = f"enrol-{secrets.token_hex(SECRET_BYTES)}"
        login = Login(client_id=client_id, username=enrol_username(password), password=password)

        def draft(challenge: str) -> bytes:
            request = _request(self._applicant, self._identity, token, self._doubt, challenge)
            return to_json(_with_csr(request, self._identity, self._csr))

        with _Inbox(self._connect(login), enrol_reply(device)) as inbox:
            asking = _Asking(draft, inbox, self._clock.monotonic_s())
            while (now_s := self._clock.monotonic_s()) < asking.end_s:
                self._interrupts.check(abandon=False)
                asking.remind(enrol_request(device), now_s)
                item = inbox.get()
                if isinstance(item, Received):
                    if (answer := self._accepted(item, asking, now_s)) is not None:
                        return answer
                elif item is not None and item.refused:
                    return None
                else:
                    self._connection(item, asking, now_s)
        raise asking.fault or EnrolmentError(asking.obstacle or "the controller does not answer")

    def _connection(self, change: Connection | None, asking: _Asking, now_s: float) -> None:
        """Take a change of the connection, or that nothing was heard."""
        if change is not None:
            asking.connected, asking.obstacle = change.up, change.reason
            asking.quiet_s = now_s + SILENCE_S
        elif now_s >= asking.quiet_s and not asking.obstacle:
            unheard = "the controller does not answer" if asking.connected else self._outage.silence
            asking.obstacle = unheard
        if asking.obstacle:
            self._outage.met("enrolment", f"not enrolled: {asking.obstacle}")
        elif change is not None:
            self._outage.over("enrolment")

    def _accepted(self, received: Received, asking: _Asking, now_s: float) -> EnrolAnswer | None:
        """Return a message that accepts this device; None for another one.

        Raises:
            EnrolmentRefusedError: The controller refuses.
            EnrolmentWaitsError: An operator has to let the device in.
        """
        try:
            answer = _answer(received.payload, self._trust)
        except FleetError as exc:
            asking.doubt(exc, now_s)
            self._doubt = exc.message[:MAX_DOUBT_CHARS]
            return None
        if answer.device != self._applicant.device or answer.request_sha256 != asking.sha256:
            return None  # the answer to an earlier request
        if not answer.accepted:
            if isinstance(answer.challenge, str) and asking.take_challenge(answer.challenge):
                return None
            if isinstance(answer.ask_again_s, float):
                raise EnrolmentWaitsError(answer.reason, ask_again_s=answer.ask_again_s)
            why = f"; {self._no_csr}" if self._no_csr else ""
            raise EnrolmentRefusedError(
                f"the controller refused the enrolment: {answer.reason}{why}"
            )
        return answer


class _Asking:
    """How far one request has come."""

    def __init__(self, draft: Draft, inbox: _Inbox, now_s: float) -> None:
        self.end_s = now_s + TIMEOUT_S
        self.quiet_s = now_s + SILENCE_S
        """When it is too quiet."""

        self.connected = False
        self.obstacle = ""
        """What is in the way now, or empty."""

        self.fault: EnrolmentError | None = None
        """What is wrong with the answers."""

        self._draft = draft
        self._challenges = 0
        self._inbox = inbox
        self._prepare("")

    def take_challenge(self, challenge: str) -> bool:
        """Ask anew with a challenge; return False if there were too many."""
        self._challenges += 1
        if self._challenges > MAX_CHALLENGES:
            return False
        self._prepare(challenge)
        return True

    def _prepare(self, challenge: str) -> None:
        self._request = self._draft(challenge)
        self.sha256 = sha256_hex(self._request)
        self._asked_s = float("-inf")

    def remind(self, topic: str, now_s: float) -> None:
        """Send the request if it is time."""
        if self.connected and now_s - self._asked_s >= ASK_AGAIN_S:
            self._inbox.transport.publish(topic, self._request)
            self._asked_s = now_s

    def doubt(self, why: FleetError, now_s: float) -> None:
        """Note an answer that cannot be trusted; a good one may still come."""
        if self.fault is None:
            self.end_s = min(self.end_s, now_s + DOUBT_S)
            self.fault = EnrolmentError(
                f"the controller's answer cannot be trusted: {why.message}",
                remedy="compare the device's trust file with root.json in the controller's "
                "directory, which knows changed keys as trust.json does not, and update the "
                "controller if it is older than the agent",
            )


class _Inbox:
    """A connection whose messages wait in a queue, for the length of a `with` block."""

    def __init__(self, transport: Transport, topic_filter: str) -> None:
        self.transport = transport
        self._queue: queue.Queue[Received | Connection] = queue.Queue(maxsize=64)
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


def _request(
    applicant: Applicant, identity: Identity, token: str, doubt: str, challenge: str
) -> EnrolRequest:
    account, nonce = identity.own_account, secrets.token_hex(SECRET_BYTES)
    device, password = applicant.device, account.password or ""
    proof = enrol_proof(device, token, password)
    if challenge:
        proof = challenged_proof(
            device=device,
            token=token,
            password=password,
            client_id=account.client_id,
            nonce=nonce,
            challenge=challenge,
        )
    return EnrolRequest(
        device=device,
        token=token,
        public_key=encode_key(identity.key.public_key),
        password=password,
        signature=base64.b64encode(identity.key.sign(proof)).decode(),
        profile=applicant.profile,
        labels=applicant.labels,
        agent_version=applicant.agent_version,
        nonce=nonce,
        client_id=account.client_id,
        doubt=doubt or msgspec.UNSET,
        challenge=challenge or msgspec.UNSET,
        serial=applicant.serial or msgspec.UNSET,
    )


def _with_csr(request: EnrolRequest, identity: Identity, csr: str) -> EnrolRequest:
    """Return a request to enrol with one for a certificate, which the device's own key signs."""
    if not csr:
        return request
    proof = csr_proof(
        device=request.device,
        nonce=str(request.nonce),
        challenge="" if isinstance(request.challenge, msgspec.UnsetType) else request.challenge,
        csr=csr,
    )
    signature = base64.b64encode(identity.key.sign(proof)).decode()
    return msgspec.structs.replace(request, csr=csr, csr_signature=signature)


def _answer(payload: bytes, trust: Trust) -> EnrolAnswer:
    """Return the signed part of a reply.

    Raises:
        WireFormatError: It is malformed.
        SignatureError: The director has not signed it.
    """
    reply = decode_message(payload, EnrolReply)
    if isinstance(trust, MetadataTrust) and not isinstance(reply.metadata, msgspec.UnsetType):
        trust.receive(reply.metadata, now=True)
    if isinstance(reply.signed, msgspec.UnsetType):
        raise SignatureError("it is not signed")
    envelope = reply.signed.encode()
    signed = trust.unseal(envelope, role="director", payload_type=ENROL_PAYLOAD_TYPE)
    return decode_message(signed, EnrolAnswer)
