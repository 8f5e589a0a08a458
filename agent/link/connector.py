"""Opens the connection to the controller, after the device has been enrolled.

Rules:
- A device that cannot read its own files, enrol or connect tries again after 2 s, later after up to
  60 s, and serves meanwhile. It records each new reason once: a reason that repeats for days must
  not push other events out of the spool.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, TypeVar

from agent.errors import StoppedError
from agent.interrupts import Interrupts
from agent.link.connection import Link
from agent.link.enrolment import Connect, Enrolment
from agent.link.identity import Identity
from telemetry.device.recorder import Recorder
from wire.errors import FleetError

RETRY_MIN_S: Final = 2.0
RETRY_MAX_S: Final = 60.0

T = TypeVar("T")


class Connector:
    """Enrols the device if it is not enrolled, then opens its link.

    Args:
        link: The link to open.
        connect: Makes a connection to the broker.
        identity: Reads the device's key and its own account; None if a client certificate
            identifies the device, and no password.
        enrolment: Makes what enrols an identity.
        token: Reads the enrolment token.
        interrupts: Ends the waiting.
        recorder: Takes an event for each new reason of a refusal.
    """

    def __init__(
        self,
        link: Link,
        connect: Connect,
        identity: Callable[[], Identity] | None,
        enrolment: Callable[[Identity], Enrolment],
        *,
        token: Callable[[], str | None],
        interrupts: Interrupts,
        recorder: Recorder,
    ) -> None:
        self._link = link
        self._connect = connect
        self._identity = identity
        self._enrolment = enrolment
        self._token = token
        self._interrupts = interrupts
        self._recorder = recorder

    def run(self) -> None:
        """Enrol if needed and open the link.

        Raises:
            StoppedError: The agent is being stopped.
        """
        password: str | None = None
        if self._identity is not None:
            identity = self._until_done("no identity", self._identity)
            enrolment = self._enrolment(identity)
            self._until_done("not enrolled", lambda: self._enrol(identity, enrolment))
            password = identity.credentials.password
        self._until_done("not connected", lambda: self._link.open(self._connect, password))

    def _enrol(self, identity: Identity, enrolment: Enrolment) -> None:
        # An enrolled device needs no token: nobody has to leave the file there.
        enrolment.ensure(None if identity.credentials.enrolled else self._token())

    def _until_done(self, otherwise: str, work: Callable[[], T]) -> T:
        """Do work again and again until it succeeds.

        Args:
            otherwise: What the device is while it fails, for the event.
            work: What to do.

        Returns:
            Its result.

        Raises:
            StoppedError: The agent is being stopped.
        """
        wait_s, told = RETRY_MIN_S, ""
        while True:
            try:
                return work()
            except StoppedError:
                raise
            except FleetError as exc:
                if exc.message != told:
                    reason = f"{otherwise}: {exc}"
                    self._recorder.event("refused", reason, {"code": exc.code})
                told = exc.message
                jitter = random.SystemRandom().uniform(0.5, 1.0)
                self._interrupts.wait(wait_s * jitter, abandon=False)
                wait_s = min(2 * wait_s, RETRY_MAX_S)
