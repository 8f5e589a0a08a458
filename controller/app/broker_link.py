"""The controller's connection with its broker, for all but packages.

Rules:
- A broker that does not answer is normal: it is logged once, and the devices are told when the
  broker is back.
- Of two controllers with one director's key, the one that was there first ends, unless both are of
  the same group.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from controller.services.ingest import may_wait
from controller.services.other_controllers import OtherControllers
from controller.services.reception import Reception
from wire import topics
from wire.transport import Connection, Received, Transport

_log = logging.getLogger(__name__)


class BrokerLink:
    """Takes messages of devices, and follows whether the broker is there.

    Args:
        transport: The connection, not started.
        others: Hears of other controllers.
        reception: Notes how long the controller has heard its devices.
        put: Lets a message wait for its turn.
        came: What is to be done when the broker is there.
        on_replaced: Called when this controller is to end, in the transport's thread.
        stopping: Set when the controller ends.
    """

    def __init__(
        self,
        transport: Transport,
        others: OtherControllers,
        reception: Reception,
        *,
        put: Callable[[Received], None],
        came: Sequence[Callable[[], None]],
        on_replaced: Callable[[], None],
        stopping: threading.Event,
    ) -> None:
        self._transport = transport
        self._others = others
        self._reception = reception
        self._put = put
        self._came = came
        self._on_replaced = on_replaced
        self._stopping = stopping
        self.is_up = False
        self._lacks = _lack(Connection(up=False))

    def start(self, share: str | None) -> None:
        """Begin to listen; returns at once, also when the broker is away.

        Args:
            share: The group of controllers that share the messages of devices; None: it is alone.
        """
        for topic_filter in (*topics.CONTROL_UP, topics.ENROL_REQUESTS):
            self._transport.subscribe(topics.shared(topic_filter, share))
        self._transport.subscribe(topics.CONTROLLER_STARTS)
        self._transport.start(self._take, self.on_connection)

    def close(self) -> None:
        """End the connection."""
        self._transport.close()

    def needs(self) -> list[str]:
        """Return what is wanting, one line, for callers that may have no token."""
        return [] if self.is_up else [self._lacks]

    def on_connection(self, connection: Connection) -> None:
        """Take a change of the connection."""
        was, self.is_up = self.is_up, connection.up
        self._lacks = _lack(connection)
        self._reception.note(up=connection.up)
        if connection.up:
            self._others.announce()
            for tell in self._came:
                tell()
            _log.info("connected with the broker")
        elif connection.refused:
            _log.error("the broker refuses the controller's account: %s", connection.reason)
        elif self._stopping.is_set():
            return
        elif was:
            _log.warning("lost the broker: %s; trying again", connection.reason)
        else:
            _log.info("cannot reach the broker: %s; trying again", connection.reason)

    def _take(self, received: Received) -> None:
        """Let one message of a device wait for its turn, unless nobody would read it.

        Of another controller's start it takes note at once.
        """
        if received.topic == topics.CONTROLLER_STARTS:
            if self._others.must_give_way(received.payload):
                self._on_replaced()
        elif may_wait(received):
            self._put(received)


def _lack(connection: Connection) -> str:
    text = "a connection with the MQTT broker"
    if connection.refused:
        return f"{text}, which refuses the controller's account: correct it in [broker]"
    return f"{text}: start it, or correct [broker] in controller.toml; the log says more"
