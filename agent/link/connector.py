"""Opens the connection to the controller, after the device has been enrolled.

Rules:
- A device that cannot be enrolled tries again after 2 s, later after up to 60 s. It records each
  new reason once: a reason that repeats for days must not push other events out of the spool.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from agent.errors import StoppedError
from agent.interrupts import Interrupts
from agent.link.connection import Link
from agent.link.enrolment import Connect, Enrolment
from agent.link.identity import Identity
from telemetry.device.recorder import Recorder
from wire.errors import FleetError

RETRY_MIN_S: Final = 2.0
RETRY_MAX_S: Final = 60.0


class Connector:
    """Enrols the device if it is not enrolled, then opens its link.

    Args:
        link: The link to open.
        connect: Makes a connection to the broker.
        identity: Has the password of the device's own account.
        enrolment: Enrols the device; None if a client certificate identifies it, and no password.
        token: Reads the enrolment token.
        interrupts: Ends the waiting.
        recorder: Takes an event for each new reason of a refusal.
    """

    def __init__(
        self,
        link: Link,
        connect: Connect,
        identity: Identity,
        enrolment: Enrolment | None,
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
            TransportError: A certificate file cannot be read.
        """
        if self._enrolment is None:
            self._link.open(self._connect, None)
            return
        self._enrol(self._enrolment)
        self._link.open(self._connect, self._identity.credentials.password)

    def _enrol(self, enrolment: Enrolment) -> None:
        wait_s, told = RETRY_MIN_S, ""
        while True:
            try:
                enrolment.ensure(self._token())
            except StoppedError:
                raise
            except FleetError as exc:
                if exc.message != told:
                    reason = f"not enrolled: {exc.message}"
                    self._recorder.event("refused", reason, {"code": exc.code})
                told = exc.message
                jitter = random.SystemRandom().uniform(0.5, 1.0)
                self._interrupts.wait(wait_s * jitter, abandon=False)
                wait_s = min(2 * wait_s, RETRY_MAX_S)
            else:
                return
