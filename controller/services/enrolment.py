"""How a device joins the fleet: tokens, and the requests that use them.

Rules:
- A token is a secret that is shown once; the database keeps only its digest.
- A device proves that it holds its private key. Who is let in says `controller.services.admission`.
- Requests without a valid token are looked at so many times a second only, those of all senders
  together. A device whose request is dropped asks again; one that has a token does not notice,
  unless the token was made within the last second.
- The director signs each answer, for one device and one request.
- Each step is saved before the next begins: the device, then its broker account, then the answer.
  Each step may be repeated, so a device that gets no answer asks again.
- A device that asks for a certificate gets one where the fleet has them, and no account
  (`controller.services.device_certificates`). Letting it in writes nothing at the broker.
- The account of a used-up token stays for a while: removing it would end the connection that still
  has to carry the answer.
"""

from __future__ import annotations

import logging
import secrets
import threading

import msgspec

from controller.domain.acceptance import checked_rule
from controller.domain.device_text import clean
from controller.domain.paging import PageRequest, Part, cut
from controller.domain.selectors import checked_labels
from controller.domain.states import DeviceState, TokenState
from controller.enrolment_schemas import Token, TokenRequest, TokenSummary
from controller.errors import EnrolmentError, InvalidRequestError
from controller.ports import BrokerAccess
from controller.services import sorts
from controller.services.admission import REFUSED, WAITS, Admission, Step, Waits
from controller.services.challenges import Challenges
from controller.services.device_certificates import DeviceCertificates
from controller.services.director import Publisher
from controller.services.enrol_rate import PER_S, EnrolRate
from controller.services.enrol_requests import account_client_id, check_request
from controller.services.metadata import FleetMetadata
from controller.services.valid_tokens import ValidTokens
from controller.store import devices, tokens
from controller.store.database import Database
from controller.store.token_tables import EnrolmentTokenRow
from wire import topics
from wire.certificates import DeviceCertificate
from wire.clock import Clock
from wire.codec import convert, sha256_hex, to_json
from wire.enrolling import ENROL_PAYLOAD_TYPE, EnrolAnswer, EnrolReply, EnrolRequest
from wire.enrolment import (
    enrol_username,
    return_password,
)
from wire.errors import FleetError, WireFormatError
from wire.messages import decode_message
from wire.trust.envelope import SigningKey, seal
from wire.trust.root import encode_key

TOKEN_BYTES = 24
ANSWER_GRACE_S = 60.0
MAX_REQUEST_BYTES = 32 * 1024
MAX_REASON_CHARS = 300
"""A fault may quote the request, which anybody can send."""

TRY_AGAIN_S = 30.0
"""How long to wait when the broker did not take an account."""

_SHOWN = ("state", "uses_left", "labels", "accepts", "created_at_s", "expires_at_s", "used_at_s")
"""The fields of a token that have the same name in the table and in the API."""

CHALLENGED = "the device must sign a challenge: update its agent, or give it a new token"
_log = logging.getLogger(__name__)


class Enrolment:
    """Lets devices join the fleet.

    Args:
        database: The control state.
        access: The broker's accounts.
        certificates: Gives devices certificates, where the fleet has them.
        publisher: Sends the answers.
        key: The director's private key, which signs the answers.
        clock: Wall time and durations.
        metadata: What a new device needs to know the director; None for a fleet without it.
    """

    def __init__(
        self,
        database: Database,
        access: BrokerAccess,
        certificates: DeviceCertificates,
        publisher: Publisher,
        key: SigningKey,
        clock: Clock,
        *,
        metadata: FleetMetadata | None = None,
    ) -> None:
        self._metadata = metadata
        self._database = database
        self._access = access
        self._certificates = certificates
        self._publisher = publisher
        self._key = key
        self._challenges = Challenges(key, clock)
        self._admission = Admission(database, certificates, self._challenges, clock)
        self._clock = clock
        self._rate = EnrolRate(clock.monotonic_s())
        self._valid_tokens = ValidTokens(database, clock)
        self._came = threading.Event()
        self._return_due_s = float("inf")

    def broker_came(self) -> None:
        """Note a new connection with the broker, which may have lost its accounts."""
        self._came.set()

    def allow_returns(self) -> None:
        """Make the account through which enrolled devices ask for a new one of their own.

        Raises:
            FleetError: The broker does not answer; a later call tries again.
        """
        now_s = self._clock.monotonic_s()
        if not self._came.is_set() and now_s < self._return_due_s:
            return
        self._came.clear()  # before the call: the broker may lose its accounts while it answers
        self._return_due_s = now_s + TRY_AGAIN_S
        # Devices with a trust file know the director's key, those with metadata the fleet's name.
        names: tuple[str, ...] = (encode_key(self._key.public_key),)
        if self._metadata is not None:
            names += self._metadata.fleet_names
        for password in map(return_password, names):
            self._access.allow_enrolment(enrol_username(password), password)
        self._return_due_s = float("inf")

    def create_token(self, request: TokenRequest) -> Token:
        """Make a token and its broker account.

        Args:
            request: How often and how long it may be used, and the labels that it gives.

        Returns:
            The token; it cannot be shown again.

        Raises:
            InvalidRequestError: Labels that no selector can name, or a rule that cannot be used.
            FleetError: The database or the broker does not answer.
        """
        labels, accepts = checked_labels(request.labels), checked_rule(request.accept)
        token = secrets.token_urlsafe(TOKEN_BYTES)
        digest, username = sha256_hex(token.encode()), enrol_username(token)
        now_s = self._clock.now_s()
        expires_at_s = now_s + request.expires_in_s
        with self._database.transaction() as transaction:
            tokens.add(
                transaction,
                sha256=digest,
                username=username,
                uses=request.uses,
                labels=labels,
                accepts=accepts,
                now_s=now_s,
                expires_at_s=expires_at_s,
            )
        try:
            self._access.allow_enrolment(username, token)
        except FleetError:
            with self._database.transaction() as transaction:
                tokens.close(transaction, digest)
            raise
        return Token(id=username, token=token, uses=request.uses, expires_at_s=expires_at_s)

    def tokens(self, page: PageRequest, state: TokenState | None) -> Part[TokenSummary]:
        """Return what is known of a part of the tokens.

        Args:
            page: Which part.
            state: Only those in this state; None for all.

        Returns:
            The tokens, without their secrets.

        Raises:
            DatabaseError: The database does not answer.
        """
        with self._database.reading() as transaction:
            rows = tokens.listed(transaction, page, state)
        return cut([_summary(row) for row in rows], page, sorts.TOKENS)

    def revoke_token(self, token: str) -> TokenSummary:
        """End a token: no device enrols with it any more. Calling it twice is safe.

        Args:
            token: The account of the token, as the list names it.

        Returns:
            What is known of it now.

        Raises:
            UnknownTokenError: There is no such token.
            FleetError: The broker does not answer; the token is ended, so repeat the order.
        """
        with self._database.transaction() as transaction:
            row = tokens.by_username(transaction, token)
            row.uses_left = 0
            row.expires_at_s = min(row.expires_at_s, self._clock.now_s())
            digest = row.sha256
        self._access.end_enrolment(token)
        with self._database.transaction() as transaction:
            tokens.close(transaction, digest)
            return _summary(tokens.by_username(transaction, token))

    def sweep(self) -> None:
        """Remove the broker accounts of tokens that are over, and who has not asked for long.

        Raises:
            DatabaseError: The database does not answer.
        """
        now_s = self._clock.now_s()
        with self._database.reading() as transaction:
            over = tokens.over(transaction, now_s=now_s, used_before_s=now_s - ANSWER_GRACE_S)
        self._admission.sweep()
        for digest, username in over:
            try:
                self._access.end_enrolment(username)
            except FleetError as exc:
                _log.warning("the account %s is removed later: %s", username, exc)
                return
            with self._database.transaction() as transaction:
                tokens.close(transaction, digest)

    def handle(self, device: str, payload: bytes) -> None:
        """Answer a device that asks to be enrolled.

        Args:
            device: Its identifier, from the topic.
            payload: Its request, as received.

        Raises:
            WireFormatError: It is malformed or too large.
            FleetError: The database or the broker does not answer; the device asks again.
        """
        if len(payload) > MAX_REQUEST_BYTES:
            raise WireFormatError(f"a request to enrol has over {MAX_REQUEST_BYTES} bytes")
        request, refusal = decode_message(payload, EnrolRequest), ""
        if not self._has_turn(request):
            return
        challenge: str | msgspec.UnsetType = msgspec.UNSET
        certificate: DeviceCertificate | msgspec.UnsetType = msgspec.UNSET
        wait_s: float | msgspec.UnsetType = msgspec.UNSET
        try:
            check_request(device, request)
            csr = self._certificates.asked(request)
            match self._admission.admit(device, request):
                case Waits(ask_again_s=wait_s):
                    refusal = WAITS.format(device=device)
                case Step.LET_IN:
                    certificate = self._let_in(device, request, csr)
                    _log.info("device %s is enrolled", device)
                case Step.CHALLENGE:
                    challenge, refusal = self._challenges.new(request), CHALLENGED
                    _log.info("device %s is challenged", device)
                case Step.REFUSE:
                    refusal = REFUSED
        except (EnrolmentError, InvalidRequestError, WireFormatError) as exc:
            refusal = clean(exc.message, MAX_REASON_CHARS)
            _log.warning("device %s is not enrolled: %s", device, refusal)
        self._answer(
            EnrolAnswer(
                device=device,
                accepted=not refusal,
                request_sha256=sha256_hex(payload),
                reason=refusal,
                challenge=challenge,
                certificate=certificate,
                ask_again_s=wait_s,
            )
        )

    def _has_turn(self, request: EnrolRequest) -> bool:
        """Tell whether a request is looked at; else it gets no answer.

        Raises:
            DatabaseError: The database does not answer.
        """
        now_s = self._clock.monotonic_s()
        if self._rate.take(now_s):
            return True
        if request.token and self._valid_tokens.has(request.token):
            return True
        if self._rate.is_to_be_told(now_s):
            _log.warning(
                "more than %.0f requests a second to enrol without a valid token: the rest is "
                "dropped, and devices that return may have to wait",
                PER_S,
            )
        return False

    def _answer(self, answer: EnrolAnswer) -> None:
        signed = seal(to_json(answer), payload_type=ENROL_PAYLOAD_TYPE, keys=(self._key,))
        reply = EnrolReply(
            device=answer.device,
            accepted=answer.accepted,
            reason=answer.reason,
            signed=signed.decode(),
            metadata=(self._metadata.for_enrolment() if self._metadata else None) or msgspec.UNSET,
        )
        self._publisher.publish(topics.enrol_reply(answer.device), to_json(reply))

    def _let_in(
        self, device: str, request: EnrolRequest, csr: str | None
    ) -> DeviceCertificate | msgspec.UnsetType:
        """Give a device its way into the broker: a certificate, or an account if it asks for none.

        Raises:
            EnrolmentError: An operator shut it out meanwhile.
        """
        if csr is None:
            self._access.allow_device(device, request.password, account_client_id(request))
            self._confirm(device)
            return msgspec.UNSET
        self._access.allow_certificate(device)
        certificate = self._certificates.issue(device, csr)
        if certificate is None:  # an operator shut it out meanwhile
            self._confirm(device)
            raise EnrolmentError("the device was shut out")
        return certificate

    def _confirm(self, device: str) -> None:
        """Take the account back if an operator shut the device out while it was made.

        Raises:
            EnrolmentError: The device was shut out.
        """
        with self._database.reading() as transaction:
            state = devices.get(transaction, device).state
        if state != DeviceState.ENROLLED:
            self._access.refuse_device(device)
            raise EnrolmentError(f"the device is {state}")


def _summary(row: EnrolmentTokenRow) -> TokenSummary:
    fields = {name: getattr(row, name) for name in _SHOWN}
    return convert(fields | {"id": row.username}, TokenSummary)
