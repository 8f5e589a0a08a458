"""What it costs to switch from one variant to another, in answers. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from agent.select.estimates import Estimates
from agent.select.outlook import (
    Prediction,
)

SWITCH_ANSWERS: Final = 1.5
"""What a switch costs beside the loading, in answers: events, caches, a gap between two workers."""

LOADING: Final = 0.1
"""Share of the answers that is lost while a variant is loaded: loading slows the serving one."""


class Costs:
    """What switches cost, in answers."""

    def __init__(self, able: Iterable[Prediction], known: Estimates) -> None:
        self._load_s = {o.candidate.name: o.candidate.load_s for o in able}
        self._per_s = known.demand_per_s

    def of(self, before: str, after: str) -> float:
        """Return the cost of a switch, in either direction."""
        return switch_answers(self._load_s[before], self._load_s[after], self._per_s)


def switch_answers(before_s: float, after_s: float, per_s: float) -> float:
    """Return what a switch costs, in answers.

    Args:
        before_s: Time to load the one variant.
        after_s: Time to load the other one.
        per_s: Requests a second.
    """
    return SWITCH_ANSWERS + LOADING * per_s * (0.5 * (before_s + after_s))
