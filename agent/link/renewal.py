"""Renews the device's certificate before it ends, over the connection that it opened.

Rules:
- Each certificate is renewed at a random moment after about two thirds of its life, so that devices
  that enrolled together do not ask together.
- The clock of a device may be wrong by years. A certificate that came while the agent runs is not
  due at once, whatever the clock says; and each is due when so much of its life has passed since
  the agent has it, also if by the clock its life has not begun.
- The device asks again while no answer comes. If none comes until the end, the broker refuses the
  certificate, and the device enrols again by its key.
- Only an answer that the director signed, to the request that is open, counts.
"""

from __future__ import annotations

import base64
import math
import queue
import random
from typing import Final

from agent.errors import CertificateError
from agent.link.connection import Link
from agent.link.identity import Held, Identity
from wire.certificates import CERTIFICATE_PAYLOAD_TYPE, CertificateAnswer, CertificateRequest
from wire.clock import Clock
from wire.codec import sha256_hex, to_json
from wire.enrolment import csr_proof
from wire.messages import decode_message
from wire.topics import up
from wire.trust.root import Trust

EARLIEST, LATEST = 0.6, 0.75
"""The parts of its life between which a certificate is renewed."""

ASK_AGAIN_S: Final = 600.0
ASK_AGAIN_PART: Final = 1 / 20
"""Of the life of a certificate: one that lives for minutes needs an answer sooner."""

MAX_ANSWERS: Final = 4


class Renewal:
    """Asks for the next certificate when it is time.

    Args:
        device: This device.
        link: The connection to the controller.
        trust: The keys that may sign the answer.
        clock: Wall time, in which a certificate ends; durations between two requests.
    """

    def __init__(self, device: str, link: Link, trust: Trust, clock: Clock) -> None:
        self._device = device
        self._link = link
        self._trust = trust
        self._clock = clock
        self._answers: queue.Queue[bytes] = queue.Queue(MAX_ANSWERS)
        self._planned: Held | None = None
        self._due_s = 0.0
        """Wall time."""

        self._due_at_latest_s = 0.0
        """Monotonic."""

        self._asked_s = float("-inf")
        self._open_sha256 = ""

    def hear(self, payload: bytes) -> None:
        """Take an answer of the controller, from any thread; `tick` looks at it."""
        try:
            self._answers.put_nowait(payload)
        except queue.Full:
            return  # the device asks again

    def tick(self, identity: Identity) -> bool:
        """Ask if it is time, and take an answer that has come.

        Args:
            identity: Holds the certificate, and takes the next one.

        Returns:
            Whether there is a new certificate.

        Raises:
            FleetError: The answer cannot be used, or no request can be made.
        """
        held = identity.credentials.certificate
        if not isinstance(held, Held):
            return False
        if self._take(identity):
            return True
        if held != self._planned:
            self._plan(held)
        life_s, now_s = held.ends_at_s - held.begins_at_s, self._clock.monotonic_s()
        pause_s = min(ASK_AGAIN_S, life_s * ASK_AGAIN_PART)
        is_due = self._clock.now_s() >= self._due_s or now_s >= self._due_at_latest_s
        if is_due and now_s - self._asked_s >= pause_s and self._link.is_connected():
            self._asked_s = now_s  # a fault is not repeated at once
            self._ask(identity, identity.tls_key.request())
        return False

    def _plan(self, held: Held) -> None:
        part = random.SystemRandom().uniform(EARLIEST, LATEST)
        rest_s = part * (held.ends_at_s - held.begins_at_s)
        self._due_s = held.begins_at_s + rest_s
        self._due_at_latest_s = self._clock.monotonic_s() + rest_s
        if self._planned is not None and self._clock.now_s() >= self._due_s:
            self._due_s = math.inf  # it has just come, so the clock is wrong
        self._planned = held

    def _ask(self, identity: Identity, csr: str) -> None:
        proof = csr_proof(device=self._device, nonce="", challenge="", csr=csr)
        signature = base64.b64encode(identity.key.sign(proof)).decode()
        request = CertificateRequest(device=self._device, csr=csr, signature=signature)
        if self._link.publish(up(self._device, "certificate_request"), to_json(request)):
            self._open_sha256 = sha256_hex(csr.encode())

    def _take(self, identity: Identity) -> bool:
        """Take the oldest answer that waits, if it is one to the open request.

        Raises:
            CertificateError: It is for another device.
            FleetError: It is malformed, not signed, or cannot be stored.
        """
        try:
            payload = self._answers.get_nowait()
        except queue.Empty:
            return False
        signed = self._trust.unseal(payload, role="director", payload_type=CERTIFICATE_PAYLOAD_TYPE)
        answer = decode_message(signed, CertificateAnswer)
        if answer.device != self._device:
            raise CertificateError("a certificate came that is another device's")
        if answer.csr_sha256 != self._open_sha256:
            return False  # of an earlier request
        self._open_sha256 = ""
        identity.confirm(answer.certificate)
        return True
