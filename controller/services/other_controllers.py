"""Notices another controller with the same director's key: two would give one device two orders.

Each controller signs and publishes its start on every connect. One that hears of another's start
ends: it was there first, as the operator knows who starts the second one.

Rules:
- Only the director's key can sign a start, so nobody else stops a controller.
- A start from before this one's counts as a recording that somebody sends again, so that it stops
  nothing. Of two controllers whose clocks differ, both may therefore go on; the log says so.
- Starts are told apart by a random identifier: a controller hears its own, too.
- Controllers that share their work are members of one group, and none of them gives way to another.
"""

from __future__ import annotations

import logging
import secrets

import msgspec

from controller.services.director import Publisher
from wire import topics
from wire.clock import Clock
from wire.codec import to_json
from wire.errors import FleetError
from wire.messages import decode_message
from wire.presence import CONTROLLER_START_PAYLOAD_TYPE, ControllerStart
from wire.trust.envelope import SigningKey, seal, unseal

START_ID_BYTES = 16
MAX_START_BYTES = 4096
_log = logging.getLogger(__name__)


class OtherControllers:
    """Tells others of this start, and hears of theirs.

    Args:
        key: The director's private key.
        publisher: Sends to the others.
        clock: Wall time.
        share: The group with which this controller shares its work; None if it is alone.
    """

    def __init__(
        self, key: SigningKey, publisher: Publisher, clock: Clock, *, share: str | None = None
    ) -> None:
        self._key = key
        self._publisher = publisher
        self._own = ControllerStart(
            start_id=secrets.token_hex(START_ID_BYTES),
            at_s=clock.now_s(),
            share=msgspec.UNSET if share is None else share,
        )

    def announce(self) -> None:
        """Publish this start."""
        signed = seal(
            to_json(self._own), payload_type=CONTROLLER_START_PAYLOAD_TYPE, keys=(self._key,)
        )
        self._publisher.publish(topics.CONTROLLER_STARTS, signed)

    def must_give_way(self, payload: bytes) -> bool:
        """Hear a start: return whether another controller with this key started after this one.

        One that started before, and was not connected then, is told of this start again.

        Args:
            payload: As received on `topics.CONTROLLER_STARTS`.
        """
        try:
            start = unseal(
                payload,
                payload_type=CONTROLLER_START_PAYLOAD_TYPE,
                public_keys=(self._key.public_key,),
                limit_bytes=MAX_START_BYTES,
            )
            other = decode_message(start, ControllerStart)
        except FleetError:
            return False
        if isinstance(other.share, str) and other.share == self._own.share:
            return False
        if other.start_id != self._own.start_id and other.at_s < self._own.at_s:
            _log.warning(
                "a start of a controller with this director's key from %s s before this one was "
                "sent: a recording, or another controller whose clock is behind",
                round(self._own.at_s - other.at_s),
            )
            self.announce()
            return False
        return other.start_id != self._own.start_id
