"""Notices another controller with the same director's key: two would give one device two orders.

Each controller signs and publishes its start on every connect. One that hears of another's start
gives way: it was there first, as the operator knows who starts the second one.

Rules:
- Only the director's key can sign a start, so nobody else stops a controller.
- Starts are told apart by a random identifier: a controller hears its own, too.
"""

from __future__ import annotations

import secrets

from controller.services.director import Publisher
from wire import topics
from wire.codec import to_json
from wire.errors import FleetError
from wire.messages import CONTROLLER_START_PAYLOAD_TYPE, ControllerStart, decode_message
from wire.trust.envelope import SigningKey, seal, unseal

START_ID_BYTES = 16
MAX_START_BYTES = 4096


class OtherControllers:
    """Tells others of this start, and hears of theirs.

    Args:
        key: The director's private key.
        publisher: Sends to the others.
    """

    def __init__(self, key: SigningKey, publisher: Publisher) -> None:
        self._key = key
        self._publisher = publisher
        self._start_id = secrets.token_hex(START_ID_BYTES)

    def announce(self) -> None:
        """Publish this start."""
        start = to_json(ControllerStart(start_id=self._start_id))
        signed = seal(start, payload_type=CONTROLLER_START_PAYLOAD_TYPE, keys=(self._key,))
        self._publisher.publish(topics.CONTROLLER_STARTS, signed)

    def is_other(self, payload: bytes) -> bool:
        """Return whether a message is the start of another controller with this key.

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
            return decode_message(start, ControllerStart).start_id != self._start_id
        except FleetError:
            return False
