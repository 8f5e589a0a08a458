"""The words of a telemetry query as people write them: lists, conditions and times. Pure.

Rules:
- Every time that a caller gives is bounded here, whatever its form: it lies within 1970 and the
  last minute that the store can hold.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from telemetry.errors import QueryError
from telemetry.server.ingest import MAX_MINUTE
from telemetry.server.question import SECONDS_PER_MINUTE
from wire.durations import REMEDY, parse_duration_s
from wire.errors import WireFormatError

MAX_WORDS: Final = 32
MAX_TEXT: Final = 1000
MAX_TIME_S: Final = float(MAX_MINUTE * SECONDS_PER_MINUTE)
"""In the year 6053."""

LEAST_EPOCH_S: Final = 1e9
"""In 2001: no device measured before it. A smaller number is one whose unit is missing."""

EXAMPLE: Final = "2026-01-31T12:00"
_SECONDS = re.compile(r"[0-9]{1,12}(\.[0-9]{1,6})?")


def parse_list(text: str, what: str) -> tuple[str, ...]:
    """Read words between commas.

    Args:
        text: Empty for none.
        what: What they are, for the error.

    Returns:
        The words.

    Raises:
        QueryError: Too many, or an empty one.
    """
    if not text.strip():
        return ()
    words = tuple(word.strip() for word in text[:MAX_TEXT].split(","))
    if len(words) > MAX_WORDS or len(text) > MAX_TEXT or not all(words):
        raise QueryError(
            f"not a list of {what}: {text[:MAX_TEXT]!r}",
            remedy="write a list of words with commas between them",
        )
    return words


def parse_conditions(text: str) -> tuple[tuple[str, str], ...]:
    """Read conditions such as `variant=int8,device=pi-7`.

    Args:
        text: Empty for none.

    Returns:
        Names and values.

    Raises:
        QueryError: One has no name or no equals sign.
    """
    found = []
    for word in parse_list(text, "conditions"):
        name, equals, value = (part.strip() for part in word.partition("="))
        if not name or not equals:
            raise QueryError(f"not a condition: {word!r}", remedy="write name=value")
        found.append((name, value))
    return tuple(found)


def parse_step_s(text: str) -> int:
    """Read the length of a step.

    Args:
        text: A duration such as `5m` or `1h`, in whole seconds.

    Returns:
        Seconds.

    Raises:
        QueryError: Not a duration, too long, or not a whole number of seconds.
    """
    try:
        step_s = parse_duration_s(text)
    except WireFormatError as exc:
        raise QueryError(exc.message, remedy=exc.remedy) from exc
    if not step_s.is_integer():
        raise QueryError(f"a step of {text!r} is not whole seconds")
    if step_s > MAX_TIME_S:
        raise QueryError(f"a step of {text!r} is longer than all telemetry")
    return int(step_s)


def parse_time_s(text: str, now_s: float) -> float:
    """Read a time: a duration ago, seconds since the epoch, or ISO 8601.

    Args:
        text: As written; without a zone it is UTC. 0 is the beginning of all.
        now_s: Wall time.

    Returns:
        Seconds since the epoch; 0 for what is before it.

    Raises:
        QueryError: Not a time, one that is too late, or a small number without a unit.
    """
    text = text.strip()
    if _SECONDS.fullmatch(text):
        at_s = checked_time_s(float(text))
        if 0.0 < at_s < LEAST_EPOCH_S:  # who writes 1 means 1h or so, not the year 1970
            raise QueryError(f"{text!r} has no unit", remedy=f"{REMEDY}; a time as {EXAMPLE}")
        return at_s
    with suppress(WireFormatError):
        return max(now_s - parse_duration_s(text), 0.0)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as exc:
        raise QueryError(
            f"not a time: {text[:MAX_TEXT]!r}",
            remedy=f"write 1h, 2d, seconds since 1970 or {EXAMPLE}",
        ) from exc
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return checked_time_s(max(moment.timestamp(), 0.0))


def checked_time_s(at_s: float) -> float:
    """Return a time that a caller gave as a number.

    Args:
        at_s: Seconds since the epoch.

    Returns:
        The same.

    Raises:
        QueryError: No measurement and no event can have it.
    """
    if not 0.0 <= at_s <= MAX_TIME_S:
        raise QueryError(
            f"not a time: {at_s:g} s since 1970",
            remedy=f"write seconds within 0 to {MAX_TIME_S:.0f}",
        )
    return at_s
