"""How many bytes packages have cost, by network and day, where the clock may be wrong. Pure.

Rules:
- Bytes belong to the date that the clock on the wall shows. Because that clock may jump, the ledger
  has one of its own, which never goes back: it goes on with the time since the device was booted.
- Nothing tells how long a device was off. So where the wall clock goes beyond all that it showed in
  this boot and at the end of the one before, the ledger's clock goes on by one day more, once for
  each boot: also if the right time comes from the network later, and however often it jumps.
- So a time in the far future counts until a later boot has shown another one. A time before this
  agent was made is none: a clock that was not set yet says nothing about what was shown before.
- An entry counts for its date for 26 hours of that clock, longer than any day. So a device that
  wakes up in 1970 each time is not held for ever by the first day of 1970.
- Whatever dates they have, the entries of the last day count together. They hold no more than two
  days' worth where the clock is right: more only comes of a jump.
- Entries are kept for 62 days, and 128 at most.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import msgspec

from agent.install.budget.settings import MAX_BYTES

SCHEMA_VERSION: Final = 1
HOUR_S: Final = 3600.0
DAY_S: Final = 24 * HOUR_S
DATE_S: Final = 26 * HOUR_S
"""Longer than a day whose clocks are set back."""

DATES_S: Final = 31 * DAY_S + DATE_S
"""Longer than a month."""

KEPT_S: Final = 62 * DAY_S
MAX_ENTRIES: Final = 128
DATE_CHARS: Final = len("2026-11-23")
MONTH_CHARS: Final = len("2026-11")

SET_S: Final = 1735689600.0
"""2025-01-01 UTC, before this agent was made: a clock that shows less has not been set."""

WRITES: Final = "(writes)"
"""Counts what is written to the storage; no network has such a name."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What one date cost."""

    date: str
    """Local, as in `2026-11-23`."""

    began_s: float
    """When the first bytes came, by the ledger's clock."""

    used_bytes: dict[str, int] = {}
    """By the name of a network, or `WRITES`."""


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """What packages have cost."""

    schema_version: int = SCHEMA_VERSION
    clock_s: float = 0.0
    """The ledger's own clock."""

    seen_s: float = 0.0
    """The latest wall time of this boot and of the end of the one before, and what passed since
    then; seconds since 1970."""

    shown_s: float = 0.0
    """The newest wall time of a clock that was set, and what passed since then; 0 if there was
    none."""

    boot: str = ""
    """The boot of the device that `uptime_s` and `ahead_s` belong to; empty if it is not known."""

    uptime_s: float = 0.0
    """Up to when, since that boot, the ledger's clock has gone on."""

    ahead_s: float = 0.0
    """How far the wall clock has moved the ledger's clock in that boot, beside what passed."""

    entries: tuple[Entry, ...] = ()
    """In the order in which they began."""


class Used(NamedTuple):
    """What something has used."""

    day_bytes: int
    """Under this date."""

    month_bytes: int
    """Under all dates of this month."""

    last_day_bytes: int
    """Since the ledger's clock showed a day less, under any date."""


def started(ledger: Ledger, boot: str, uptime_s: float) -> Ledger:
    """Return a ledger at a start of the agent.

    Args:
        ledger: As it was saved.
        boot: Names this boot of the device; empty if it is not known.
        uptime_s: Time since it, also while the device slept.
    """
    if boot and boot == ledger.boot and uptime_s >= ledger.uptime_s:
        return ledger
    return msgspec.structs.replace(
        ledger,
        boot=boot,
        uptime_s=uptime_s,
        ahead_s=0.0,
        seen_s=ledger.shown_s or ledger.seen_s,
    )


def advanced(ledger: Ledger, now_s: float, uptime_s: float) -> Ledger:
    """Return a ledger after some time.

    Args:
        ledger: The ledger.
        now_s: Wall time, seconds since 1970.
        uptime_s: Time since the boot for which it was `started`.
    """
    elapsed_s = max(uptime_s - ledger.uptime_s, 0.0)
    expected_s = ledger.seen_s + elapsed_s
    shown_s = ledger.shown_s + elapsed_s if ledger.shown_s else 0.0
    beyond_s = max(now_s - expected_s, 0.0)
    ahead_s = min(ledger.ahead_s + beyond_s, DAY_S)
    return msgspec.structs.replace(
        ledger,
        clock_s=ledger.clock_s + elapsed_s + ahead_s - ledger.ahead_s,
        seen_s=max(expected_s, now_s),
        shown_s=now_s if now_s >= SET_S else shown_s,
        uptime_s=max(ledger.uptime_s, uptime_s),
        ahead_s=ahead_s,
    )


def counted(ledger: Ledger, date: str, name: str, size_bytes: int) -> Ledger:
    """Return a ledger with more bytes.

    Args:
        ledger: The ledger.
        date: What the clock on the wall shows.
        name: The network, or `WRITES`.
        size_bytes: How many.
    """
    entries = list(ledger.entries)
    place = next((n for n, e in enumerate(entries) if _is_of(ledger, e, date)), None)
    if place is None:
        place = len(entries)
        entries.append(Entry(date=date, began_s=ledger.clock_s))
    entry = entries[place]
    total_bytes = min(entry.used_bytes.get(name, 0) + size_bytes, MAX_BYTES)
    entries[place] = msgspec.structs.replace(
        entry, used_bytes={**entry.used_bytes, name: total_bytes}
    )
    kept = [each for each in entries if _age_s(ledger, each) < KEPT_S]
    return msgspec.structs.replace(ledger, entries=tuple(kept[-MAX_ENTRIES:]))


def used(ledger: Ledger, date: str, name: str) -> Used:
    """Return what something has used.

    Args:
        ledger: The ledger.
        date: What the clock on the wall shows.
        name: The network, or `WRITES`.
    """
    month = date[:MONTH_CHARS]
    of_day = of_month = last_day = 0
    for entry in ledger.entries:
        size_bytes, age_s = entry.used_bytes.get(name, 0), _age_s(ledger, entry)
        of_day += size_bytes if _is_of(ledger, entry, date) else 0
        of_month += size_bytes if entry.date[:MONTH_CHARS] == month and age_s < DATES_S else 0
        last_day += size_bytes if age_s < DAY_S else 0
    return Used(of_day, of_month, last_day)


def rest_s(ledger: Ledger, name: str) -> float:
    """Return after how long the oldest bytes of the last day do not belong to it any more.

    Args:
        ledger: The ledger.
        name: The network, or `WRITES`.
    """
    ages_s = (_age_s(ledger, entry) for entry in ledger.entries if entry.used_bytes.get(name, 0))
    return DAY_S - max((age_s for age_s in ages_s if age_s < DAY_S), default=DAY_S)


def is_possible(ledger: Ledger) -> bool:
    """Tell whether what was read can be a ledger."""
    clocks = (ledger.clock_s, ledger.seen_s, ledger.shown_s, ledger.uptime_s)
    numbers = [*clocks, *(entry.began_s for entry in ledger.entries)]
    sizes = [size for entry in ledger.entries for size in entry.used_bytes.values()]
    return (
        ledger.schema_version == SCHEMA_VERSION
        and all(math.isfinite(number) for number in numbers)
        and 0 <= ledger.ahead_s <= DAY_S
        and all(0 <= size <= MAX_BYTES for size in sizes)
        and len(ledger.entries) <= MAX_ENTRIES
    )


def _is_of(ledger: Ledger, entry: Entry, date: str) -> bool:
    return entry.date == date and _age_s(ledger, entry) < DATE_S


def _age_s(ledger: Ledger, entry: Entry) -> float:
    return max(ledger.clock_s - entry.began_s, 0.0)
