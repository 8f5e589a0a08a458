"""How requests are run: joined with others, or one sample at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_BATCH: Final = 256
MAX_COMPANY_MS: Final = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """How requests are run. May be changed while the model serves.

    Raises:
        ValueError: A number is out of bounds.
    """

    max_batch: int = 8
    """Requests, and samples, that may be joined into one run. Most of what joining can save is
    saved by eight, and the eighth waits for no more than seven others."""

    company_ms: float = 0.0
    """How long a request waits for others to join it. By default only those that wait already
    are joined, which delays nobody."""

    stream: bool = False
    """Whether to join nothing and to run even the samples of one request one at a time: it takes
    the least memory and the most time."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_batch <= MAX_BATCH:
            raise ValueError(f"max_batch is not within 1 to {MAX_BATCH}")
        if not 0 <= self.company_ms <= MAX_COMPANY_MS:
            raise ValueError(f"company_ms is not within 0 to {MAX_COMPANY_MS:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What holds for one conversation with a worker."""

    timeout_s: float
    """How long the worker may take for each of its answers."""

    most: int = 1
    """Requests and samples that may be joined."""

    company_s: float = 0.0
    stream: bool = False
