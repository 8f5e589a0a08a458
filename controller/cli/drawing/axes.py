"""Round numbers for the axes of a plot: of values, and of times. Pure.

Source:
    Heckbert 1990, "Nice numbers for graph labels", Graphics Gems: steps of 1, 2 and 5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

MINUTE_S: Final = 60
HOUR_S: Final = 3600
DAY_S: Final = 86_400
TIME_STEPS_S: Final = (
    *(minutes * MINUTE_S for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * HOUR_S for hours in (1, 2, 3, 6, 12)),
    *(days * DAY_S for days in (1, 2, 7, 14, 28, 91, 364)),
)
MAX_TICKS: Final = 200
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
HUGE: Final = 1e300
LEAST_BAND: Final = 0.01
"""The values of an axis reach over at least this share of the greatest."""


class Axis(NamedTuple):
    """An axis of values."""

    low: float
    high: float
    ticks: tuple[float, ...]
    labels: tuple[str, ...]


class TimeTick(NamedTuple):
    """A named time on an axis."""

    at_s: float
    label: str


def value_axis(values: Sequence[float], ticks: int) -> Axis:
    """Return an axis that holds all values.

    Args:
        values: Finite numbers; none gives an axis from 0 to 1.
        ticks: About so many named values; at least 2.

    Returns:
        The axis; it begins at 0 if the values reach near it.
    """
    least, greatest = min(values, default=0.0), max(values, default=1.0)
    band = max(abs(least), abs(greatest)) * LEAST_BAND or 1.0
    if greatest - least < band:
        least, greatest = least - band / 2, greatest + band / 2
    if 0 <= min(values, default=0.0) <= 0.4 * greatest:
        least = 0.0
    span = greatest - least
    if max(abs(least), abs(greatest)) > HUGE or span < 1 / HUGE:  # steps would overflow
        return Axis(least, greatest, (least, greatest), (f"{least:.3g}", f"{greatest:.3g}"))
    step = nice_step(span / max(ticks - 1, 1))
    first, last = math.floor(least / step + 1e-9), math.ceil(greatest / step - 1e-9)
    found = tuple(number * step for number in range(first, min(last, first + MAX_TICKS) + 1))
    low, high = min(found[0], least), max(found[-1], greatest)
    return Axis(low, high, found, tuple(_label(value, step) for value in found))


def nice_step(least: float) -> float:
    """Return the least of 1, 2 and 5 times a power of ten that is at least as great."""
    power = 10.0 ** math.floor(math.log10(least))
    return next((each * power for each in (1, 2, 5) if each * power >= least), 10 * power)


def time_ticks(begin_s: float, end_s: float, most: int, offset_s: float = 0.0) -> list[TimeTick]:
    """Return round times between two times.

    Args:
        begin_s: Seconds since the epoch.
        end_s: Later.
        most: At most so many.
        offset_s: Of the local time to UTC.

    Returns:
        The times and what a local clock shows then; at midnight it is the date.
    """
    span_s = end_s - begin_s
    if most < 1 or not 0 < span_s < math.inf:
        return []
    step_s = next((step for step in TIME_STEPS_S if span_s / step <= most), TIME_STEPS_S[-1])
    first = math.ceil((begin_s + offset_s) / step_s)
    last = math.floor((end_s + offset_s) / step_s)
    locals_s = [number * step_s for number in range(first, min(last, first + most - 1) + 1)]
    return [TimeTick(at_s - offset_s, time_label(at_s)) for at_s in locals_s]


def time_label(local_s: float) -> str:
    """Return what a clock shows: hours and minutes, at midnight the month and the day."""
    try:
        moment = EPOCH + timedelta(seconds=local_s)
    except OverflowError:
        return ""
    is_midnight = local_s % DAY_S == 0
    return moment.strftime("%m-%d" if is_midnight else "%H:%M")


def _label(value: float, step: float) -> str:
    """Return a named value with as many digits as the step has."""
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    if digits > 6 or max(abs(value), step) >= 1e7:  # noqa: PLR2004 - longer than an axis is wide
        return f"{value:.3g}"
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text
