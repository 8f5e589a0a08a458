"""Whether packages may cost a network, or the storage, anything more just now. Pure.

Rules:
- An install goes on while something is left, so it runs over a bound by what is under way at most.
- A network that brings no whole files brings deltas and compressed files, the signed index and the
  manifest, and whatever lacks no more than `SMALL_BYTES`.
- A repair counts like an install. It waits for no hours and for no delta, and it may use each bound
  once more: the device may serve nothing meanwhile, and storage that damages its files again and
  again must not cost without end.
- Where the clock jumps, two days' worth within 24 hours are the end, as
  `agent.install.budget.ledger` counts them.
  Without a bound for days, a jump into another month gives the bytes of that month.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from typing import Final, NamedTuple

import msgspec

from agent.install.budget.ledger import (
    DATE_CHARS,
    DAY_S,
    MONTH_CHARS,
    WRITES,
    Ledger,
    rest_s,
    used,
)
from agent.install.budget.settings import NetworkSettings
from agent.install.window import Local, opens_s
from wire.console.sizes import bytes_of_text, bytes_text
from wire.windows import parse_window

SMALL_BYTES: Final = 64 * 1024
REPAIR_FACTOR: Final = 2
JUMP_FACTOR: Final = 2

LONGEST_DATE_S: Final = 50 * 3600.0
LONGEST_MONTH_S: Final = 33 * DAY_S
"""Within these the date, and the month, certainly change."""

ROUNDS: Final = 8
"""A wait ends in another: the month on the first at midnight, the hours at one o'clock."""


class Wanted(NamedTuple):
    """What an install is about to fetch."""

    lacking_bytes: int = 0
    is_content: bool = False
    """Whether it is a file of the package as it is, not a delta."""

    is_repair: bool = False
    is_local: bool = False
    """Whether no network brings it: only the storage is asked."""


class Bounds(NamedTuple):
    """What is bounded now."""

    network: NetworkSettings | None
    """None if the network in use has no bounds."""

    write_bytes_per_day: int | None


class Refusal(NamedTuple):
    """An install may not go on."""

    why: str
    until_s: float | None
    """Wall time; None if no time alone ends it."""

    needs_delta: bool


class Moment(NamedTuple):
    """All that a decision depends on, beside the bounds."""

    ledger: Ledger
    """What was used, as of now."""

    wanted: Wanted
    now_s: float
    """Wall time, seconds since 1970."""

    local: Local
    """Converts it."""

    @property
    def factor(self) -> int:
        """How often each bound may be used."""
        return REPAIR_FACTOR if self.wanted.is_repair else 1

    @property
    def date(self) -> str:
        """What the clock on the wall shows."""
        return date_of(self.local(self.now_s))

    def later(self, at_s: float) -> Moment:
        """Return a later moment at which nothing more has been used."""
        clock_s = self.ledger.clock_s + at_s - self.now_s
        ledger = msgspec.structs.replace(self.ledger, clock_s=clock_s)
        return self._replace(ledger=ledger, now_s=at_s)


class _Block(NamedTuple):
    why: str
    ends_s: Callable[[], float | None]
    needs_delta: bool = False


def decide(bounds: Bounds, moment: Moment) -> Refusal | None:
    """Decide whether an install goes on.

    Args:
        bounds: What is bounded now.
        moment: What it wants, and what was used before.

    Returns:
        Why it does not, or None if it does.
    """
    blocks = list(_blocks(bounds, moment))
    if not blocks:
        return None
    ends_s = [math.inf if (end_s := each.ends_s()) is None else end_s for each in blocks]
    last = blocks[ends_s.index(max(ends_s))]
    return Refusal(last.why, _until_s(bounds, moment), last.needs_delta)


def refusal_text(refusal: Refusal, local: Local) -> str:
    """Return why an install waits, and until when, as a line for people."""
    if refusal.until_s is None:
        return f"{refusal.why}; it goes on by another network"
    when = local(refusal.until_s).strftime("%Y-%m-%d %H:%M %z").rstrip()
    return f"{refusal.why}; it goes on at {when}"


def date_of(at: datetime) -> str:
    """Return a date as the ledger has it."""
    return f"{at.year:04}-{at.month:02}-{at.day:02}"


def share_text(used_bytes: int, bound_bytes: int | None) -> str:
    """Return how much of something is used, such as `12.4 of 50.0 MiB`."""
    return bytes_text(used_bytes) if bound_bytes is None else bytes_of_text(used_bytes, bound_bytes)


def _until_s(bounds: Bounds, moment: Moment) -> float | None:
    """Return when nothing holds an install any more, if nothing more is used until then."""
    then = moment
    for _ in range(ROUNDS):
        ends_s = [each.ends_s() for each in _blocks(bounds, then)]
        if None in ends_s:
            return None
        if not ends_s:
            break
        last_s = max(end_s for end_s in ends_s if end_s is not None)
        then = moment.later(max(then.now_s, last_s))
    return then.now_s


def _blocks(bounds: Bounds, moment: Moment) -> Iterator[_Block]:
    """Yield what holds an install at a moment."""
    network = bounds.network
    if network is not None and not moment.wanted.is_local:
        yield from _of_network(network, moment)
        yield from _of_day(network.name, network.bytes_per_day, moment)
        yield from _of_month(network.name, network.bytes_per_month, moment)
    yield from _of_day(WRITES, bounds.write_bytes_per_day, moment)


def _of_network(network: NetworkSettings, moment: Moment) -> Iterator[_Block]:
    wanted = moment.wanted
    if 0 in {network.bytes_per_day, network.bytes_per_month}:
        yield _Block(f"{network.name} brings no packages", _never)
    if wanted.is_repair:
        return
    window = parse_window(network.hours)
    if window is not None and not window.holds(moment.local(moment.now_s)):
        why = f"{network.name} brings no packages outside {network.hours}"
        yield _Block(why, partial(opens_s, window, moment.now_s, moment.local))
    if wanted.is_content and wanted.lacking_bytes > SMALL_BYTES and not network.is_full:
        size = share_text(wanted.lacking_bytes, None)
        only = f"{network.name} brings deltas only (full = false)"
        why = f"{only}, and there is none to a file of {size}"
        yield _Block(why, _never, needs_delta=True)


def _of_day(name: str, bound_bytes: int | None, moment: Moment) -> Iterator[_Block]:
    if not bound_bytes:
        return
    now, bound = used(moment.ledger, moment.date, name), moment.factor * bound_bytes
    verb = "installs have written" if name == WRITES else f"{name} has used"
    if now.day_bytes >= bound:
        why = f"{verb} {share_text(now.day_bytes, bound_bytes)} today"
        yield _Block(why, partial(_change_s, moment, LONGEST_DATE_S, DATE_CHARS))
    if now.last_day_bytes >= JUMP_FACTOR * bound:
        why = f"{verb} {share_text(now.last_day_bytes, bound_bytes)} within 24 hours"
        yield _Block(why, partial(_rest_end_s, moment, name))


def _of_month(name: str, bound_bytes: int | None, moment: Moment) -> Iterator[_Block]:
    if not bound_bytes:
        return
    now, bound = used(moment.ledger, moment.date, name), moment.factor * bound_bytes
    if now.month_bytes >= bound:
        why = f"{name} has used {share_text(now.month_bytes, bound_bytes)} this month"
        yield _Block(why, partial(_change_s, moment, LONGEST_MONTH_S, MONTH_CHARS))


def _never() -> None:
    return None


def _rest_end_s(moment: Moment, name: str) -> float:
    return moment.now_s + rest_s(moment.ledger, name)


def _change_s(moment: Moment, within_s: float, chars: int) -> float:
    """Return the first whole second at which the beginning of the date is another.

    Args:
        moment: Now.
        within_s: It is another then.
        chars: How much of the date: the day, or the month.
    """
    before_s = math.floor(moment.now_s)
    after_s = before_s + math.ceil(within_s)
    today = moment.date[:chars]
    while after_s - before_s > 1:
        middle_s = (before_s + after_s) // 2
        if date_of(moment.local(middle_s))[:chars] == today:
            before_s = middle_s
        else:
            after_s = middle_s
    return after_s
