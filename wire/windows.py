"""Hours of the local day, on all days of the week or on some, such as `mon-fri 22:00-05:00`. Pure.

Rules:
- A window is open when the clock on the wall shows a time within it, its end not included. So a
  change of the clocks may open it twice, or make it shorter, and a window that the change leaves
  out does not open on that day.
- A window may cross midnight. Then it belongs to the day on which it begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Final

import msgspec

DAY_S: Final = 86_400
MAX_WINDOWS: Final = 16
"""How many a rollout may have."""

MAX_WINDOW_CHARS: Final = 64
CHANGE_S: Final = 7_200
"""By how much a change of the clocks may make a wait longer, beside the windows that it leaves out:
those that begin and end within what it skips."""

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
EVERY_DAY: Final = frozenset(range(len(DAYS)))
_DAY: Final = f"(?:{'|'.join(DAYS)})"
_FORM: Final = re.compile(
    rf"(?:({_DAY}(?:-{_DAY})?(?:,{_DAY}(?:-{_DAY})?)*) )?"
    r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)",
    re.ASCII,
)


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the day, in seconds since midnight by the clock on the wall."""

    begin_s: int
    end_s: int
    days: frozenset[int] = EVERY_DAY
    """On which days it begins; Monday is 0."""

    @property
    def length_s(self) -> int:
        """How long it is open."""
        return (self.end_s - self.begin_s) % DAY_S

    def holds(self, at: datetime) -> bool:
        """Tell whether the window is open when the clock on the wall shows this."""
        of_day_s = seconds_of_day(at)
        day = at.weekday() if of_day_s >= self.begin_s else (at.weekday() - 1) % len(DAYS)
        return (of_day_s - self.begin_s) % DAY_S < self.length_s and day in self.days


def parse_window(text: str) -> Window | None:
    """Read a window.

    Args:
        text: Such as `01:00-05:00`, `22:30-04:00` or `mon-fri,sun 22:00-05:00`.

    Returns:
        The window; None if this is none, or one that never opens.
    """
    found = _FORM.fullmatch(text) if len(text) <= MAX_WINDOW_CHARS else None
    if found is None:
        return None
    days, *times = found.groups()
    hours, minutes, end_hours, end_minutes = (int(part) for part in times)
    begin_s, end_s = hours * 3600 + minutes * 60, end_hours * 3600 + end_minutes * 60
    if begin_s == end_s:
        return None
    named = EVERY_DAY if days is None else _days(days)
    return Window(begin_s=begin_s, end_s=end_s, days=named)


def window_faults(texts: Sequence[str]) -> tuple[str, ...]:
    """Return what is wrong with the windows of a rollout, each as one line."""
    lines = [
        f"{text[:MAX_WINDOW_CHARS]!r} is no window that opens, such as 22:00-05:00 or "
        "mon-fri 22:00-05:00"
        for text in texts
        if parse_window(text) is None
    ]
    if len(texts) > MAX_WINDOWS:
        lines.append(f"{len(texts)} windows are more than {MAX_WINDOWS}")
    return tuple(lines)


def longest_wait_s(windows: Iterable[Window]) -> float:
    """Return for how long no window is open at most, also when clocks are changed; 0 for none."""
    return _longest_wait_s(frozenset(windows))


@lru_cache(maxsize=64)
def _longest_wait_s(windows: frozenset[Window]) -> float:
    if not windows:
        return 0.0
    week_s = DAY_S * len(DAYS)
    spans = sorted(
        (week * week_s + day * DAY_S + window.begin_s, window.length_s)
        for week in range(3)
        for window in windows
        for day in window.days
    )
    skips = [
        begin_s
        for begin_s, length_s in spans
        if week_s <= begin_s < 2 * week_s and length_s <= CHANGE_S
    ]
    return max(_longest_s(spans, skip_s) for skip_s in skips or [-CHANGE_S]) + CHANGE_S


def _longest_s(spans: Sequence[tuple[int, int]], skip_s: int) -> int:
    """Return the longest time between spans, without those within what a change skips.

    Args:
        spans: When each begins and how long it is, the first one first.
        skip_s: When the change is.
    """
    longest_s, open_to_s = 0, spans[0][0]
    for begin_s, length_s in spans:
        end_s = begin_s + length_s
        if skip_s <= begin_s and end_s <= skip_s + CHANGE_S:
            continue
        longest_s, open_to_s = max(longest_s, begin_s - open_to_s), max(open_to_s, end_s)
    return longest_s


def opens_in_s(windows: Iterable[Window], at: datetime) -> float:
    """Return when one of some windows opens, if the clocks are not changed before.

    Args:
        windows: The windows.
        at: What the clock on the wall shows.

    Returns:
        In how many seconds; 0 if one is open now, or there is none.
    """
    known = list(windows)
    if not known or any(window.holds(at) for window in known):
        return 0.0
    week_s, of_week_s = DAY_S * len(DAYS), at.weekday() * DAY_S + seconds_of_day(at)
    return min(
        (day * DAY_S + window.begin_s - of_week_s) % week_s
        for window in known
        for day in window.days
    )


def seconds_of_day(at: datetime) -> int:
    """Return the seconds since midnight by the clock on the wall."""
    return at.hour * 3600 + at.minute * 60 + at.second


def _days(text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        begin = DAYS.index(first)
        count = (DAYS.index(last or first) - begin) % len(DAYS) + 1
        found.update((begin + step) % len(DAYS) for step in range(count))
    return frozenset(found)
