"""The hours of the local day in which installs may begin. Pure.

Rules:
- The window is open when the clock on the wall shows a time within it, its end not included. So a
  change of the clocks may open it twice, or make it shorter, and a window that the change leaves
  out does not open on that day.
- A window may cross midnight.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import datetime
from typing import Final

import msgspec

DAY_S: Final = 86_400
QUARTER_S: Final = 900
"""Clocks change at full quarters of an hour."""

MAX_STEPS: Final = 4 * 24 * 4
"""Quarters of an hour in four days, within which every window opens."""

_FORM: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)", re.ASCII)

Local = Callable[[float], datetime]
"""Returns what the clock on the wall shows at a time in seconds since 1970."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the day, in seconds since midnight by the clock on the wall."""

    begin_s: int
    end_s: int

    def holds(self, at: datetime) -> bool:
        """Tell whether the window is open when the clock on the wall shows this."""
        return (_of_day_s(at) - self.begin_s) % DAY_S < (self.end_s - self.begin_s) % DAY_S


def parse_window(text: str) -> Window | None:
    """Read a window.

    Args:
        text: Such as `01:00-05:00` or `22:30-04:00`.

    Returns:
        The window; None if this is none, or one without length.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    hours, minutes, end_hours, end_minutes = (int(part) for part in found.groups())
    window = Window(begin_s=hours * 3600 + minutes * 60, end_s=end_hours * 3600 + end_minutes * 60)
    return None if window.begin_s == window.end_s else window


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
        to_begin_s = (window.begin_s - _of_day_s(at)) % DAY_S
        at_s += min(to_begin_s, QUARTER_S - at_s % QUARTER_S)
    return None


def _of_day_s(at: datetime) -> int:
    return at.hour * 3600 + at.minute * 60 + at.second
