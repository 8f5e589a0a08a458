"""Which boot of the device this is, and how long ago it was."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

MAX_ID: Final = 64


class Boot(NamedTuple):
    """A boot of the device."""

    id: str
    """Another one for each boot; empty if it is not known."""

    uptime_s: Callable[[], float]
    """Returns the time since the boot, also that in which the device slept."""


def this_boot(procfs: Path) -> Boot:
    """Return the present boot.

    Args:
        procfs: Where procfs is mounted; `random(4)` describes the file `boot_id` in it.
    """
    try:
        text = (procfs / "sys/kernel/random/boot_id").read_bytes()[:MAX_ID]
    except OSError:
        text = b""
    return Boot(text.decode(errors="replace").strip(), _uptime_s)


def _uptime_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
