"""Makes what fetches blobs, from the configuration; nothing runs yet."""

from __future__ import annotations

from typing import Final

import msgspec

from agent.app.config import AgentConfig
from agent.install.fetch.delta import DeltaSource
from agent.install.fetch.fetcher import Fetcher
from agent.install.fetch.http import HttpSource
from agent.install.fetch.local import LocalSource
from agent.install.fetch.messages import MessageSource
from agent.install.fetch.multicast import MulticastSource
from agent.install.fetch.offers import Offers
from agent.install.fetch.sources import (
    DELTA,
    HTTP,
    LOCAL,
    MQTT,
    MULTICAST,
    ChunkSource,
    SourceName,
)
from agent.interrupts import Interrupts
from agent.link.connection import Link
from agent.log import Log
from wire.clock import Clock
from wire.trust.root import TrustRoot

SMALL_BYTES: Final = 32 * 1024


class Fetching(msgspec.Struct, frozen=True, kw_only=True):
    """What fetches, and what it hears from the controller."""

    fetcher: Fetcher
    messages: MessageSource
    multicast: MulticastSource
    offers: Offers

    def reconnected(self) -> None:
        """Note that the connection to the broker is new."""
        self.messages.reconnected()
        self.offers.reconnected()


def make_fetching(
    config: AgentConfig,
    trust: TrustRoot,
    link: Link,
    *,
    interrupts: Interrupts,
    log: Log,
    clock: Clock,
) -> Fetching:
    """Return what fetches blobs.

    Args:
        config: The configuration of this device.
        trust: Who may sign where blobs are.
        link: The connection to the controller.
        interrupts: Wakes a read from the network when the agent stops.
        log: Takes a line when a source cannot go on.
        clock: For waiting.

    Returns:
        The fetcher with its sources, in the order of the settings.
    """
    delivery = config.delivery
    offers = Offers(config.device, link.publish, trust, clock)
    messages = MessageSource(config.device, link.publish, clock)
    multicast = MulticastSource(
        config.device,
        offers,
        publish=link.publish,
        subscribe=link.subscribe,
        unsubscribe=link.unsubscribe,
        clock=clock,
    )
    files = (delivery.ca_file, config.broker.ca_file)
    http = HttpSource(
        offers,
        clock,
        ca_files=tuple(file for file in files if file is not None),
        clear_text=delivery.clear_text,
        least_bytes=SMALL_BYTES if MQTT in delivery.sources else 0,
    )
    interrupts.wake_on_stop(http.wake)
    carriers: dict[SourceName, ChunkSource] = {HTTP: http, MQTT: messages}
    chosen = [carriers[name] for name in delivery.sources if name in carriers]
    sources: dict[SourceName, ChunkSource] = {
        LOCAL: LocalSource(),
        DELTA: DeltaSource(offers, chosen, clock),
        MULTICAST: multicast,
        **carriers,
    }
    fetcher = Fetcher(
        [sources[name] for name in delivery.sources],
        clock,
        on_fault=lambda name, fault: log.write("source", source=name, detail=fault.message),
    )
    return Fetching(fetcher=fetcher, messages=messages, multicast=multicast, offers=offers)
