"""The settings of a device that serves others of its site: the table `[peers]` of `agent.toml`."""

from __future__ import annotations

import ipaddress
import re
from typing import Final, NamedTuple

import msgspec

MAX_AT_ONCE: Final = 64
LEAST_BYTES_PER_S: Final = 64 * 1024
"""For each that fetches at the same time: who gets less than 32 KiB/s gives up."""

EXAMPLE: Final = "such as 192.168.1.20:8471"

_ADDRESS: Final = re.compile(r"(?:\[([0-9a-f:.]{2,45})\]|([0-9.]{7,15})):([1-9][0-9]{0,4})")
_MAX_PORT: Final = 65535


class Address(NamedTuple):
    """An IP address and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class PeerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether and where this device serves others of its site what it has."""

    listen: str | None = None
    """IP address and port, such as `192.168.1.20:8471` or `0.0.0.0:8471`; without it nobody is
    served."""

    address: str | None = None
    """IP address and port that others are told, where they are not those of `listen`: in front of a
    container. Without it the agent tells the address by which it reaches the broker, if `listen`
    names none."""

    at_once: int = 2
    """How many devices are served at the same time; others are told to ask again."""

    bytes_per_s: int = 8 * 1024 * 1024
    """What the device sends to all of them together: most of a link of 100 Mbit/s is left, and
    inference notices nothing."""

    def faults(self) -> list[str]:
        """Return what is wrong, each as a line for the operator."""
        if self.listen is None:
            return ["peers.address needs peers.listen"] if self.address is not None else []
        if parse_address(self.listen) is None:
            return [f"peers.listen is not an IP address and a port, {EXAMPLE}"]
        told = parse_address(self.address) if self.address is not None else None
        if self.address is not None and (told is None or is_unspecified(told)):
            return [f"peers.address is not the IP address and port of one device, {EXAMPLE}"]
        if not 1 <= self.at_once <= MAX_AT_ONCE:
            return [f"peers.at_once is not within 1 to {MAX_AT_ONCE}"]
        if self.bytes_per_s < self.at_once * LEAST_BYTES_PER_S:
            return [f"peers.bytes_per_s is below {LEAST_BYTES_PER_S} for each of peers.at_once"]
        return []


def parse_address(text: str) -> Address | None:
    """Return an IP address and a port, or None if a text is no such thing."""
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found[3]) > _MAX_PORT:
        return None
    try:
        host = ipaddress.ip_address(found[1] or found[2])
    except ValueError:
        return None
    is_bracketed = found[1] is not None
    return Address(str(host), int(found[3])) if is_bracketed == (":" in str(host)) else None


def is_unspecified(address: Address) -> bool:
    """Tell whether an address stands for all addresses of a device."""
    return ipaddress.ip_address(address.host).is_unspecified


def told_address(settings: PeerSettings, own: str) -> Address | None:
    """Return where other devices reach this one.

    Args:
        settings: The settings of this device, without faults.
        own: The IP address by which it reaches the broker; empty if it is not known.

    Returns:
        The address; None if it serves nobody, or where it does is not known.
    """
    listen = parse_address(settings.listen) if settings.listen is not None else None
    if listen is None:
        return None
    if settings.address is not None:
        return parse_address(settings.address)
    if not is_unspecified(listen):
        return listen
    try:
        host = ipaddress.ip_address(own)
    except ValueError:
        return None
    if isinstance(host, ipaddress.IPv6Address):
        host = host.ipv4_mapped or host
    is_reached = ":" in listen.host or host.version == 4  # noqa: PLR2004 - all IPv4 addresses
    # An address that means something on one link only cannot be told.
    if not is_reached or host.is_link_local or host.is_unspecified:
        return None
    return Address(str(host), listen.port)
