"""Makes what fetches blobs, from the configuration; nothing runs yet."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from agent.app.config import AgentConfig
from agent.install.arrivals import Arrivals
from agent.install.fetch.connection import Bounds
from agent.install.fetch.delta import DeltaSource
from agent.install.fetch.fetcher import Bind, Fetcher, SlowSource
from agent.install.fetch.http import HttpSource
from agent.install.fetch.local import LocalSource
from agent.install.fetch.messages import MessageSource
from agent.install.fetch.multicast import MulticastSource
from agent.install.fetch.offers import Offers
from agent.install.fetch.slowness import Watch
from agent.install.fetch.sources import ChunkSource, Coming, Errand, SourceName
from agent.interrupts import Interrupts
from agent.link.connection import Link
from agent.log import Log
from agent.ports import RecorderPort
from wire.clock import Clock, local_time
from wire.errors import FleetError
from wire.progress import DELTA, HTTP, LOCAL, MQTT, MULTICAST, PEER
from wire.trust.root import Trust

if TYPE_CHECKING:
    from agent.install.budget.budgets import Budgets

SMALL_BYTES: Final = 32 * 1024
WINDOWS: Final = 3.0
"""After so many windows without a word a source is not said to be slow any more."""
SLOW_METRIC: Final = "slow_retrievals_total"
"""Counts, by source, the windows in which one brought less than it has to."""

TOLD_S: Final = 600.0
"""How often the fleet hears that a source cannot go on."""


class Fetching(msgspec.Struct, frozen=True, kw_only=True):
    """What fetches, and what it hears from the controller."""

    fetcher: Fetcher
    messages: MessageSource
    multicast: MulticastSource
    offers: Offers
    budgets: Budgets | None
    """None if nothing is bounded."""

    arrivals: Arrivals

    def came(self, size_bytes: int, source: SourceName) -> None:
        """Count what has come for a package over the network; for any thread."""
        self.arrivals.came(size_bytes, source)
        if self.budgets is not None:
            self.budgets.came(size_bytes)

    coming: Coming
    """Which blob comes now."""

    slow: SlowSources

    def reconnected(self) -> None:
        """Note that the connection to the broker is new."""
        self.messages.reconnected()
        self.offers.reconnected()


class SlowSources:
    """Tells that a source is too slow: the log each time, the fleet now and then.

    Args:
        log: Takes a line.
        recorder: Takes an event, and counts.
        clock: For how long ago the last event was.
        valid_s: How long it is true that the only source is slow, unless it is found so again.
    """

    def __init__(self, log: Log, recorder: RecorderPort, clock: Clock, *, valid_s: float) -> None:
        self._log = log
        self._recorder = recorder
        self._clock = clock
        self._valid_s = valid_s
        self._told_s: dict[tuple[str, str], float] = {}
        self._alone: tuple[float, str] = (float("-inf"), "")

    @property
    def alone(self) -> str:
        """What is said of a source that is slow, while there is no better one; empty if none is."""
        at_s, text = self._alone
        return text if self._clock.monotonic_s() - at_s < self._valid_s else ""

    def __call__(self, found: SlowSource) -> None:
        """Tell that a source is too slow, and what comes of it."""
        slow, now_s = found.slow, self._clock.monotonic_s()
        rates = f"{slow.bytes_per_s:.0f} bytes/s, less than {slow.least_bytes_per_s:.0f}"
        what = f"slow retrieval: {found.source} ({slow.who}) brings {rates}"
        reason = f"{what}; {found.other} is asked now" if found.other else f"{what}; it goes on"
        self._alone = (
            (now_s, f"{what}, and nothing else brings more")
            if not found.other
            else (float("-inf"), "")
        )
        self._recorder.add(SLOW_METRIC, 1.0, {"source": found.source})
        key = (found.source, found.other)
        if now_s - self._told_s.get(key, float("-inf")) < TOLD_S:
            self._log.write("slow", reason=reason)
            return
        self._told_s[key] = now_s
        data = {
            "source": found.source,
            "who": slow.who,
            "other": found.other,
            "bytes_per_s": round(slow.bytes_per_s, 1),
            "least_bytes_per_s": slow.least_bytes_per_s,
        }
        self._recorder.event("slow", reason, data)


class SourceFaults:
    """Tells that a source could not go on: the log each time, the fleet now and then.

    Args:
        log: Takes a line.
        recorder: Takes an event.
        clock: For how long ago the last event was.
    """

    def __init__(self, log: Log, recorder: RecorderPort, clock: Clock) -> None:
        self._log = log
        self._recorder = recorder
        self._clock = clock
        self._told_s: dict[str, float] = {}

    def __call__(self, name: str, fault: FleetError) -> None:
        """Tell that a source could not go on."""
        now_s, reason = self._clock.monotonic_s(), f"{name}: {fault.message}"
        if now_s - self._told_s.get(name, float("-inf")) < TOLD_S:  # a release has many files
            self._log.write("source", reason=reason)
            return
        self._told_s[name] = now_s
        self._recorder.event("source", reason, {"source": name})  # the log has it, too


def make_fetching(
    config: AgentConfig,
    trust: Trust,
    link: Link,
    *,
    interrupts: Interrupts,
    log: Log,
    recorder: RecorderPort,
    clock: Clock,
) -> Fetching:
    """Return what fetches blobs.

    Args:
        config: The configuration of this device.
        trust: Who may sign where blobs are.
        link: The connection to the controller.
        interrupts: Wakes a read from the network when the agent stops.
        log: Takes a line when a source cannot go on.
        recorder: Takes what has come by which network, and which source cannot go on.
        clock: For waiting.

    Returns:
        The fetcher with its sources, in the order of the settings.
    """
    delivery = config.delivery
    budgets = _budgets(config, recorder, log, clock) if delivery.has_budgets else None
    arrivals = Arrivals()

    def came(source: SourceName, size_bytes: int) -> None:
        arrivals.came(size_bytes, source)
        if budgets is not None:
            budgets.came(size_bytes)

    least, window_s = delivery.least_bytes_per_s, delivery.slow_window_s
    slow = SlowSources(log, recorder, clock, valid_s=WINDOWS * window_s)
    offers = Offers(config.device, link.publish, trust, clock, link.is_denied)
    messages = MessageSource(config.device, link.publish, clock, watch=Watch(window_s, least))
    multicast = MulticastSource(
        config.device,
        offers,
        publish=link.publish,
        subscribe=link.subscribe,
        unsubscribe=link.unsubscribe,
        clock=clock,
        watch=Watch(window_s, least),
    )
    files = (delivery.ca_file, config.broker.ca_file)
    http = HttpSource(
        offers,
        clock,
        ca_files=tuple(file for file in files if file is not None),
        clear_text=delivery.clear_text,
        least_bytes=SMALL_BYTES if MQTT in delivery.sources else 0,
        bounds=Bounds(window_s=window_s, least_bytes_per_s=least),
        came=partial(came, HTTP),
    )
    interrupts.wake_on_stop(http.wake)
    coming = Coming()
    carriers: dict[SourceName, ChunkSource] = {HTTP: http, MULTICAST: multicast, MQTT: messages}
    if PEER in delivery.sources:
        from agent.install.fetch.peer import PeerSource

        peer = PeerSource(
            offers,
            clock,
            coming,
            wait_s=delivery.peer_wait_s,
            least_bytes=SMALL_BYTES,
            came=partial(came, PEER),
        )
        interrupts.wake_on_stop(peer.wake)
        carriers[PEER] = peer
    if budgets is not None:
        carriers = {name: _bounded(source, budgets) for name, source in carriers.items()}
    chosen = [carriers[name] for name in delivery.sources if name in carriers]
    sources: dict[SourceName, ChunkSource] = {
        LOCAL: LocalSource(),
        DELTA: DeltaSource(offers, chosen, clock),
        **carriers,
    }
    fetcher = Fetcher(
        [sources[name] for name in delivery.sources],
        clock,
        on_fault=SourceFaults(log, recorder, clock),
        on_slow=slow,
        bind=_binding(budgets) if budgets is not None else _unbound,
        coming=coming,
    )
    return Fetching(
        fetcher=fetcher,
        messages=messages,
        multicast=multicast,
        offers=offers,
        budgets=budgets,
        arrivals=arrivals,
        coming=coming,
        slow=slow,
    )


def _budgets(config: AgentConfig, recorder: RecorderPort, log: Log, clock: Clock) -> Budgets:
    from agent.install.budget.boot import this_boot  # most devices have no budgets
    from agent.install.budget.budgets import Budgets

    budgets = Budgets(
        config.delivery.networks,
        config.delivery.write_bytes_per_day,
        config.state_dir,
        config.procfs_root,
        recorder,
        clock,
        this_boot(config.procfs_root),
        local_time,
    )
    if budgets.fault:
        log.write("budget", detail=budgets.fault)
    return budgets


def _bounded(source: ChunkSource, budgets: Budgets) -> ChunkSource:
    from agent.install.fetch.bounded import BoundedSource

    return BoundedSource(source, budgets)


def _binding(budgets: Budgets) -> Bind:
    from agent.install.fetch.bounded import bound_writes

    return lambda errand: bound_writes(errand, budgets)


def _unbound(errand: Errand) -> Errand:
    return errand
