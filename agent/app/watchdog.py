"""Words to systemd: ready, stopping, alive. Silent where there is no systemd.

Source:
    sd_notify(3): datagrams to the Unix socket named in NOTIFY_SOCKET; WATCHDOG_USEC in
    sd_watchdog_enabled(3).
"""

from __future__ import annotations

import os
import socket

READY = "READY=1"
STOPPING = "STOPPING=1"
ALIVE = "WATCHDOG=1"


def notify(message: str) -> bool:
    """Tell systemd something.

    Args:
        message: One or more `KEY=value` lines.

    Returns:
        False when nobody listens.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    target = f"\0{address[1:]}" if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        try:
            sock.sendto(message.encode(), target)
        except OSError:
            # A supervisor that went away must not take the service with it.
            return False
    return True


def watchdog_interval_s() -> float | None:
    """Return how often to say ALIVE, in seconds, or None when nobody waits for it.

    Half the time that systemd allows, as sd_watchdog_enabled(3) advises.
    """
    allowed_us = os.environ.get("WATCHDOG_USEC", "")
    pid = os.environ.get("WATCHDOG_PID", "")
    if not allowed_us.isdigit() or int(allowed_us) == 0 or pid not in {"", str(os.getpid())}:
        return None
    return int(allowed_us) / 2_000_000
