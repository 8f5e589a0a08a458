"""What is usual at each time of the day: mean and deviation by half hours, learnt over days.

Rules:
- Pure values of a fixed size. The caller gives the local time of day, so time zones and daylight
  saving are its part.
- What was never seen is unknown, not zero.

Source:
    Mean and variance with exponential forgetting: West, Updating mean and variance estimates: an
    improved method, Communications of the ACM 22 (1979), with weights that fade.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from wire.durations import DAY_S

BINS: Final = 48
BIN_S: Final = DAY_S / BINS
FADES_DAYS: Final = 5.0
"""Time constant with which old days fade: a week of work and its weekend both leave a trace."""

FIRST_DAY: Final = 0.3
"""Relative deviation of a day from the single one that was seen."""


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """One bin of the day."""

    mean: float = 0.0
    variance: float = 0.0
    seen_s: float = 0.0
    """Time for which it was seen, faded."""


class DayPattern(msgspec.Struct, frozen=True, kw_only=True):
    """A quantity over the local day."""

    slots: tuple[Slot, ...] = ()
    """One for each half hour; empty before the first measurement."""

    def update(self, at_s: float, value: float, period_s: float) -> DayPattern:
        """Return the pattern after a period in which the quantity had a value.

        Args:
            at_s: Local time of day at the end of the period, in seconds since midnight.
            value: The mean of the period.
            period_s: Length of the period in seconds; at most its last day counts.
        """
        if period_s <= 0.0:
            return self
        slots = list(self.slots or (Slot(),) * BINS)
        left_s, end_s = min(period_s, DAY_S), at_s % DAY_S
        while left_s > 0.0:
            place = math.ceil(end_s / BIN_S) - 1 if end_s > 0.0 else BINS - 1
            here_s = min(left_s, (end_s if end_s > 0.0 else DAY_S) - place * BIN_S)
            slots[place] = _seen(slots[place], value, here_s)
            left_s, end_s = left_s - here_s, place * BIN_S
        return DayPattern(slots=tuple(slots))

    def expected(self, at_s: float) -> tuple[float, float] | None:
        """Return what is usual at a time of day.

        Args:
            at_s: Local time in seconds since midnight.

        Returns:
            Mean and standard deviation; None if this half hour was never seen.
        """
        slot = self.slots[int(at_s % DAY_S / BIN_S)] if self.slots else Slot()
        if slot.seen_s <= 0.0:
            return None
        days = max(slot.seen_s / BIN_S, 1.0)
        return slot.mean, math.sqrt(slot.variance + (FIRST_DAY * slot.mean) ** 2 / days)


def _seen(slot: Slot, value: float, period_s: float) -> Slot:
    # A half hour is seen for half an hour each day, so time in it stands for days.
    kept_s = slot.seen_s * math.exp(-period_s / (FADES_DAYS * BIN_S))
    seen_s = kept_s + period_s
    share, surprise = period_s / seen_s, value - slot.mean
    return Slot(
        mean=slot.mean + share * surprise,
        variance=(1.0 - share) * (slot.variance + share * surprise**2),
        seen_s=seen_s,
    )
