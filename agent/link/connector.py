"""Opens the connection to the controller, and enrols the device when that is needed.

Rules:
- The device enrols if it is not enrolled, and again if the broker refuses its account: the account
  may be lost at the broker. Meanwhile it goes on trying its account, which may come back.
- It does the same when it cannot connect with its certificate for a while: the certificate may have
  ended, and the broker may listen elsewhere by now. A new one is used at once.
- A device that cannot read its own files, enrol or connect tries again after 2 s, later after up to
  a minute, or five minutes if it was enrolled and is refused now; and it serves meanwhile. One that
  waits to be let in asks again when the controller wants it, in ten minutes at most.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, TypeVar

from agent.errors import EnrolmentRefusedError, EnrolmentWaitsError, StoppedError
from agent.interrupts import Interrupts
from agent.link.connection import Link
from agent.link.enrolment import Connect, Enrolment
from agent.link.identity import Account, Identity
from agent.link.outage import SILENCE_S
from agent.link.renewal import Renewal
from wire.errors import FleetError

RETRY_MIN_S: Final = 2.0
RETRY_MAX_S: Final = 60.0
REFUSED_MAX_S: Final = 300.0
LOOK_EVERY_S: Final = 1.0
WAITS_MIN_S: Final = 5.0
WAITS_MAX_S: Final = 600.0
LOST_S: Final = 60.0
"""After so long without a connection a device with a certificate asks whether it needs another."""

T = TypeVar("T")


class Connector:
    """Keeps the device enrolled and its link open.

    Args:
        link: The link to open.
        connect: Makes a connection to the broker.
        identity: Reads the device's key and its own account, or returns the account of a client
            certificate, with which a device needs no enrolment by itself.
        enrolment: Makes what enrols an identity.
        token: Reads the enrolment token.
        renewal: Renews the certificate, if the device has one.
        interrupts: Ends the waiting.
    """

    def __init__(
        self,
        link: Link,
        connect: Connect,
        identity: Callable[[], Identity | Account],
        enrolment: Callable[[Identity], Enrolment],
        *,
        token: Callable[[], str | None],
        renewal: Renewal,
        interrupts: Interrupts,
    ) -> None:
        self._link = link
        self._connect = connect
        self._identity = identity
        self._enrolment = enrolment
        self._token = token
        self._renewal = renewal
        self._outage = link.outage
        self._interrupts = interrupts

    def run(self) -> None:
        """Enrol if needed, open the link, and enrol again whenever the broker refuses the account.

        Raises:
            StoppedError: The agent is being stopped.
        """
        identity = self._until_done("no identity", self._identity)
        if isinstance(identity, Account):
            self._keep_open(identity)
        else:
            self._keep_enrolled(identity)

    def _keep_open(self, account: Account) -> None:
        self._until_done("not connected", lambda: self._link.open(self._connect, account))
        while True:
            self._until_refused(_Pauses(self._interrupts))
            self._interrupts.wait(LOOK_EVERY_S, abandon=False)

    def _keep_enrolled(self, identity: Identity) -> None:
        enrolment = self._enrolment(identity)
        if not identity.credentials.enrolled:
            self._until_done("not enrolled", lambda: self._apply(enrolment))
        # Many devices whose broker lost its accounts must not come back in one moment.
        pauses = _Pauses(self._interrupts, first_s=RETRY_MIN_S)
        while True:
            self._until_done(
                "not connected", lambda: self._link.open(self._connect, identity.account)
            )
            is_new = False
            while not is_new:
                is_new = self._until_refused(pauses, identity)
                is_new = is_new or self._enrol_again(enrolment, identity, pauses)

    def _apply(self, enrolment: Enrolment) -> None:
        """Ask to be enrolled. Without a token the controller may know the device's key.

        Raises:
            EnrolmentRefusedError: The controller refuses the device. If there is a token that
                cannot be read, that is said, too.
            EnrolmentWaitsError: An operator has to let the device in.
            FleetError: The controller gave no answer.
            StoppedError: The agent is being stopped.
        """
        token, unread = None, None
        try:
            token = self._token()
        except FleetError as exc:
            unread = exc
        try:
            enrolment.apply(token)
        except EnrolmentRefusedError as exc:
            if unread is None:
                raise
            raise EnrolmentRefusedError(f"{exc.message}; {unread}") from exc

    def _until_done(self, otherwise: str, work: Callable[[], T]) -> T:
        """Do work again and again until it succeeds.

        Args:
            otherwise: What the device is while it fails.
            work: What to do.

        Returns:
            Its result.

        Raises:
            StoppedError: The agent is being stopped.
        """
        pauses = _Pauses(self._interrupts)
        while True:
            pauses.rest()
            try:
                done = work()
            except StoppedError:
                raise
            except FleetError as exc:
                self._outage.met("enrolment", f"{otherwise}: {exc}", exc.code)
                pauses.after(exc)
            else:
                self._outage.over("enrolment")
                return done

    def _until_refused(self, pauses: _Pauses, identity: Identity | None = None) -> bool:
        """Wait until the broker refuses the device, or its certificate leads nowhere for a while.

        Args:
            pauses: Begin anew while the device is connected.
            identity: What may get another certificate meanwhile; None if nothing does.

        Returns:
            Whether there is a new certificate, with which to connect; False when it is refused.

        Raises:
            StoppedError: The agent is being stopped.
        """
        away_s = 0.0
        while not self._link.is_refused():
            self._interrupts.wait(LOOK_EVERY_S, abandon=False)
            if identity is not None and self._is_renewed(identity):
                return True
            if self._link.is_connected():
                pauses.reset()
                away_s = 0.0
                continue
            away_s += LOOK_EVERY_S
            if self._link.is_unheard() and away_s >= SILENCE_S:
                self._outage.met("connection", self._outage.silence, kind="connection")
            if identity is not None and identity.account.certificate and away_s >= LOST_S:
                return False
        return False

    def _is_renewed(self, identity: Identity) -> bool:
        """Tell whether a new certificate has come."""
        try:
            return self._renewal.tick(identity)
        except FleetError as exc:
            self._outage.met("certificate", f"the certificate is not renewed: {exc}", exc.code)
            return False

    def _enrol_again(self, enrolment: Enrolment, identity: Identity, pauses: _Pauses) -> bool:
        """Ask until the controller has accepted the device again, or the refusals end.

        A device that its broker does not refuse, but that does not reach it with its certificate,
        asks, too; then it is no news that nobody answers.

        Returns:
            Whether the controller has accepted it.

        Raises:
            StoppedError: The agent is being stopped.
        """
        while True:
            pauses.rest()
            is_refused = self._link.is_refused()
            is_lost = not self._link.is_connected() and identity.account.certificate is not None
            if not is_refused and not is_lost:
                # It was let in, or the broker is away.
                self._outage.over("enrolment")
                return False
            try:
                self._apply(enrolment)
            except StoppedError:
                raise
            except FleetError as exc:
                has_answer = isinstance(exc, (EnrolmentRefusedError, EnrolmentWaitsError))
                if not is_refused and not has_answer:
                    self._outage.over("enrolment")
                    return False
                self._outage.met("enrolment", f"not enrolled again: {exc}", exc.code)
                pauses.most_s = REFUSED_MAX_S if has_answer else RETRY_MAX_S
                pauses.after(exc)
            else:
                return True


class _Pauses:
    """Growing pauses, one before each attempt."""

    def __init__(self, interrupts: Interrupts, *, first_s: float = 0.0) -> None:
        self.most_s = RETRY_MAX_S
        self._interrupts = interrupts
        self._first_s = self._next_s = first_s

    def reset(self) -> None:
        """Begin with the first pause again."""
        self._next_s = self._first_s

    def after(self, fault: FleetError) -> None:
        """Wait for as long as the controller says, if the device has to be let in."""
        if isinstance(fault, EnrolmentWaitsError):
            self._next_s = min(max(fault.ask_again_s, WAITS_MIN_S), WAITS_MAX_S)

    def rest(self) -> None:
        """Wait before the next attempt; raises StoppedError if the agent is being stopped."""
        if self._next_s:
            jitter = random.SystemRandom().uniform(0.5, 1.0)
            self._interrupts.wait(self._next_s * jitter, abandon=False)
        self._next_s = min(max(2 * self._next_s, RETRY_MIN_S), self.most_s)
