"""The controller's part that sends packages: a connection and two threads of its own.

Rules:
- Nothing that concerns a package waits in the way of a control message, neither here nor on the
  connection: reports, greetings and desired states have the other connection.
- Of several controllers any one sends the pieces that a device asks for. What needs the memory of
  one, which are casts, deltas and neighbours, is for the one that leads; all hear of it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from controller.app.inbox import Inbox, each
from controller.app.lead import Lead
from controller.config import ControllerConfig
from controller.delivery.budget import Budget
from controller.delivery.chunks import ChunkServer
from controller.delivery.deltas import Deltas
from controller.delivery.peers import Peers
from controller.delivery.places import Place
from controller.delivery.sources import SourceServer, Ways
from controller.store.database import Database
from wire import topics
from wire.clock import Clock
from wire.transport import Connection, Received, Transport
from wire.trust.envelope import SigningKey

_log = logging.getLogger(__name__)


class Delivery:
    """Takes requests for pieces, and for sources, from the broker and answers them.

    Args:
        transport: A connection that nothing else uses.
        chunks: Answers requests for pieces.
        sources: Answers requests for sources.
        lead: Whether this controller leads.
        share: The group of controllers that share requests for pieces; None for one that is alone.
    """

    def __init__(
        self,
        transport: Transport,
        chunks: ChunkServer,
        sources: SourceServer,
        lead: Lead,
        share: str | None,
    ) -> None:
        self._transport = transport
        self._chunks = chunks
        self._lead = lead
        self._share = share
        self._answer_sources = each(sources.handle)
        self._inbox = Inbox(self._handle)
        self._was_up = False

    def start(self) -> None:
        """Begin to answer; returns at once."""
        self._transport.subscribe(topics.shared(topics.CHUNK_REQUESTS, self._share))
        self._transport.subscribe(topics.SOURCE_REQUESTS)
        self._transport.subscribe(topics.CAST_REPORTS)
        self._inbox.start()
        self._chunks.start()
        self._transport.start(self._inbox.put, self._on_connection)

    def stop(self, timeout_s: float) -> None:
        """Stop answering; the devices ask again."""
        self._inbox.stop(timeout_s)
        self._chunks.stop(timeout_s)
        self._transport.close()

    def _handle(self, received: Sequence[Received]) -> None:
        """Hand messages over, requests for pieces together: they are many."""
        is_ours = self._lead.is_ours
        for_chunks: list[Received] = []
        for_sources: list[Received] = []
        for one in received:
            kind = one.topic.rpartition("/")[2]
            if kind == "chunk_request" or (is_ours and kind == "cast_report"):
                for_chunks.append(one)
            elif is_ours:
                for_sources.append(one)
        self._chunks.handle(for_chunks)
        self._answer_sources(for_sources)

    def _on_connection(self, connection: Connection) -> None:
        if connection.refused:
            _log.error("the broker refuses the connection for packages: %s", connection.reason)
        elif self._was_up and not connection.up:
            _log.info("the connection for packages is lost; trying again")
        self._was_up = connection.up


def delivery_of(
    config: ControllerConfig,
    database: Database,
    transport: Transport,
    deltas: Deltas,
    places: Sequence[Place],
    lead: Lead,
    key: SigningKey,
    clock: Clock,
) -> Delivery:
    """Return what sends packages.

    Args:
        config: The settings.
        database: The control state.
        transport: A connection that nothing else uses.
        deltas: The deltas between files of releases, and where all files are.
        places: Where devices can download files by HTTP.
        lead: Whether this controller leads.
        key: The director's private key.
        clock: Wall time and durations.
    """
    share, valid_s = config.broker.share, config.downloads.valid_s
    budget = Budget(clock, config.transfer_bytes_per_s)
    chunks = ChunkServer(database, deltas.readable, transport, budget, clock)
    peers = None
    if config.peers.label is not None:
        peers = Peers(database, deltas.packages, config.peers, key, valid_s, clock)
    ways = Ways(places=places, valid_s=valid_s, deltas=deltas, casts=chunks, peers=peers)
    sources = SourceServer(database, ways, transport, key, clock)
    return Delivery(transport, chunks, sources, lead, share)
