"""`wire.transport.Transport` in memory: a hub that delivers at once, in the publisher's thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

from wire.transport import Connection, ConnectionHandler, MessageHandler, Received


class MemoryHub:
    """What a broker is to real transports. Tests reach in through `on` and `taken`."""

    def __init__(self) -> None:
        self.transports: list[MemoryTransport] = []
        self.published: list[Received] = []
        self.lock = threading.RLock()

    def connect(self, *, refused: bool = False) -> MemoryTransport:
        """Return a transport that belongs to this hub and is not started yet."""
        return MemoryTransport(self, refused=refused)

    def on(self, topic_filter: str, handler: Callable[[Received], None]) -> MemoryTransport:
        """Subscribe a function, as a controller would."""
        transport = self.connect()
        transport.subscribe(topic_filter)
        transport.start(handler, lambda _connection: None)
        return transport

    def deliver(self, received: Received) -> None:
        with self.lock:
            self.published.append(received)
            targets = [t for t in self.transports if t.wants(received.topic)]
        for transport in targets:
            transport.hear(received)


class MemoryTransport:
    """A connection to a hub. `up` may be changed by tests."""

    def __init__(self, hub: MemoryHub, *, refused: bool = False) -> None:
        self.up = False
        self.closed = False
        self._hub = hub
        self._refused = refused
        self._filters: list[str] = []
        self.denied: set[str] = set()
        self.unheard: set[str] = set()
        """Topics to which the broker lets this client send nothing."""

        self.unacknowledged: set[str] = set()
        """Topics to which something was sent that the broker has not acknowledged."""

        self._on_message: MessageHandler | None = None
        self._on_connection: ConnectionHandler | None = None

    def start(self, on_message: MessageHandler, on_connection: ConnectionHandler) -> None:
        self._on_message, self._on_connection = on_message, on_connection
        self._hub.transports.append(self)
        self.set_up(not self._refused)

    def subscribe(self, topic_filter: str) -> None:
        self._filters.append(topic_filter)

    def unsubscribe(self, topic_filter: str) -> None:
        if topic_filter in self._filters:
            self._filters.remove(topic_filter)

    def publish(self, topic: str, payload: bytes, *, expiry_s: int | None = None) -> bool:
        if not self.up or expiry_s == 0:
            return False
        self._hub.deliver(Received(topic, payload))
        return True

    def is_denied(self, topic: str) -> bool:
        return topic in self.denied

    def found_nobody(self, topic: str) -> bool:
        return topic in self.unheard

    def is_waiting(self, topic: str) -> bool:
        return topic in self.unacknowledged

    def close(self) -> None:
        self.up = False
        self.closed = True
        if self in self._hub.transports:
            self._hub.transports.remove(self)

    def set_up(self, up: bool) -> None:
        """Let the connection come or go."""
        self.up = up
        if self._on_connection is not None:
            self._on_connection(Connection(up=up, refused=self._refused))

    def refuse(self) -> None:
        """End the connection, and refuse it from now on."""
        self._refused = True
        self.set_up(False)

    def accept(self) -> None:
        """Let a connection in that was refused."""
        self._refused = False
        self.set_up(True)

    def wants(self, topic: str) -> bool:
        return self.up and any(matches(f, topic) for f in self._filters)

    def hear(self, received: Received) -> None:
        if self._on_message is not None:
            self._on_message(received)


def matches(topic_filter: str, topic: str) -> bool:
    """Tell whether an MQTT topic filter matches a topic."""
    wanted, given = topic_filter.split("/"), topic.split("/")
    for number, part in enumerate(wanted):
        if part == "#":
            return True
        if number >= len(given) or part not in {"+", given[number]}:
            return False
    return len(wanted) == len(given)
