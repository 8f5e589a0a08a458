"""The second connection of a device with a certificate: on it the device hears casts.

What a certificate allows follows from patterns that are the same for all devices, and Mosquitto 2.0
cannot forbid there to subscribe to all casts at once. So devices hear casts through the account for
enrolment, which allows a cast by its name alone (`controller.broker.rights`).

Rules:
- It is open only while the device hears a cast.
- It only saves bytes and time: without it, what lacks comes by messages.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

from agent.link.enrolment import Connect, Login
from wire.enrolment import enrol_username
from wire.errors import FleetError
from wire.transport import Connection, MessageHandler, Transport

SECRET_BYTES: Final = 16


class CastConnection:
    """Subscribes to casts. The caller sees to it that one thread uses it at a time.

    Args:
        connect: Makes a connection to the broker.
        password: Returns the secret of the account for enrolment.
        hear: Takes what comes, in the transport's thread.
    """

    def __init__(self, connect: Connect, password: Callable[[], str], hear: MessageHandler) -> None:
        self._connect = connect
        self._password = password
        self._hear = hear
        self._topics: set[str] = set()
        self._transport: Transport | None = None

    def subscribe(self, topic: str) -> None:
        """Receive a cast."""
        if self._transport is None:
            password = self._password()
            # Nobody else must be able to end this connection by its client identifier.
            client_id = f"enrol-{secrets.token_hex(SECRET_BYTES)}"
            login = Login(client_id=client_id, username=enrol_username(password), password=password)
            try:
                self._transport = self._connect(login)
            except FleetError:
                return  # the device's own connection says what is wrong
            self._transport.start(self._hear, _ignore)
        self._topics.add(topic)
        self._transport.subscribe(topic)

    def unsubscribe(self, topic: str) -> None:
        """No longer receive a cast; the last one ends the connection."""
        self._topics.discard(topic)
        if not self._topics:
            self.close()
        elif self._transport is not None:
            self._transport.unsubscribe(topic)

    def close(self) -> None:
        """End the connection, if it is open."""
        transport, self._transport = self._transport, None
        self._topics.clear()
        if transport is not None:
            transport.close()


def _ignore(_connection: Connection) -> None:
    """Take no note: the transport connects again by itself."""
