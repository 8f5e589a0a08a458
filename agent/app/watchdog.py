"""Notifies systemd: ready, stopping, alive. Does nothing without systemd.

Source:
    sd_notify(3): datagrams to the Unix socket named in NOTIFY_SOCKET; WATCHDOG_USEC in
    sd_watchdog_enabled(3).
"""

from __future__ import annotations

import os
import socket

from agent.errors import ConfigError
from agent.serve.settings import ServingSettings
from wire.clock import Clock

READY = "READY=1"
STOPPING = "STOPPING=1"
ALIVE = "WATCHDOG=1"


def notify(message: str) -> bool:
    """Send a message to systemd.

    Args:
        message: One or more `KEY=value` lines.

    Returns:
        Whether systemd got it.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    target = f"\0{address[1:]}" if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        try:
            sock.sendto(message.encode(), target)
        except OSError:
            # The agent must go on without its service manager.
            return False
    return True


class Watchdog:
    """Sends ALIVE as often as systemd expects it.

    Args:
        clock: For the interval.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._every_s = watchdog_interval_s()
        self._due_s = float("-inf")

    def tick(self) -> None:
        """Send ALIVE if it is due."""
        now_s = self._clock.monotonic_s()
        if self._every_s is not None and now_s >= self._due_s:
            self._due_s = now_s + self._every_s
            notify(ALIVE)


def check_start_timeout(start_timeout_s: float) -> None:
    """Refuse a longer wait for a worker than usual, during which systemd would end the agent.

    The usual wait is never refused: an agent whose unit has a shorter watchdog starts as it did.

    Args:
        start_timeout_s: How long the agent may wait for one.

    Raises:
        ConfigError: systemd waits less long.
    """
    half_s = watchdog_interval_s()
    is_longer = start_timeout_s > ServingSettings().start_timeout_s
    if is_longer and half_s is not None and start_timeout_s >= 2 * half_s:
        raise ConfigError(
            f"serving: start_timeout_s is {start_timeout_s:g}, and systemd takes the agent for "
            f"hung after {2 * half_s:g} s",
            remedy="set WatchdogSec= of fleet-agent.service higher, in a drop-in",
        )


def watchdog_interval_s() -> float | None:
    """Return how often to send ALIVE, in seconds, or None if systemd does not expect it.

    Half the time that systemd allows, as sd_watchdog_enabled(3) advises.
    """
    allowed_us = os.environ.get("WATCHDOG_USEC", "")
    pid = os.environ.get("WATCHDOG_PID", "")
    if not allowed_us.isdigit() or int(allowed_us) == 0 or pid not in {"", str(os.getpid())}:
        return None
    return int(allowed_us) / 2_000_000
