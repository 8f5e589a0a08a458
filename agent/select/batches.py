"""How many requests come at once: from pairs that came together, beyond those by chance.

Pairs are counted within a period, where a rate that changes is not taken for batches.

Rules:
- Pure: counts in, the next estimate out.
- No single burst decides, and what came at a great rate does not count for hours after it.

Source:
    Of random batches with a geometric size of mean m, each request has m - 1 others before it, in
    the mean, and the variance of the counts is 2 m - 1 times their mean (Kleinrock, Queueing
    Systems, volume 1, section 4.5).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

WINDOW_S: Final = 0.1
"""Requests that came within such a time may have come together: the threads of one client."""

ALONE: Final = 20.0
"""Requests of which it is supposed, at first, that they came by chance."""

FADES_S: Final = 3600.0
"""How long it is remembered how requests came."""

MOST_SHOWN: Final = 1000.0
"""And of how many requests at most."""

USUAL: Final = 2.0
LEAST_USUAL: Final = 4.0
"""A period tells at most as much as twice the requests that usually come in it, or as so many:
pairs grow with the square of a burst."""

MOST_CHANCE: Final = 0.5
"""Of a period so short that more pairs are chance, nobody can tell."""

LEAST_SHOWN: Final = 1e-3


class Together(msgspec.Struct, frozen=True, kw_only=True):
    """Of some requests, how many came together."""

    requests: float
    pairs: float
    """Of two that came within a short time."""

    within_s: float = WINDOW_S
    """That time: the more there is of it, the more pairs are chance."""


class Batches(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of batches; nothing at the start."""

    requests: float = ALONE
    pairs: float = 0.0
    """Pairs beyond those by chance, of so many requests; faded."""

    @property
    def mean(self) -> float:
        """Mean number of requests that come at once, at least 1."""
        return 1.0 + max(self.pairs, 0.0) / self.requests

    def update(self, told: Together | None, usual: float, period_s: float) -> Batches:
        """Return the estimate after a period.

        Args:
            told: How its requests came; None if that was not seen.
            usual: Requests that usually come in such a period.
            period_s: Its length, above 0.
        """
        kept = math.exp(-period_s / FADES_S)
        shown, pairs = kept * self.requests, kept * self.pairs
        if told is not None and told.requests > 0.0:
            weight = min(max(USUAL * usual, LEAST_USUAL) / told.requests, 1.0)
            shown += weight * told.requests
            pairs += weight * _beyond_chance(told, period_s)
        scale = min(MOST_SHOWN / shown, 1.0) if shown > 0.0 else 1.0
        return Batches(requests=max(scale * shown, LEAST_SHOWN), pairs=scale * pairs)


def together(times_s: Iterable[float]) -> Together:
    """Return how many of some requests came together: within the same tenth of a second.

    Args:
        times_s: When each came.
    """
    windows = Counter(int(at_s / WINDOW_S) for at_s in times_s)
    pairs = sum(count * (count - 1) // 2 for count in windows.values())
    return Together(requests=float(windows.total()), pairs=float(pairs))


def _beyond_chance(told: Together, period_s: float) -> float:
    """Return the pairs beyond those of requests that came at random times of the period."""
    chance = told.within_s / period_s
    if chance > MOST_CHANCE:
        return 0.0
    by_chance = 0.5 * told.requests * max(told.requests - 1.0, 0.0) * chance
    # Those of one batch were counted among the random ones too.
    return (told.pairs - by_chance) / (1.0 - chance)
