"""Which variants a replay can take: those with possible figures.

Rules:
- Pure. A variant that does not declare a latency and a memory is refused: an unknown cost is not
  zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from agent.errors import ReplayError
from agent.replay.board import MOST_MEMORY_BYTES
from agent.select.decisions import Candidate
from wire.profile import NAME_PATTERN

SHORTEST_MS, LONGEST_MS = 1e-6, 1e9
"""A latency outside this range is impossible."""

MOST_RETENTION: Final = 10.0
"""A variant may be better than its reference, but hardly by more."""

MAX_SHOWN_CHARS: Final = 80


def checked(candidates: Sequence[Candidate], pinned: str | None = None) -> dict[str, Candidate]:
    """Return the variants by name.

    Args:
        candidates: The variants to choose from.
        pinned: The variant that always serves, if there is one.

    Returns:
        The variants.

    Raises:
        ReplayError: There are none, two have one name, a latency or memory is impossible, or the
            pinned one is missing or benched.
    """
    by_name = {c.name: c for c in candidates}
    if not by_name:
        raise ReplayError("there are no variants to choose from")
    if len(by_name) != len(candidates):
        raise ReplayError("two variants have one name")
    for c in candidates:
        if faults := _faults(c):
            name = f"{c.name[:MAX_SHOWN_CHARS]!r}"
            raise ReplayError(f"variant {name}: {faults[0]}", remedy="correct its figures")
    if pinned is not None and (pinned not in by_name or by_name[pinned].benched):
        raise ReplayError(f"there is no variant {pinned!r} to pin", remedy=_one_of(by_name))
    return by_name


def _faults(c: Candidate) -> tuple[str, ...]:
    """Return what a replay cannot do with a variant; empty if it can replay it."""
    latency_ms, memory_bytes = c.latency_p50_ms, c.peak_memory_bytes
    rules = (
        (NAME_PATTERN.fullmatch(c.name) is not None, "name is not a plain name"),
        (
            latency_ms is not None and SHORTEST_MS <= latency_ms <= LONGEST_MS,
            f"latency_p50_ms is missing, or not within {SHORTEST_MS:g} to {LONGEST_MS:g}",
        ),
        (
            memory_bytes is not None and 0 <= memory_bytes <= MOST_MEMORY_BYTES,
            f"peak_memory_bytes is missing, or not within 0 to {MOST_MEMORY_BYTES}",
        ),
        (
            c.accuracy is None or 0.0 <= c.accuracy <= MOST_RETENTION,
            f"accuracy is not within 0 to {MOST_RETENTION:g}",
        ),
        (c.worst_error is None or 0.0 <= c.worst_error < math.inf, "worst_error is negative"),
        (
            c.load_ms is None or 0.0 <= c.load_ms <= LONGEST_MS,
            f"load_ms is not within 0 to {LONGEST_MS:g}",
        ),
    )
    return tuple(text for holds, text in rules if not holds)


def _one_of(names: Iterable[str]) -> str:
    return f"choose one of {', '.join(sorted(names))}"
