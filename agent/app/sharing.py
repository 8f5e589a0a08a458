"""Makes what serves other devices of the site, as the configuration asks for it.

Rules:
- Only a device that serves others has the modules in memory that do.
- An address that cannot be used yet, as before there is a network, ends nothing: it is tried again
  on each connection to the broker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from agent.app.config import AgentConfig
from agent.errors import PeersError
from agent.install.conditions import tired
from agent.install.slots import Slots
from agent.log import Log
from agent.peers.settings import PeerSettings, parse_address, told_address
from agent.ports import RecorderPort
from wire.clock import Clock
from wire.health import HealthSnapshot
from wire.trust.root import Trust

if TYPE_CHECKING:
    from agent.peers.settings import Address

METRIC: Final = "peer_sent_bytes_total"
"""Counts what this device sent to others of its site."""


class Server(Protocol):
    """What serves."""

    @property
    def address(self) -> Address | None:
        """Where it listens; None while it does not."""
        ...

    def start(self) -> None:
        """Listen; raises PeersError if the address cannot be used."""
        ...

    def stop(self) -> None:
        """Stop listening."""
        ...


class Sharing:
    """Serves other devices, and knows where.

    Args:
        settings: The settings.
        server: Serves.
        log: Takes a line when it begins, or cannot.
        recorder: Takes an event when it cannot.
    """

    def __init__(
        self, settings: PeerSettings, server: Server, log: Log, recorder: RecorderPort
    ) -> None:
        self._settings = settings
        self._server = server
        self._log = log
        self._recorder = recorder
        self._fault = ""
        self.url: str | None = None
        """Where other devices reach this one, as the controller is to be told; None for nowhere."""

    def start(self) -> None:
        """Begin to serve if the address can be used now."""
        if self._server.address is not None:
            return
        try:
            self._server.start()
        except PeersError as exc:
            self._tell(str(exc))
            return
        self._fault = ""
        self._log.write("peers", listening=str(self._server.address))

    def connected(self, own_address: str) -> None:
        """Find out where other devices reach this one, because the connection is new.

        Args:
            own_address: The IP address by which the device reaches the broker; empty if unknown.
        """
        self.start()
        told = told_address(self._settings, own_address)
        if self._server.address is not None and told is None:
            where = self._settings.listen
            self._tell(f"no address is known that others reach for {where}; set peers.address")
        is_served = self._server.address is not None and told is not None
        self.url = f"http://{told}" if is_served else None

    def stop(self) -> None:
        """Serve nobody any more."""
        self.url = None
        self._server.stop()

    def _tell(self, fault: str) -> None:
        """Say why nobody is served: once, until it is something else."""
        if fault != self._fault:
            self._fault = fault
            self._recorder.event("peers", fault, {"code": PeersError.code})


def make_sharing(
    config: AgentConfig,
    trust: Trust,
    slots: Slots,
    *,
    is_coming: Callable[[str], bool],
    health: Callable[[], HealthSnapshot],
    log: Log,
    recorder: RecorderPort,
    clock: Clock,
) -> Sharing | None:
    """Return what serves other devices; None if the configuration does not ask for it.

    Args:
        config: The configuration of this device.
        trust: Who may sign links and packages.
        slots: Where packages are.
        is_coming: Tells whether a blob is being fetched now.
        health: Returns the newest readings.
        log: Takes a line when it begins.
        recorder: Takes what was sent, and an event when nobody can be served.
        clock: For deadlines and links.
    """
    settings = config.peers
    where = parse_address(settings.listen) if settings.listen is not None else None
    if where is None:
        return None
    from agent.peers.held import HeldBlobs
    from agent.peers.limits import Limits
    from agent.peers.server import PeerServer, Rights

    rights = Rights(
        device=config.device,
        trust=trust,
        blobs=HeldBlobs(slots, trust),
        is_coming=is_coming,
        tired=lambda: tired(health()),
        sent=lambda size_bytes: recorder.add(METRIC, size_bytes, {}),
        failed=lambda kind: log.write("peers", fault=kind),
    )
    limits = Limits(at_once=settings.at_once, bytes_per_s=settings.bytes_per_s)
    return Sharing(settings, PeerServer(where, rights, limits, clock), log, recorder)
