"""Asks the controller in which other ways blobs can come, and keeps its answers.

Rules:
- Only a controller that says so in a signed desired state is asked: an older one knows no such
  request, and the device would wait for nothing.
- An answer counts only with the director's signature, for this device and the present request:
  or it could send the device anywhere.
- Without an answer, or without the right to ask (an account that an older controller made), the
  device goes on with messages, and asks again some minutes later.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import Final

import msgspec

from agent.install.fetch.messages import Publish
from agent.install.fetch.sources import Errand
from wire.clock import Clock
from wire.codec import to_json
from wire.delivery import (
    MAX_SOURCE_BLOBS,
    MAX_SOURCE_PACKAGES,
    SOURCES_PAYLOAD_TYPE,
    BlobSources,
    SourceRequest,
    Sources,
)
from wire.errors import SignatureError
from wire.messages import decode_message
from wire.topics import up
from wire.trust.root import Trust

ANSWER_S: Final = 20.0
"""How long the device waits for an answer: a slow link takes some seconds for it."""

REPEAT_S: Final = 5.0
"""How often it asks meanwhile; a message may get lost."""

SILENT_S: Final = 300.0
"""So long it does not ask after it has waited for nothing."""

LEAST_VALID_S: Final = 60.0
"""So long an answer counts at least; and so long that there is no delta, or no other device."""

MAX_KNOWN: Final = 4096
POLL_S: Final = 0.2


class _Known(msgspec.Struct, frozen=True, kw_only=True):
    ways: BlobSources
    until_s: float
    """Monotonic time until when the links work, or until when to believe that there are none."""


class Offers:
    """The ways to blobs, as the controller told them.

    Args:
        device: This device.
        publish: Publishes a message; False without a connection.
        trust: Who may sign an answer.
        clock: For waiting, and for how long links work.
        is_denied: Tells whether the broker refused a message to a topic.
    """

    def __init__(
        self,
        device: str,
        publish: Publish,
        trust: Trust,
        clock: Clock,
        is_denied: Callable[[str], bool] = lambda _topic: False,
    ) -> None:
        self._device = device
        self._publish = publish
        self._trust = trust
        self._clock = clock
        self._is_denied = is_denied
        self._known: dict[str, _Known] = {}
        self._nonce = ""
        self._asked: tuple[str, ...] = ()
        self._silent_until_s = float("-inf")
        self._answered = threading.Condition()

    def hear(self, payload: bytes) -> None:
        """Take an answer; called by the thread that receives messages.

        Args:
            payload: As it came.

        Raises:
            SignatureError: It is not signed by the director, or is for another device.
            WireFormatError: It is malformed.
        """
        signed = self._trust.unseal(payload, role="director", payload_type=SOURCES_PAYLOAD_TYPE)
        answer = decode_message(signed, Sources)
        if answer.device != self._device:
            raise SignatureError(f"sources for {answer.device} came to {self._device}")
        with self._answered:
            if answer.nonce != self._nonce:
                return  # late, or a recording
            now_s = self._clock.monotonic_s()
            until_s = now_s + max(answer.valid_s, LEAST_VALID_S)
            # To what is not in the answer, there is no other way.
            told = {each.sha256: each for each in answer.blobs}
            for sha256 in self._asked:
                ways = told.get(sha256) or BlobSources(sha256=sha256)
                # A delta that is not there yet may be there soon, and devices come and go.
                stays = ways.delta is not None and ways.peers is msgspec.UNSET
                self._know(ways, until_s if stays else now_s + LEAST_VALID_S)
            for delta in (each.delta for each in answer.blobs):
                if delta is not None:
                    self._know(BlobSources(sha256=delta.sha256, urls=delta.urls), until_s)
            self._nonce = ""
            self._answered.notify()

    def of(self, sha256: str, errand: Errand) -> BlobSources | None:
        """Return the ways to a blob; asks for them, and for those of what comes next.

        Args:
            sha256: The blob.
            errand: What the install wants.

        Returns:
            The ways, or None if the controller does not tell.

        Raises:
            FleetError: The errand's check raised it.
        """
        known = self._fresh(sha256)
        if known is not None or not errand.asks or self._clock.monotonic_s() < self._silent_until_s:
            return known
        self._ask(sha256, errand)
        known = self._fresh(sha256)
        if known is None:
            self._silent_until_s = self._clock.monotonic_s() + SILENT_S
        return known

    def reconnected(self) -> None:
        """Note that the connection is new: another controller may be there."""
        self._silent_until_s = float("-inf")

    def forget(self, sha256: str) -> None:
        """Forget the ways to a blob, because a link was refused or a delta is to be ready now."""
        with self._answered:
            self._known.pop(sha256, None)

    def _know(self, ways: BlobSources, until_s: float) -> None:
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[ways.sha256] = _Known(ways=ways, until_s=until_s)

    def _fresh(self, sha256: str) -> BlobSources | None:
        with self._answered:
            known = self._known.get(sha256)
        is_fresh = known is not None and self._clock.monotonic_s() < known.until_s
        return known.ways if known is not None and is_fresh else None

    def _ask(self, sha256: str, errand: Errand) -> None:
        """Ask, again and again, until an answer has come or it takes too long."""
        nonce = secrets.token_hex(8)
        after = errand.blobs[errand.blobs.index(sha256) :] if sha256 in errand.blobs else ()
        wanted = dict.fromkeys((sha256, *(each for each in after if self._fresh(each) is None)))
        request = SourceRequest(
            device=self._device,
            nonce=nonce,
            blobs=tuple(wanted)[:MAX_SOURCE_BLOBS],
            packages=tuple(errand.holdings.packages)[:MAX_SOURCE_PACKAGES],
        )
        with self._answered:
            self._nonce, self._asked = nonce, request.blobs
        end_s = self._clock.monotonic_s() + ANSWER_S
        asked_s, topic = float("-inf"), up(self._device, "source_request")
        while (now_s := self._clock.monotonic_s()) < end_s:
            errand.check()
            if now_s - asked_s >= REPEAT_S:
                self._publish(topic, to_json(request), int(REPEAT_S))
                asked_s = now_s
            if self._is_denied(topic):
                return
            with self._answered:
                if self._answered.wait_for(lambda: self._nonce != nonce, POLL_S):
                    return
