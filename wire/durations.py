"""Durations as people write them: `90s`, `15m`, `1h30m`, `2d`, `50ms`. Pure.

Both command lines and the telemetry API read and write durations here, so that they all accept the
same forms.

Rules:
- A number without a unit is refused, because half of the readers would mean another unit; 0 needs
  none.
- The caller limits how long a duration may be; every duration that is read is a finite number.
"""

from __future__ import annotations

import re
from typing import Final

from wire.errors import WireFormatError

MINUTE_S: Final = 60.0
HOUR_S: Final = 3600.0
DAY_S: Final = 24 * HOUR_S
REMEDY: Final = "write it as 90s, 15m, 1h30m or 2d"
UNITS_S: Final = {
    "w": 604_800.0,
    "d": DAY_S,
    "h": HOUR_S,
    "m": MINUTE_S,
    "s": 1.0,
    "ms": 0.001,
}
MAX_SHOWN: Final = 40
_NUMBER = r"[0-9]{1,12}(?:\.[0-9]{1,6})?"
_BARE = re.compile(_NUMBER)
_WHOLE = re.compile(rf"(?:{_NUMBER}(?:ms|[smhdw])){{1,6}}")
_PART = re.compile(f"({_NUMBER})(ms|[smhdw])")


def parse_duration_s(text: str) -> float:
    """Read a duration.

    Args:
        text: Such as `90s`, `15m`, `1h30m`, `2d`, `50ms`; or `0`.

    Returns:
        Seconds.

    Raises:
        WireFormatError: The text is not a duration, or lacks its unit.
    """
    cleaned = text.strip().lower()
    if cleaned == "0":
        return 0.0
    if _BARE.fullmatch(cleaned):
        raise WireFormatError(f"{text[:MAX_SHOWN]!r} has no unit", remedy=REMEDY)
    if _WHOLE.fullmatch(cleaned) is None:
        raise WireFormatError(f"{text[:MAX_SHOWN]!r} is not a duration", remedy=REMEDY)
    return sum(float(number) * UNITS_S[unit] for number, unit in _PART.findall(cleaned))


def format_duration(duration_s: float) -> str:
    """Write a duration so that it can be read back.

    Args:
        duration_s: Seconds, not negative; they are rounded to milliseconds.

    Returns:
        The text, such as `1h30m`, the largest unit first; `0s` for none.
    """
    rest_ms = round(duration_s / UNITS_S["ms"])
    parts = []
    for unit, unit_s in UNITS_S.items():
        count, rest_ms = divmod(rest_ms, round(unit_s / UNITS_S["ms"]))
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
