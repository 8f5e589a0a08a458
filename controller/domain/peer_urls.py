"""Decides which address a device may give to the devices of its site as its own. Pure.

Rules:
- A device may lie, and others will send requests there. So it gives an IP address and a port, no
  name and no path, and the address lies in a network that the operator allows.
- Only one form is taken: two programs could read any other one differently.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Final, TypeAlias

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

PRIVATE: Final = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "fc00::/7")
"""RFC 1918, 3927 and 4193."""

MAX_URL_CHARS: Final = 64
MAX_PORT: Final = 65535
FORM: Final = "http://ADDRESS:PORT with an IP address, and an IPv6 address in brackets"

_FORM: Final = re.compile(
    r"http://(?:([0-9.]{7,15})|\[([0-9A-Fa-f:]{2,39})\]):([1-9][0-9]{0,4})", re.ASCII
)
_BROADCAST: Final = ipaddress.IPv4Address("255.255.255.255")


def why_refused(url: str, networks: Sequence[Network] | None) -> str:
    """Say why an address must not be given to other devices.

    Args:
        url: As a device says it.
        networks: Where it may be; None for anywhere.

    Returns:
        What is wrong with it, to follow its name; empty if nothing is. It repeats nothing of a
        text that is no address.
    """
    address = _address(url)
    if address is None:
        return f"is not {FORM}"
    fault = ""
    if address.is_unspecified or address.is_multicast or address == _BROADCAST:
        fault = "is not the address of one device"
    elif isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        fault = "is an IPv4 address in the form of IPv6"
    elif address.version == 6 and address.is_link_local:  # noqa: PLR2004 - of the protocol
        fault = "means something only together with an interface of the device"
    elif networks is not None and not any(address in network for network in networks):
        fault = "is in none of peers.networks"
    return fault and f"names {address}, which {fault}"


def _address(url: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    found = _FORM.fullmatch(url) if len(url) <= MAX_URL_CHARS else None
    if found is None or int(found[3]) > MAX_PORT:
        return None
    try:
        return ipaddress.ip_address(found[1] or found[2])
    except ValueError:
        return None
