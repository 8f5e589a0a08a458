"""How a device joins the fleet: tokens, and the requests that use them.

Rules:
- A token is a secret that is shown once; the database keeps only its digest.
- A device proves that it holds its private key. A known identifier is accepted again only with the
  same key; this takes no further use of the token.
- Each step is saved before the next begins: the device, then its broker account, then the answer.
  Each step may be repeated, so a device that gets no answer asks again.
- The account of a used-up token stays for a while: removing it would end the connection that still
  has to carry the answer.
"""

from __future__ import annotations

import base64
import binascii
import logging
import re
import secrets

from controller.domain.selectors import checked_labels
from controller.domain.states import DeviceState
from controller.errors import EnrolmentError, InvalidRequestError
from controller.ports import BrokerAccess
from controller.schemas import Token, TokenRequest, TokenSummary
from controller.services.director import Publisher
from controller.store import desired, devices, tokens
from controller.store.database import Database
from controller.store.tables import DeviceRow, EnrolmentTokenRow
from wire import topics
from wire.clock import Clock
from wire.codec import convert, sha256_hex, to_json
from wire.enrolment import enrol_username
from wire.errors import FleetError
from wire.messages import EnrolReply, EnrolRequest, enrol_proof
from wire.profile import checked_profile
from wire.trust.envelope import is_valid

TOKEN_BYTES = 24
ANSWER_GRACE_S = 60.0
MIN_PASSWORD_CHARS = 16
MAX_PASSWORD_CHARS = 256
MAX_TOKEN_CHARS = 256
MAX_PROFILE_ITEMS = 64
_SHOWN = ("state", "uses_left", "labels", "created_at_s", "expires_at_s", "used_at_s")
"""The fields of a token that have the same name in the table and in the API."""

_RESERVED = re.compile(r"enrol-[0-9a-f]{8}")
"""User names of enrolment accounts; see `wire.enrolment`."""

_log = logging.getLogger(__name__)


class Enrolment:
    """Lets devices join the fleet.

    Args:
        database: The control state.
        access: The broker's accounts.
        publisher: Sends the answers.
        clock: Wall time.
    """

    def __init__(
        self, database: Database, access: BrokerAccess, publisher: Publisher, clock: Clock
    ) -> None:
        self._database = database
        self._access = access
        self._publisher = publisher
        self._clock = clock

    def create_token(self, request: TokenRequest) -> Token:
        """Make a token and its broker account.

        Args:
            request: How often and how long it may be used, and the labels that it gives.

        Returns:
            The token; it cannot be shown again.

        Raises:
            InvalidRequestError: Labels that no selector can name.
            FleetError: The database or the broker does not answer.
        """
        labels = checked_labels(request.labels)
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
                now_s=now_s,
                expires_at_s=expires_at_s,
            )
        try:
            self._access.allow_enrolment(username, token)
        except FleetError:
            with self._database.transaction() as transaction:
                tokens.close(transaction, digest)
            raise
        return Token(token=token, uses=request.uses, expires_at_s=expires_at_s)

    def newest_tokens(self, *, limit: int) -> list[TokenSummary]:
        """Return what is known of tokens, the newest first.

        Args:
            limit: The greatest number.

        Returns:
            The tokens, without their secrets.

        Raises:
            DatabaseError: The database does not answer.
        """
        with self._database.reading() as transaction:
            return [_summary(row) for row in tokens.newest(transaction, limit=limit)]

    def revoke_token(self, token: str) -> TokenSummary:
        """End a token: no device enrols with it any more. Calling it twice is safe.

        Args:
            token: The account of the token, as `newest_tokens` names it.

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
        """Remove the broker accounts of tokens that have expired or are used up.

        Raises:
            DatabaseError: The database does not answer.
        """
        now_s = self._clock.now_s()
        with self._database.reading() as transaction:
            over = tokens.over(transaction, now_s=now_s, used_before_s=now_s - ANSWER_GRACE_S)
        for digest, username in over:
            try:
                self._access.end_enrolment(username)
            except FleetError as exc:
                _log.warning("the account %s is removed later: %s", username, exc)
                return
            with self._database.transaction() as transaction:
                tokens.close(transaction, digest)

    def handle(self, device: str, request: EnrolRequest) -> None:
        """Answer a device that asks to be enrolled.

        Args:
            device: Its identifier, from the topic.
            request: Its request.

        Raises:
            FleetError: The database or the broker does not answer; the device asks again.
        """
        try:
            self._admit(device, request)
        except (EnrolmentError, InvalidRequestError) as exc:
            _log.warning("device %s is not enrolled: %s", device, exc.message)
            reply = EnrolReply(device=device, accepted=False, reason=exc.message)
        else:
            self._access.allow_device(device, request.password)
            _log.info("device %s is enrolled", device)
            reply = EnrolReply(device=device, accepted=True)
        self._publisher.publish(topics.enrol_reply(device), to_json(reply))

    def _admit(self, device: str, request: EnrolRequest) -> None:
        check_request(device, request)
        now_s = self._clock.now_s()
        digest = sha256_hex(request.token.encode())
        with self._database.transaction() as transaction:
            token = tokens.find_valid(transaction, digest, now_s=now_s)
            if token is None:
                raise EnrolmentError("the token is not valid")
            row = devices.find(transaction, device, lock=True)
            if row is not None and not row.may_enrol_again:
                _check_known(row, request)
                return
            if not tokens.use(transaction, digest, now_s=now_s):
                raise EnrolmentError("the token is used up")
            labels = {**request.labels, **token.labels}
            devices.enrol(transaction, row, request, checked_labels(labels), now_s=now_s)
            desired.mark_policy_stale(transaction, device)


def check_request(device: str, request: EnrolRequest) -> None:
    """Refuse an invalid request before the database is queried.

    Args:
        device: The device's identifier, from the topic.
        request: The device's request.

    Raises:
        EnrolmentError: Another device, a reserved name, sizes out of bounds, or no proof.
        WireFormatError: An impossible profile.
    """
    profile = checked_profile(request.profile)
    lists = (profile.isa_features, profile.runtimes, profile.sources)
    faults = [
        (request.device != device, "the request is for another device"),
        (_RESERVED.fullmatch(device) is not None, "that identifier is reserved"),
        (
            not MIN_PASSWORD_CHARS <= len(request.password) <= MAX_PASSWORD_CHARS,
            f"a password has {MIN_PASSWORD_CHARS} to {MAX_PASSWORD_CHARS} characters",
        ),
        (not 1 <= len(request.token) <= MAX_TOKEN_CHARS, "the token is not valid"),
        (any(len(items) > MAX_PROFILE_ITEMS for items in lists), "the profile is too long"),
        (not _is_proven(device, request), "the proof of possession is not valid"),
    ]
    for wrong, text in faults:
        if wrong:
            raise EnrolmentError(text)
    checked_labels(request.labels)


def _summary(row: EnrolmentTokenRow) -> TokenSummary:
    fields = {name: getattr(row, name) for name in _SHOWN}
    return convert(fields | {"id": row.username}, TokenSummary)


def _is_proven(device: str, request: EnrolRequest) -> bool:
    try:
        key = base64.b64decode(request.public_key, validate=True)
        signature = base64.b64decode(request.signature, validate=True)
    except (binascii.Error, ValueError):
        return False
    # Base64 can spell the same bytes in several ways, but stored keys are compared as text.
    canonical = base64.b64encode(key).decode() == request.public_key
    proof = enrol_proof(device, request.token, request.password)
    return canonical and is_valid(key, proof, signature)


def _check_known(row: DeviceRow, request: EnrolRequest) -> None:
    if row.state == DeviceState.DECOMMISSIONED:
        raise EnrolmentError("the device was decommissioned, and its identifier is blocked")
    if row.public_key != request.public_key:
        raise EnrolmentError("that identifier belongs to a device with another key")
    if row.state != DeviceState.ENROLLED:
        raise EnrolmentError(f"the device is {row.state}")
