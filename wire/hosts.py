"""Questions about the host of a server, as settings name it: an address or a name. Pure.

Rules:
- A name is never looked up: who answers for names could answer anything.
"""

from __future__ import annotations

import ipaddress
from typing import Final

LOOPBACK_NAME: Final = "localhost"


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach a server there.

    Args:
        host: An address or a name; `localhost` is the only name that counts.

    Returns:
        Whether what is sent there stays on this machine.
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == LOOPBACK_NAME
