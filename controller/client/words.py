"""Values as people write them, on the command line, in files and in programs: times and shares.

Rules:
- A value that cannot be read is refused, with an example of one that can.
"""

from __future__ import annotations

import re
from typing import Final

from controller.client.errors import ArgumentError
from wire.durations import parse_duration_s
from wire.errors import WireFormatError

MAX_DURATION_S: Final = 10 * 366 * 86_400.0
WHOLE_PERCENT: Final = 100.0
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?")


def parse_duration(text: str, *, option: str) -> float:
    """Read a duration.

    Args:
        text: Such as `90s`, `5m`, `1h30m`, `500ms`, `7d`; or `0`.
        option: The option that it belongs to, for the error.

    Returns:
        Seconds.

    Raises:
        ArgumentError: Not a duration, or longer than ten years.
    """
    try:
        seconds = parse_duration_s(text)
    except WireFormatError as exc:
        raise ArgumentError(f"{option}: {exc.message}", remedy=exc.remedy) from exc
    if seconds > MAX_DURATION_S:
        raise ArgumentError(
            f"{option}: {text!r} is longer than ten years", remedy="give a shorter time, such as 7d"
        )
    return seconds


def parse_percent(text: str, *, option: str) -> float:
    """Read a share of the devices that may be 0.

    Args:
        text: Such as `10%` or `10`.
        option: For the text of a fault.

    Returns:
        The percentage.

    Raises:
        ArgumentError: Not a number, or out of range.
    """
    number = text.strip().removesuffix("%").strip()
    is_number = number.isascii() and _NUMBER.fullmatch(number) is not None
    if is_number and float(number) <= WHOLE_PERCENT:
        return float(number)
    raise ArgumentError(
        f"{option}: {text!r} is not a percentage up to 100%", remedy="write it as 10%"
    )


def parse_agreement(text: str, *, option: str) -> float:
    """Read how often a shadow is to agree.

    Args:
        text: Such as `99%` or `99`.
        option: For the text of a fault.

    Returns:
        The percentage.

    Raises:
        ArgumentError: Not a percentage, or a number up to 1, which people mean as a share of 1.
    """
    percent = parse_percent(text, option=option)
    if 0 < percent <= 1 and "%" not in text:
        raise ArgumentError(
            f"{option}: {text} would be {percent:g} %", remedy=f"write {WHOLE_PERCENT * percent:g}%"
        )
    return percent
