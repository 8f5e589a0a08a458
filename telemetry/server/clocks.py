"""Judges the clocks of devices by what their batches say of them. Pure.

Rules:
- A clock is wrong by what the device learnt in an exchange with the controller
  (`wire.batch_clock`), never by when its batch came: that may have waited at the broker.
- A batch whose device has not learnt it yet is believed if its times agree with the controller's.
  Otherwise it is not stored, and the device is asked to send it again, with what it then knows.
- A clock that is wrong by no more than the tolerance is left as it is. So are the times of a device
  that cannot know, as one of which nobody knows how long it was off, and of older agents.
- Only a batch that was made lately says how the clock is now.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from wire.batch_clock import BatchClock
from wire.durations import format_duration

FRESH_S: Final = 600.0
"""Batches that are older than this say nothing of the present."""

MAX_AHEAD_S: Final = 1e10
"""Three hundred years: no clock is further off."""

KIND: Final = "clock"
"""Of the events about this."""

_RIGHT_AGAIN: Final = 0.5
"""A clock that was wrong is right again below this part of the tolerance, so that one at the limit
is not told of again and again."""


class Judged(NamedTuple):
    """What is to be done with a batch."""

    shift_s: float = 0.0
    """What is taken from its times."""

    ahead_s: float | None = None
    """How far its device's clock is ahead now; None if it does not tell."""

    is_asked_again: bool = False
    """Whether the device is asked to send it again."""


def judged(clock: BatchClock | msgspec.UnsetType, now_s: float, tolerance_s: float) -> Judged:
    """Judge the clock of a batch.

    Args:
        clock: As the batch has it.
        now_s: Wall time at the controller.
        tolerance_s: By how much a clock may be wrong.

    Returns:
        What is to be done.
    """
    if isinstance(clock, msgspec.UnsetType):
        return Judged()
    ahead_s = clock.ahead_s
    if isinstance(ahead_s, msgspec.UnsetType):
        if isinstance(clock.shown_s, msgspec.UnsetType):
            return Judged()
        ahead_s = clock.shown_s - now_s
        if not abs(ahead_s) <= tolerance_s:
            return Judged(is_asked_again=True)
    if ahead_s is None or not abs(ahead_s) <= MAX_AHEAD_S:
        return Judged()
    shift_s = ahead_s if abs(ahead_s) > tolerance_s else 0.0
    return Judged(shift_s, ahead_s if _is_fresh(clock) else None)


def _is_fresh(clock: BatchClock) -> bool:
    sent_s = clock.sent_steady_s
    if isinstance(sent_s, msgspec.UnsetType) or isinstance(clock.shown_s, msgspec.UnsetType):
        return False
    return 0.0 <= sent_s - clock.made_steady_s <= FRESH_S


class Mark(NamedTuple):
    """What is known of a device's clock."""

    ahead_s: float | None
    """How far it is ahead; None if it is right, or nothing is known."""

    news: str = ""
    """What is to be told; empty for nothing."""


def marked(before_s: float | None, ahead_s: float | None, tolerance_s: float) -> Mark:
    """Return what is known of a device's clock after a batch.

    Args:
        before_s: How far it was ahead until now; None if it was right.
        ahead_s: How far it is ahead by the batch; None if that does not tell.
        tolerance_s: By how much a clock may be wrong.

    Returns:
        What is known, and what is to be told.
    """
    if ahead_s is None:
        return Mark(before_s)
    if before_s is None:
        if abs(ahead_s) <= tolerance_s:
            return Mark(None)
        return Mark(ahead_s, f"the clock is {off_text(ahead_s)}: times are corrected")
    if abs(ahead_s) <= tolerance_s * _RIGHT_AGAIN:
        return Mark(None, f"the clock is right again; it was {off_text(before_s)}")
    if abs(ahead_s - before_s) > tolerance_s:
        now = f"the clock is {off_text(ahead_s)}, and was {off_text(before_s)}"
        return Mark(ahead_s, f"{now}: times are corrected")
    return Mark(before_s)


def off_text(ahead_s: float) -> str:
    """Return how wrong a clock is, for people, such as `3h ahead` or `12d4h behind`."""
    off_s = abs(ahead_s)
    unit_s = next((u for u in (86_400.0, 3600.0, 60.0) if off_s >= u * 10), 1.0)
    if off_s >= 365 * 86_400.0:
        text = f"{off_s / (365.25 * 86_400.0):.0f} years"
    else:
        text = format_duration(round(off_s / unit_s) * unit_s)
    return f"{text} {'ahead' if ahead_s > 0 else 'behind'}"


def clock_text(ahead_s: float | None) -> str:
    """Return what is shown of a device's clock; empty if it is right, or nothing is known."""
    return "" if ahead_s is None else f"{off_text(ahead_s)}, corrected"
