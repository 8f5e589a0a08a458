"""Transfers, as people read them: what has come, how fast, which way, and how long it still takes.

Rules:
- Old figures are told as old: no rate and no end, but for how long there has been no news.
- The time that is left is told coarsely: it is an estimate.
"""

from __future__ import annotations

from collections.abc import Mapping

from wire.console.sizes import bytes_of_text, bytes_text
from wire.console.text import HOUR_S, MINUTE_S, plain_text
from wire.progress import LOCAL, TransferProgress

_COARSE_S = 10


def progress_text(progress: TransferProgress) -> str:
    """Return how far a transfer is.

    Args:
        progress: Its figures.

    Returns:
        One line, such as `12.4 of 42.0 MiB (29 %), 1.2 MiB/s by mqtt, about 25 s left`.
    """
    parts = [done_text(progress.done_bytes, progress.total_bytes)]
    ways = _ways_text(progress.bytes_by_source)
    if progress.silent:
        return f"{parts[0]}{ways}, no news for {about_text(progress.news_age_s)}"
    if progress.rate_bytes_per_s:
        parts.append(f"{bytes_text(progress.rate_bytes_per_s)}/s{ways}")
    elif ways:
        parts[0] += ways
    rest_s = progress.rest_s
    if rest_s:
        parts.append(f"about {about_text(rest_s)} left")
    return ", ".join(parts)


def done_text(done_bytes: int, total_bytes: int) -> str:
    """Return how much has come of how much, in the unit of all: `0.5 of 2.0 MiB (25 %)`."""
    if total_bytes <= 0:
        return bytes_text(done_bytes)
    percent = 100 * min(done_bytes, total_bytes) // total_bytes
    return f"{bytes_of_text(done_bytes, total_bytes)} ({percent} %)"


def about_text(duration_s: float) -> str:
    """Return an estimated time: `8 s`, `40 s`, `2 min 30 s`, `12 min`, `1 h 20 min`."""
    whole_s = max(1, round(duration_s))
    if whole_s < MINUTE_S:
        return f"{whole_s} s"
    if whole_s < 10 * MINUTE_S:
        minutes, rest_s = divmod(round(whole_s / _COARSE_S) * _COARSE_S, MINUTE_S)
        return f"{minutes} min {rest_s} s" if rest_s else f"{minutes} min"
    minutes = round(whole_s / MINUTE_S)
    if minutes < HOUR_S // MINUTE_S:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, HOUR_S // MINUTE_S)
    if hours > 100:  # noqa: PLR2004 - who waits for days needs no minutes
        return f"{hours} h"
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def _ways_text(bytes_by_source: Mapping[str, int]) -> str:
    """Return the ways on which something came, the most first; the device itself is no way."""
    ways = [s for s, size in bytes_by_source.items() if s != LOCAL and size > 0]
    ways.sort(key=lambda source: (-bytes_by_source[source], source))
    return f" by {' and '.join(map(plain_text, ways))}" if ways else ""
