"""The interface that sends and receives messages. `wire.mqtt` implements it.

Rules:
- Handlers run on the transport's own thread and only put the message on a queue.
- Delivery is not guaranteed: an acknowledged publish may be lost when a broker's queue is full or
  the broker dies. A receiver asks again for data that it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol


class Received(NamedTuple):
    """A message as it was received."""

    topic: str
    payload: bytes


class Connection(NamedTuple):
    """A change of the connection."""

    up: bool
    refused: bool = False
    """The broker refused the credentials."""

    reason: str = ""
    address: str = ""
    """This side's own IP address on a connection that is up; empty if it is not known."""


MessageHandler = Callable[[Received], None]
ConnectionHandler = Callable[[Connection], None]


class Transport(Protocol):
    """A way to publish and to receive."""

    def start(self, on_message: MessageHandler, on_connection: ConnectionHandler) -> None:
        """Return at once; connect in the background, again and again, until closed."""
        ...

    def subscribe(self, topic_filter: str) -> None:
        """Receive the messages that match, now and after every reconnect."""
        ...

    def unsubscribe(self, topic_filter: str) -> None:
        """No longer receive what matches a filter; what is on its way still comes."""
        ...

    def publish(self, topic: str, payload: bytes, *, expiry_s: int | None = None) -> bool:
        """Hand a message over.

        Returns:
            False when there is no connection, or too much is not acknowledged yet; the message is
            then dropped, not kept.
        """
        ...

    def is_waiting(self, topic: str) -> bool:
        """Tell whether a message to a topic was handed over and is not acknowledged yet."""
        ...

    def is_denied(self, topic: str) -> bool:
        """Tell whether the broker refused a message to a topic on this connection."""
        ...

    def found_nobody(self, topic: str) -> bool:
        """Tell whether nobody had subscribed to a topic when the last message to it came."""
        ...

    def close(self) -> None:
        """Disconnect and stop."""
        ...
