"""The settings of deliveries: the table `[delivery]` of `agent.toml`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from agent.install.fetch.sources import DELTA, HTTP, LOCAL, MQTT, MULTICAST, SourceName


class DeliverySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the content of packages comes to this device."""

    sources: tuple[SourceName, ...] = (LOCAL, DELTA, HTTP, MULTICAST, MQTT)
    """What is tried, in this order: `local` other packages on this device, `delta` the difference
    to a file that is here, `http` range requests where the controller has links, `multicast`
    messages that the controller sends once for many devices, `mqtt` messages for this one.
    The signed index and the manifest come by messages where nothing else brings them."""

    ca_file: Path | None = None
    """Authority of the servers of `http`, beside `broker.ca_file` and those of the system."""

    clear_text: bool = False
    """`http` without TLS from other machines: for closed networks. What comes is checked anyway;
    without TLS others may read it."""

    def faults(self) -> list[str]:
        """Return what is wrong, each as a line for the operator."""
        if len(set(self.sources)) != len(self.sources):
            return ["delivery.sources names a source twice"]
        if not {HTTP, MQTT} & set(self.sources):
            return ['delivery.sources needs "http" or "mqtt": nothing else brings a whole package']
        return []
