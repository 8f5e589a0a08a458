"""The controller's part that sends packages: a connection and two threads of its own.

Rules:
- Nothing that concerns a package waits in the way of a control message, neither here nor on the
  connection: reports, greetings and desired states have the other connection.
"""

from __future__ import annotations

import logging

from controller.app.inbox import Inbox, each
from controller.delivery.chunks import ChunkServer
from controller.delivery.sources import SourceServer
from wire import topics
from wire.transport import Connection, Received, Transport

SOURCE_REQUESTS = "/source_request"
_log = logging.getLogger(__name__)


class Delivery:
    """Takes requests for pieces, and for sources, from the broker and answers them.

    Args:
        transport: A connection that nothing else uses.
        chunks: Answers requests for pieces.
        sources: Answers requests for sources.
    """

    def __init__(self, transport: Transport, chunks: ChunkServer, sources: SourceServer) -> None:
        self._transport = transport
        self._chunks = chunks
        self._sources = sources
        self._inbox = Inbox(each(self._handle))
        self._was_up = False

    def start(self) -> None:
        """Begin to answer; returns at once."""
        for topic_filter in topics.DELIVERY_UP:
            self._transport.subscribe(topic_filter)
        self._inbox.start()
        self._chunks.start()
        self._transport.start(self._inbox.put, self._on_connection)

    def stop(self, timeout_s: float) -> None:
        """Stop answering; the devices ask again."""
        self._inbox.stop(timeout_s)
        self._chunks.stop(timeout_s)
        self._transport.close()

    def _handle(self, received: Received) -> None:
        server = self._sources if received.topic.endswith(SOURCE_REQUESTS) else self._chunks
        server.handle(received)

    def _on_connection(self, connection: Connection) -> None:
        if connection.refused:
            _log.error("the broker refuses the connection for packages: %s", connection.reason)
        elif self._was_up and not connection.up:
            _log.info("the connection for packages is lost; trying again")
        self._was_up = connection.up
