"""The windows of rules: whole minutes, wherever in a minute a rule is judged. Pure.

Telemetry is stored by the minute. A window that ended at the moment of the look would hold a part
of the newest minute, and all of the one in which it begins: constant traffic would look different
at each moment, and `fleet alert test` would judge otherwise than the controller did.

Rules:
- A window ends with a minute that is over, and a length that is not whole minutes is the next one
  that is. So two windows that are not to overlap share no minute.
- A window that only hours or days can answer begins and ends with one. Else it would be longer than
  the one that it is compared with.
- A statistic that says how much there was needs minutes that devices have reported wholly: the
  window ends a report interval earlier. Others are as right with a part of the values, and do not
  wait.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from telemetry.server.levels import MINUTES, Level
from telemetry.server.question import SECONDS_PER_MINUTE

AMOUNTS: Final = frozenset({"count", "total", "rate"})
LATE_S: Final = 60.0
"""How long devices may take to report a minute: most report each 10 s, and may be told to report
each minute."""

REPORTING_S: Final = 900.0
"""A device that has measured nothing for so long is silent, however long a window is."""


class Window(NamedTuple):
    """A time of whole minutes."""

    since_s: float
    until_s: float


def late_s(statistic: str, report_every_s: float) -> float:
    """Return how long after its end a minute can be used.

    Args:
        statistic: What is taken of it.
        report_every_s: How often devices are asked to report.
    """
    return max(LATE_S, report_every_s) if statistic in AMOUNTS else 0.0


def window(
    now_s: float, length_s: float, *, late_s: float = 0.0, ago_s: float = 0.0, rows: Level = MINUTES
) -> Window:
    """Return the newest window of a length.

    Args:
        now_s: The moment of the look, wall time.
        length_s: How long it is.
        late_s: How long ago its last minute must have ended.
        ago_s: How much earlier it is than the newest.
        rows: Of which rows it is made; the length and `ago_s` are whole ones of them.
    """
    newest = math.floor((now_s - late_s) / SECONDS_PER_MINUTE)
    end = newest // rows.minutes * rows.minutes - _minutes(ago_s)
    first = max(end - _minutes(length_s), 0)
    return Window(first * SECONDS_PER_MINUTE, max(end, first) * SECONDS_PER_MINUTE)


def at_least(now_s: float, length_s: float, rows: Level) -> Window:
    """Return the window that ends with the newest minute and is as long, or begins a row earlier.

    Args:
        now_s: The moment of the look, wall time.
        length_s: How long it is at least.
        rows: With which row it begins.
    """
    since_s, until_s = window(now_s, length_s)
    row_s = rows.minutes * SECONDS_PER_MINUTE
    return Window(since_s // row_s * row_s, until_s)


def newest_part(span: Window, now_s: float) -> tuple[int, int]:
    """Return the time in which a device must have measured anything not to be silent.

    Not all of the window: what was counted leaves it earlier than the rest of what a device
    measured before it fell silent.

    Args:
        span: The window.
        now_s: The moment of the look, wall time.

    Returns:
        The first minute, and that of the look.
    """
    part_s = min((span.until_s - span.since_s) / 2, REPORTING_S)
    first = math.floor(span.until_s / SECONDS_PER_MINUTE) - _minutes(part_s)
    return first, math.ceil(now_s / SECONDS_PER_MINUTE)


def _minutes(length_s: float) -> int:
    return math.ceil(length_s / SECONDS_PER_MINUTE)
