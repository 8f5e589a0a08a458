"""The controller's part that sends packages: a connection and two threads of its own.

Rules:
- Nothing that concerns a package waits in the way of a control message, neither here nor on the
  connection: reports, greetings and desired states have the other connection.
"""

from __future__ import annotations

import logging

from controller.app.inbox import Inbox
from controller.delivery.chunks import Budget, ChunkServer
from controller.services.blobs import BlobStore
from controller.store.database import Database
from wire import topics
from wire.clock import Clock
from wire.transport import Connection, Transport

_log = logging.getLogger(__name__)


class Delivery:
    """Takes requests for pieces from the broker and answers them.

    Args:
        transport: A connection that nothing else uses.
        database: Knows which blobs a device may read.
        blobs: The content.
        budget: A limit on the bytes that are sent.
        clock: Durations.
    """

    def __init__(
        self,
        transport: Transport,
        database: Database,
        blobs: BlobStore,
        budget: Budget,
        clock: Clock,
    ) -> None:
        self._transport = transport
        self.chunks = ChunkServer(database, blobs, transport, budget, clock)
        self._inbox = Inbox(self.chunks.handle)
        self._was_up = False

    def start(self) -> None:
        """Begin to answer; returns at once."""
        for topic_filter in topics.DELIVERY_UP:
            self._transport.subscribe(topic_filter)
        self._inbox.start()
        self.chunks.start()
        self._transport.start(self._inbox.put, self._on_connection)

    def stop(self, timeout_s: float) -> None:
        """Stop answering; the devices ask again."""
        self._inbox.stop(timeout_s)
        self.chunks.stop(timeout_s)
        self._transport.close()

    def _on_connection(self, connection: Connection) -> None:
        if connection.refused:
            _log.error("the broker refuses the connection for packages: %s", connection.reason)
        elif self._was_up and not connection.up:
            _log.info("the connection for packages is lost; trying again")
        self._was_up = connection.up
