"""Amounts with their units as people read them: `12.3 ms`, `1.5 MiB`, `71.2 °C`, `4.2/s`. Pure.

Rules:
- A unit is one of UCUM, as in `telemetry.metrics`; what stands in braces, or is a ratio, is shown
  without a unit.
- Bytes and short times are shown in the unit that suits them: 0.0057 s is 5.7 ms.
- Four digits are enough for a person; programs get JSON or CSV.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

from telemetry.metrics import known
from wire.console.sizes import KIB, UNITS, bytes_text

BYTES: Final = "By"
SHOWN: Final = {"ms": "ms", "s": "s", "Cel": "\N{DEGREE SIGN}C"}
WITHOUT: Final = {"", "1"}
TIMES_S: Final = (("s", 1.0), ("ms", 1e-3), ("\N{MICRO SIGN}s", 1e-6))
"""Units of time, and how long they are."""

PER_S: Final = "/s"
UNKNOWN: Final = "-"
MAX_PLAIN: Final = 1e7
"""From here on a number is shown with an exponent."""


class Unit(NamedTuple):
    """What the values of a column are measured in."""

    name: str = ""
    """Of UCUM."""

    per_s: bool = False


class Scale(NamedTuple):
    """How an axis shows its values."""

    divisor: float
    unit: str
    """Empty for plain numbers."""


def unit_of(metric: str, statistic: str) -> Unit:
    """Return what a statistic of a metric is measured in.

    Args:
        metric: Its name; one that is not known has no unit.
        statistic: Such as `p95`, `rate` or `count`.

    Returns:
        The unit.
    """
    found = known(metric)
    is_rate = statistic == "rate"
    if found is None or (found.kind != "sum" and statistic in {"rate", "count"}):
        return Unit("", is_rate)  # how many values there were
    return Unit(found.unit, is_rate)


def quantity_text(value: object, unit: Unit) -> str:
    """Return a value of a statistic with its unit.

    Args:
        value: A number; anything else is unknown.
        unit: What it is measured in.

    Returns:
        Such as `12.3 ms`.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return UNKNOWN
    per = PER_S if unit.per_s else ""
    if unit.name == BYTES:
        sign = "-" if value < 0 else ""
        return f"{sign}{bytes_text(abs(value))}{per}"
    divisor, shown = _scaled(abs(value), unit.name)
    return f"{number_text(value / divisor)}{' ' if shown else ''}{shown}{per}"


def number_text(value: float) -> str:
    """Return a finite number with about four digits."""
    if value and (abs(value) >= MAX_PLAIN or abs(value) < 1e-4):  # noqa: PLR2004 - four digits
        return f"{value:.3e}"
    if float(value).is_integer() or abs(value) >= 1000:  # noqa: PLR2004 - four digits
        return f"{value:.0f}"
    return f"{value:.4g}"


def unit_text(name: str) -> str:
    """Return a unit as it is shown; empty for a ratio and for what is counted."""
    return "" if name in WITHOUT or name.startswith("{") else SHOWN.get(name, name)


def scale_of(values: Iterable[float], unit: Unit) -> Scale:
    """Return how an axis with these values shows them: all in one unit.

    Args:
        values: Finite numbers.
        unit: What they are measured in.

    Returns:
        The scale.
    """
    per = PER_S if unit.per_s else ""
    greatest = max((abs(value) for value in values), default=0.0)
    if unit.name != BYTES:
        divisor, shown = _scaled(greatest, unit.name)
        return Scale(divisor, shown + per)
    power = sum(greatest >= KIB**each for each in range(1, len(UNITS)))
    return Scale(KIB**power, UNITS[power] + per)


def _scaled(size: float, name: str) -> Scale:
    """Return the divisor and the unit that suit an amount: a time below 1 gets a smaller unit."""
    lengths = dict(TIMES_S)
    if name not in lengths or size == 0:
        return Scale(1.0, unit_text(name))
    smaller = [(shown, length / lengths[name]) for shown, length in TIMES_S]
    smaller = [(shown, divisor) for shown, divisor in smaller if divisor <= 1.0]
    shown, divisor = next((each for each in smaller if size >= each[1]), smaller[-1])
    return Scale(divisor, shown)
