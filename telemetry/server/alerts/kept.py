"""Which rows can answer a rule: minutes, and where those are deleted, hours or days. Pure.

Rules:
- A window that reaches back beyond the minutes that are kept is made of whole hours, or of whole
  days: parts of them are not known any more. So its length must be so, and its offset.
- A rule that nothing can answer is a fault. It is not a rule by which all is well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from telemetry.server.alerts.rules import Absence, AnyRule, BurnRate, Change, Threshold
from telemetry.server.levels import MINUTES, Level
from telemetry.server.question import SECONDS_PER_MINUTE
from wire.durations import DAY_S, HOUR_S, format_duration

LATE_AT_MOST_S: Final = HOUR_S
"""How much earlier than now a window may end, beside what makes its rows whole: devices of a fleet
report at least so often (`telemetry.server.alerts.windows.late_s`)."""

Retained = Mapping[Level, float]
"""How long the rows of each level are kept, in seconds, from fine to coarse."""


class _Past(NamedTuple):
    keys: str
    """The keys of the rule that say how far it looks back."""

    reach_s: float
    whole: Mapping[str, float]
    """What must be whole rows, by key."""


def level_for(reach_s: float, retained: Retained) -> Level | None:
    """Return the finest level whose rows are kept for as long as a window reaches back.

    Args:
        reach_s: How long before now the window begins, if it ends with the newest minute.
        retained: How long rows are kept.

    Returns:
        The level; None if not even days are kept for so long.
    """
    for level, kept_s in retained.items():
        # It ends with a whole row, and the oldest one may be deleted before it is wholly too old.
        if reach_s + LATE_AT_MOST_S + 2 * level.minutes * SECONDS_PER_MINUTE <= kept_s:
            return level
    return None


def faults(rule: AnyRule, retained: Retained) -> Iterator[str]:
    """Yield why the store cannot answer a rule, whatever devices report.

    Args:
        rule: The rule.
        retained: How long rows are kept.

    Yields:
        One line for each fault.
    """
    for past in _pasts(rule):
        level = level_for(past.reach_s, retained)
        far = f"{past.keys} reaches {format_duration(past.reach_s)} back"
        if level is None:
            kept = format_duration(max(retained.values()))
            yield f"{far}, and telemetry is kept for {kept}"
        elif level is not MINUTES:
            for key, length_s in past.whole.items():
                if length_s % (level.minutes * SECONDS_PER_MINUTE):
                    yield (
                        f"{far}, where only whole {level.name}s are kept, and {key} is not whole "
                        f"{level.name}s"
                    )


def remedy(rule: AnyRule) -> str:
    """Return what helps where the store cannot answer a rule.

    Args:
        rule: The rule.
    """
    reach_s = max((past.reach_s for past in _pasts(rule)), default=0.0)
    days = math.ceil((reach_s + LATE_AT_MOST_S + 2 * SECONDS_PER_MINUTE) / DAY_S)
    return f"make it shorter or whole, or set keep_minutes = {days} in [telemetry]"


def _pasts(rule: AnyRule) -> Iterator[_Past]:
    match rule:
        case Change(window_s=window_s, offset_s=offset_s):
            lengths = {"window": window_s, "offset": offset_s}
            yield _Past("window + offset", window_s + offset_s, lengths)
        case Threshold(window_s=window_s):
            yield _Past("window", window_s, {"window": window_s})
        case BurnRate(long_s=long_s, short_s=short_s):
            yield _Past("long", long_s, {"long": long_s})
            yield _Past("short", short_s, {"short": short_s})
        case Absence(metric=None):
            return  # about devices: no telemetry is read
        case Absence(window_s=window_s, lookback_s=lookback_s):
            yield _Past("window", window_s, {"window": window_s})
            if rule.by:
                yield _Past("lookback", lookback_s, {})
