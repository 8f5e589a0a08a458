"""Settings of `[peers]` in `controller.toml`: devices that fetch packages from neighbours. Pure.

Rules:
- Without a label there are no peers.
- Nothing outside the networks is ever named to a device.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Final

import msgspec

from controller.domain.peer_urls import PRIVATE, Network
from controller.domain.selectors import is_label_key

MOST: Final = 2
MAX_MOST: Final = 8
MAX_NETWORKS: Final = 64


class PeersConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether devices are told to fetch packages from devices of the same site."""

    label: str | None = None
    """Devices with the same value of this label are of one site; without the label a device has no
    peers. None: nobody has."""

    networks: tuple[str, ...] = PRIVATE
    """Networks in which the addresses of peers must be, such as `192.168.0.0/16`."""

    most: int = MOST
    """Peers that a device is told for one blob."""

    def allowed(self) -> tuple[Network, ...]:
        """Return the networks.

        Raises:
            ValueError: One is none; `faults` names it.
        """
        return tuple(ipaddress.ip_network(each) for each in self.networks)


def faults(config: PeersConfig) -> Iterator[str]:
    """Yield what is impossible in the settings.

    Args:
        config: As read.

    Yields:
        One line for each fault.
    """
    if config.label is None and config != PeersConfig():
        yield 'peers.label is missing: the label whose value is a device\'s site, such as "site"'
    if config.label is not None and not is_label_key(config.label):
        yield f"peers.label is not the key of a label: {config.label[:80]!r}"
    if not 1 <= config.most <= MAX_MOST:
        yield f"peers.most is not within 1 to {MAX_MOST}"
    if not 1 <= len(config.networks) <= MAX_NETWORKS:
        yield f"peers.networks has not 1 to {MAX_NETWORKS} networks"
    for each in config.networks:
        if not _is_network(each):
            yield f"peers.networks has {each[:80]!r}, which is no network such as 192.168.0.0/16"


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return "%" not in text  # the interface of one machine
