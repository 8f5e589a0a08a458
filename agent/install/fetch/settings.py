"""The settings of deliveries: the table `[delivery]` of `agent.toml`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from agent.install.budget.settings import NetworkSettings, faults_of
from agent.install.fetch.sources import SourceName
from wire.progress import DELTA, HTTP, LOCAL, MQTT, MULTICAST

MAX_PEER_WAIT_S: Final = 86_400
MAX_LEAST_BYTES_PER_S: Final = 1024 * 1024
LEAST_WINDOW_S, MOST_WINDOW_S = 1, 3600


class DeliverySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the content of packages comes to this device."""

    sources: tuple[SourceName, ...] = (LOCAL, DELTA, HTTP, MULTICAST, MQTT)
    """What is tried, in this order: `local` other packages on this device, `delta` the difference
    to a file that is here, `peer` range requests to other devices of the site, `http` range
    requests where the controller has links, `multicast` messages that the controller sends once for
    many devices, `mqtt` messages for this one. Only `peer` has to be asked for.
    The signed index and the manifest come by messages where nothing else brings them."""

    ca_file: Path | None = None
    """Authority of the servers of `http`, beside `broker.ca_file` and those of the system."""

    clear_text: bool = False
    """`http` without TLS from other machines: for closed networks. What comes is checked anyway;
    without TLS others may read it."""

    peer_wait_s: float = 300.0
    """How long to wait, for each file, for other devices that say that it is coming to them or that
    others fetch from them; then the next source is tried. 0 to wait for nobody."""

    least_bytes_per_s: float = 2048.0
    """What a source has to bring, averaged over `slow_window_s`; one that is slower is left for
    another if there is one, and is told. 0 for no bound. Other devices of the site have to bring
    more (`agent.install.fetch.peer.NEAR`)."""

    slow_window_s: float = 60.0
    networks: tuple[NetworkSettings, ...] = ()
    """What packages may cost each kind of network; others have no bounds."""

    write_bytes_per_day: int | None = None
    """What fetching may write to the storage on one local day; None for no bound."""

    @property
    def has_budgets(self) -> bool:
        """Whether anything is bounded."""
        return bool(self.networks) or self.write_bytes_per_day is not None

    def faults(self) -> list[str]:
        """Return what is wrong, each as a line for the operator."""
        if len(set(self.sources)) != len(self.sources):
            return ["delivery.sources names a source twice"]
        if not 0 <= self.peer_wait_s <= MAX_PEER_WAIT_S:
            return [f"delivery.peer_wait_s is not within 0 to {MAX_PEER_WAIT_S}"]
        others = faults_of(self.networks, self.write_bytes_per_day)
        if lines := self._rate_faults() or list(others):
            return lines
        if not {HTTP, MQTT} & set(self.sources):
            return ['delivery.sources needs "http" or "mqtt": nothing else brings a whole package']
        return []

    def _rate_faults(self) -> list[str]:
        if not 0 <= self.least_bytes_per_s <= MAX_LEAST_BYTES_PER_S:
            return [f"delivery.least_bytes_per_s is not within 0 to {MAX_LEAST_BYTES_PER_S}"]
        if not LEAST_WINDOW_S <= self.slow_window_s <= MOST_WINDOW_S:
            return [f"delivery.slow_window_s is not within {LEAST_WINDOW_S} to {MOST_WINDOW_S}"]
        return []
