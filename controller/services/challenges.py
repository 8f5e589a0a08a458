"""Challenges for devices that enrol again by their key: a recorded request must not count.

Rules:
- Nothing is kept: a challenge is a code over the device, its key and the time, under a key that
  follows from the director's. So every controller of a fleet knows the challenges of the others.
- It is valid for `STEP_S` at least, for twice that at most, and for one key of one device. Within
  that time a request may come again: it asks for what it has brought about already.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

import msgspec

from wire.clock import Clock
from wire.codec import to_json
from wire.enrolling import EnrolRequest
from wire.trust.envelope import SigningKey

STEP_S: Final = 300.0
"""An answer takes seconds; minutes are for a slow link and a busy controller."""


class Challenges:
    """Makes and knows challenges.

    Args:
        key: The director's private key.
        clock: Wall time.
    """

    def __init__(self, key: SigningKey, clock: Clock) -> None:
        # The signature is never sent, and no document begins like this.
        self._secret = hashlib.sha256(key.sign(b"edgefleet-enrol-challenges-v1")).digest()
        self._clock = clock

    def new(self, request: EnrolRequest) -> str:
        """Return the challenge for a request that has none, or one that is over."""
        return self._at(request, self._step)

    def is_met(self, request: EnrolRequest) -> bool:
        """Tell whether a request has a challenge that is valid now; its proof is checked apart."""
        given = request.challenge
        if isinstance(given, msgspec.UnsetType):
            return False
        valid = [self._at(request, self._step - age) for age in (0, 1)]
        return any(hmac.compare_digest(given.encode(), each.encode()) for each in valid)

    @property
    def _step(self) -> int:
        return int(self._clock.now_s() // STEP_S)

    def _at(self, request: EnrolRequest, step: int) -> str:
        bound = to_json([request.device, request.public_key, step])
        return hmac.digest(self._secret, bound, hashlib.sha256).hex()
