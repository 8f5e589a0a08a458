"""Chooses the best of several candidates by goals in the order of their priority. Pure.

Rules:
- A candidate that misses a limit is not chosen.
- A limit says what is enough. So goals without a limit count first, in their order, and then those
  with one, in theirs: `accuracy: at most 1% worse` and `latency` together mean the fastest of those
  that are accurate enough.
- At each goal those stay that are as good as the best, apart from what counts as equal elsewhere:
  5 % of latency, 3 % of memory, 1 % of size, nothing of accuracy.
- What is above the reference's accuracy, by any metric, counts as the reference's: it is chance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from packager.judge.ranking import MEMORY_TOLERANCE, SIZE_TOLERANCE
from packager.search.goals import Change, Goal, missed
from packager.search.judged import LATENCY, MEMORY, SIZE, is_quality
from wire.package.performance import LATENCY_TOLERANCE

TOLERANCES: Final = {
    LATENCY: LATENCY_TOLERANCE,
    MEMORY: MEMORY_TOLERANCE,
    SIZE: SIZE_TOLERANCE,
}
"""Of accuracy, and of each metric, nothing."""


def best(goals: tuple[Goal, ...], candidates: Mapping[str, Mapping[str, Change]]) -> str | None:
    """Return the best candidate.

    Args:
        goals: The goals, the first with the highest priority.
        candidates: Name to what `changes` returned. A figure that is not known counts as the
            reference's.

    Returns:
        Its name, of several as good ones the smallest, then the first in the alphabet; None if all
        miss a limit.
    """
    left = sorted(name for name, found in candidates.items() if missed(goals, found) is None)
    for goal in (*in_order(goals), Goal(metric=SIZE)):
        losses = {name: loss(goal.metric, candidates[name]) for name in left}
        least = min(losses.values(), default=0.0)
        most = max(
            least, (1.0 + least) * (1.0 + TOLERANCES.get(goal.metric, 0.0)) - 1.0
        )  # rounding
        left = [name for name in left if losses[name] <= most]
    return left[0] if left else None


def in_order(goals: tuple[Goal, ...]) -> tuple[Goal, ...]:
    """Return the goals in the order in which their figures count."""
    return tuple(sorted(goals, key=lambda goal: goal.most_loss is not None))


def loss(metric: str, found: Mapping[str, Change]) -> float:
    """Return by how much a figure is worse than the reference's; 0.0 where it is not known."""
    change = found.get(metric)
    if change is None:
        return 0.0
    return max(change.value, 0.0) if is_quality(metric) else change.value
