"""Values as people read them: text and times.

Rules:
- Control and format characters in text from outside are replaced, or in JSON escaped, so that no
  terminal obeys them.
"""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Collection
from typing import Final

UNKNOWN: Final = "-"
_UNUSUAL: Final = re.compile(r"[^\n -~]")
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400


def plain_text(text: str) -> str:
    """Return text whose control and format characters are replaced by visible ones."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if _is_plain(char) else "\N{REPLACEMENT CHARACTER}" for char in text)


def plain_json(document: str) -> str:
    """Return JSON whose control and format characters are escaped, so nothing of it is lost.

    Args:
        document: It may be indented: its line feeds stay.
    """
    return _UNUSUAL.sub(
        lambda found: found[0] if _is_plain(found[0]) else _escaped(found[0]), document
    )


def value_text(value: object) -> str:
    """Return a value in one line; an unknown value is a dash."""
    if value is None or value == "":
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return plain_text(" ".join(f"{k}={value_text(v)}" for k, v in sorted(value.items())))
    if isinstance(value, list | tuple):
        return plain_text(" ".join(value_text(item) for item in value))
    return plain_text(str(value))


def local_time(at_s: float | None) -> str:
    """Return wall time in the user's time zone, to the second."""
    if at_s is None:
        return UNKNOWN
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))


def zone_text(times_s: Collection[float]) -> str:
    """Return the user's time zone at these times: two where summer time begins or ends between.

    Args:
        times_s: Wall times.

    Returns:
        Such as `CET`, or `CEST, CET`; empty without times.
    """
    ends = (min(times_s), max(times_s)) if times_s else ()
    zones = dict.fromkeys(time.strftime("%Z", time.localtime(at_s)) for at_s in ends)
    return plain_text(", ".join(zones))


def age_text(at_s: float | None, now_s: float) -> str:
    """Return how long ago something was, in one unit."""
    if at_s is None:
        return "never"
    age_s = max(0, int(now_s - at_s))
    for unit_s, unit in ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "m")):
        if age_s >= unit_s:
            return f"{age_s // unit_s}{unit} ago"
    return f"{age_s}s ago"


def _is_plain(char: str) -> bool:
    return unicodedata.category(char) not in {"Cc", "Cf", "Cs", "Zl", "Zp"}


def _escaped(char: str) -> str:
    """Return a character as JSON escapes it: one beyond the first plane by its two halves."""
    halves = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{halves[at : at + 2].hex()}" for at in range(0, len(halves), 2))
