"""When the hours of the local day open in which something may begin. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from typing import Final

from wire.windows import DAY_S, Window, seconds_of_day

QUARTER_S: Final = 900
"""Clocks change at full quarters of an hour."""

MAX_STEPS: Final = 4 * 24 * 15
"""Quarters of an hour in fifteen days, within which every window opens."""

Local = Callable[[float], datetime]
"""Returns what the clock on the wall shows at a time in seconds since 1970."""


def opens_s(window: Window, now_s: float, local: Local) -> int | None:
    """Return when a window is open next.

    Args:
        window: The window.
        now_s: Wall time, seconds since 1970.
        local: Converts it.

    Returns:
        Seconds since 1970, not after `now_s` if the window is open now; None if the clock on the
        wall never shows a time within it.
    """
    at_s = math.floor(now_s)
    for _ in range(MAX_STEPS):
        at = local(at_s)
        if window.holds(at):
            return at_s
        to_begin_s = (window.begin_s - seconds_of_day(at)) % DAY_S or DAY_S
        at_s += min(to_begin_s, QUARTER_S - at_s % QUARTER_S)
    return None
