"""Decides which devices that ask to enrol are let in, and which wait for an operator.

Rules:
- An identifier that is enrolled is accepted again with the same key alone, without a token: so a
  device gets a new account if the broker lost it. It must then sign a fresh challenge, because a
  request may have been recorded when the fleet spoke clear text: whoever sends it again would set
  the account back to the password in it.
- A new device needs a token. What the token does not accept by itself waits: it has nothing but the
  answer that it waits, and no row among the devices.
- To wait takes a use of the token, and an identifier waits once. So nobody fills the queue with one
  token; all tokens together fill it up to `MAX_WAITING`. With another token it asks anew.
- The operator decides about a key. From then on the device needs no token, which may have expired
  meanwhile, and signs a challenge like one that was in before.
- Who was refused stays so, also when others were refused after it, until the identifier is
  forgotten. With another token it asks anew.
- What it said when it asked first counts, because that is what the operator sees.
- A registered device is let in by itself when it says its serial number, also if another one waits
  under its identifier. Such another one waits, whatever its token accepts.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum, auto

import msgspec

from controller.domain import acceptance
from controller.domain.acceptance import MAX_WAITING
from controller.domain.attributes import Value
from controller.domain.device_text import clean
from controller.domain.selectors import checked_labels
from controller.domain.states import DeviceState, WaitingState
from controller.errors import EnrolmentError
from controller.services.challenges import Challenges
from controller.services.device_certificates import DeviceCertificates
from controller.services.enrol_requests import NEW_TOKEN, UNKNOWN_TOKEN
from controller.store import (
    devices,
    hellos,
    policy_choices,
    registrations,
    taken_names,
    tokens,
    waiting,
)
from controller.store.database import Database, Transaction
from controller.store.device_tables import DeviceRow
from controller.store.device_values import steady_attributes
from controller.store.tables import MAX_CODE_CHARS
from controller.store.token_tables import EnrolmentTokenRow
from controller.store.waiting_tables import WaitingDeviceRow
from wire.clock import Clock
from wire.codec import sha256_hex
from wire.enrolling import EnrolRequest

USED_UP = f"the token is used up; {NEW_TOKEN}"
NOT_KNOWN = (
    "there is no token, and no enrolled device of that name has this key; write a token from "
    "`fleet token create` into a file, and name it as token_file in agent.toml"
)
OTHER_KEY = (
    "that identifier belongs to a device with another key; choose another in agent.toml, or, if "
    "this device replaces it, `fleet device decommission` and then `fleet device readmit` it"
)
OTHER_WAITS = (
    "a device with another key waits under that identifier; choose another in agent.toml, or "
    "`fleet device refuse` that one"
)
BLOCKED = (
    "the device was decommissioned, and its identifier is blocked; to let a device of that name in "
    "again: `fleet device readmit`"
)
FULL = f"{MAX_WAITING} devices wait already; `fleet device waiting` shows them"
WAITS = "it waits to be let in: `fleet device accept {device}`"
REFUSED = "an operator refused it; `fleet device accept` lets it in all the same"
REFUSED_BEFORE = (
    "an operator refused it before, and another device asked for its identifier since; choose "
    "another in agent.toml, or give it another token"
)
MAX_REFUSED = 16
"""How many that were refused are remembered under an identifier."""

NOTED_EVERY_S = 60.0
"""How exact `last_asked_at_s` is: not each question of a device must cause a write."""

_log = logging.getLogger(__name__)


class Step(Enum):
    """What becomes of a device that asks."""

    LET_IN = auto()
    CHALLENGE = auto()
    """It must sign a challenge first."""

    REFUSE = auto()
    """An operator refused it."""


@dataclass(frozen=True, slots=True)
class Waits:
    """A device waits until an operator lets it in."""

    ask_again_s: float


class Admission:
    """Lets devices in, and keeps the queue of those that wait.

    Args:
        database: The control state.
        certificates: Know whether another device can still show an identifier.
        challenges: Know whether a device has signed a challenge.
        clock: Wall time.
    """

    def __init__(
        self,
        database: Database,
        certificates: DeviceCertificates,
        challenges: Challenges,
        clock: Clock,
    ) -> None:
        self._database = database
        self._certificates = certificates
        self._challenges = challenges
        self._clock = clock

    def admit(self, device: str, request: EnrolRequest) -> Step | Waits:
        """Take a device in, or let it wait.

        Args:
            device: Its identifier.
            request: Its request, already checked.

        Returns:
            What becomes of it; `LET_IN` if it is enrolled now.

        Raises:
            EnrolmentError: It is refused.
            InvalidRequestError: It asks for labels that no selector can name.
            DatabaseError: The database does not answer.
        """
        now_s = self._clock.now_s()
        digest = sha256_hex(request.token.encode())
        with self._database.transaction() as transaction:
            taken_names.lock(transaction, device)
            row = devices.find(transaction, device, lock=True)
            taken = None if row is None or row.may_enrol_again else row
            token = tokens.find_valid(transaction, digest, now_s=now_s)
            if taken is not None and taken.public_key == request.public_key:
                _check_state(taken)
                hellos.note_doubt(taken, request)
                # A token, used up a moment ago perhaps, means that an answer was lost.
                is_shown = token is not None or self._challenges.is_met(request)
                return Step.LET_IN if is_shown else Step.CHALLENGE
            queued = waiting.find(transaction, device)
            if taken is None and queued is not None and _is_of(queued, request, token):
                is_shown = token is not None or self._challenges.is_met(request)
                return self._go_on(transaction, row, queued, request, is_shown=is_shown)
            if token is None:
                raise EnrolmentError(UNKNOWN_TOKEN if request.token else NOT_KNOWN)
            if taken is not None:
                _check_state(taken)
                raise EnrolmentError(OTHER_KEY)
            refused: list[str] = []
            if queued is not None:
                refused = list(queued.refused or ())
                if _mark(request.public_key, token.username) in refused:
                    raise EnrolmentError(REFUSED_BEFORE)
                is_other = queued.public_key != request.public_key
                # Whoever asks first for a registered identifier keeps the registered one not out.
                known = registrations.fitting(transaction, device, _serial(request))
                if is_other and queued.state != WaitingState.REFUSED and known is None:
                    raise EnrolmentError(OTHER_WAITS)
                if is_other and queued.state == WaitingState.REFUSED:
                    refused.append(_mark(queued.public_key, queued.token))
                transaction.delete(queued)
                transaction.flush()
            self._certificates.check_free(row, request.public_key)
            if not tokens.use(transaction, digest, now_s=now_s):
                raise EnrolmentError(USED_UP)
            return self._begin(transaction, row, token, request, refused[-MAX_REFUSED:])

    def sweep(self) -> None:
        """Forget devices that have not asked for long.

        Raises:
            DatabaseError: The database does not answer.
        """
        before_s = self._clock.now_s() - acceptance.FORGOTTEN_AFTER_S
        with self._database.reading() as transaction:
            is_any = waiting.is_any(transaction, before_s=before_s)
        if is_any:
            with self._database.transaction() as transaction:
                waiting.forget(transaction, before_s=before_s)

    def _begin(
        self,
        transaction: Transaction,
        row: DeviceRow | None,
        token: EnrolmentTokenRow,
        request: EnrolRequest,
        refused: list[str],
    ) -> Step | Waits:
        """Let a new device in if its token accepts it or it is registered, else let it wait.

        Raises:
            EnrolmentError: Too many wait.
            InvalidRequestError: It asks for labels that no selector can name.
        """
        labels = {**request.labels, **token.labels}
        entry = _entry(request, checked_labels(labels, kept=labels), token, self._clock.now_s())
        if registrations.is_for_another(transaction, entry.id, entry.serial):
            _log.warning("device %s is registered with another serial number", entry.id)
            is_accepted = False
        else:
            is_accepted = acceptance.accepts(
                token.accepts, labels=labels, serial=entry.serial, attributes=_attributes(request)
            )
        if is_accepted or registrations.fitting(transaction, entry.id, entry.serial) is not None:
            return self._let_in(transaction, row, entry, request)
        count = waiting.count(transaction)
        if count >= MAX_WAITING:
            raise EnrolmentError(FULL)
        entry.refused = refused or None
        transaction.add(entry)
        _log.info("device %s waits to be let in", entry.id)
        return Waits(acceptance.ask_again_s(count + 1))

    def _go_on(
        self,
        transaction: Transaction,
        row: DeviceRow | None,
        queued: WaitingDeviceRow,
        request: EnrolRequest,
        *,
        is_shown: bool,
    ) -> Step | Waits:
        """Return what becomes of a device that is in the queue.

        Raises:
            EnrolmentError: Another device can still show its identifier.
        """
        now_s = self._clock.now_s()
        if now_s - queued.last_asked_at_s >= NOTED_EVERY_S:
            queued.last_asked_at_s = now_s
        if queued.state == WaitingState.REFUSED:
            return Step.REFUSE
        is_registered = registrations.fitting(transaction, queued.id, queued.serial) is not None
        if queued.state == WaitingState.WAITING and not is_registered:
            return Waits(acceptance.ask_again_s(waiting.count(transaction)))
        if not is_shown:
            return Step.CHALLENGE
        self._certificates.check_free(row, request.public_key)
        transaction.delete(queued)
        return self._let_in(transaction, row, queued, request)

    def _let_in(
        self,
        transaction: Transaction,
        row: DeviceRow | None,
        entry: WaitingDeviceRow,
        request: EnrolRequest,
    ) -> Step:
        now_s, labels = self._clock.now_s(), dict(entry.labels)
        registered = registrations.fitting(transaction, entry.id, entry.serial)
        if registered is not None:
            registered.claimed_by, registered.claimed_at_s = entry.id, now_s
            labels |= registered.labels
        labels = checked_labels(labels, kept=labels)
        devices.enrol(transaction, row, request, labels, now_s=now_s)
        if row is not None:
            taken_names.give(transaction, entry.id, now_s=now_s)
            policy_choices.mark_stale(transaction, entry.id)
        return Step.LET_IN


def _is_of(
    queued: WaitingDeviceRow, request: EnrolRequest, token: EnrolmentTokenRow | None
) -> bool:
    """Tell whether a device that waits asks again, and not another one or with another token."""
    is_same_token = token is None or token.username == queued.token
    return queued.public_key == request.public_key and is_same_token


def _mark(public_key: str, token: str) -> str:
    """Return what a refusal is remembered by."""
    return f"{public_key} {token}"


def _entry(
    request: EnrolRequest, labels: dict[str, str], token: EnrolmentTokenRow, now_s: float
) -> WaitingDeviceRow:
    return WaitingDeviceRow(
        id=request.device,
        state=WaitingState.WAITING,
        public_key=request.public_key,
        serial=_serial(request),
        profile_name=request.profile.name,
        architecture=request.profile.architecture,
        agent_version=clean(request.agent_version, MAX_CODE_CHARS),
        labels=labels,
        token=token.username,
        asked_at_s=now_s,
        last_asked_at_s=now_s,
    )


def _serial(request: EnrolRequest) -> str:
    return "" if isinstance(request.serial, msgspec.UnsetType) else request.serial


def _attributes(request: EnrolRequest) -> dict[str, Value]:
    """Return what a new device reports of itself, as selectors name it."""
    row = DeviceRow(id=request.device, agent_version=clean(request.agent_version, MAX_CODE_CHARS))
    devices.set_profile(row, request.profile)
    return steady_attributes(row)


def _check_state(row: DeviceRow) -> None:
    if row.state == DeviceState.DECOMMISSIONED:
        raise EnrolmentError(BLOCKED)
    if row.state != DeviceState.ENROLLED:
        raise EnrolmentError(f"the device is {row.state}")
