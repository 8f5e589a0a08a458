"""Which kind a metric has, so that no device can change it for the fleet. Pure.

Rules:
- A metric that agents report has the kind that `telemetry.metrics` says. Any other one has that of
  its oldest series.
- Points of another kind are refused, and series of another kind that are stored from before are not
  read.
"""

from __future__ import annotations

from collections.abc import Sequence

from telemetry.metrics import KINDS, Kind, known
from telemetry.server.rows import Series


def kind_of(metric: str, oldest: Kind) -> Kind:
    """Return the kind that a metric has.

    Args:
        metric: Its name, or an old one of it.
        oldest: The kind of its oldest series.
    """
    named = known(metric)
    return oldest if named is None else named.kind


def of_its_kind(metric: str, found: Sequence[Series]) -> list[Series]:
    """Return the series of the kind that a metric has.

    Args:
        metric: Its name, or an old one of it.
        found: All its series, the oldest first.
    """
    return [one for one in found if one.kind == kind_of(metric, found[0].kind)]


def other_kind(metric: str, right: Kind, sent: Kind) -> str:
    """Return why a point is refused whose kind is not that of its metric."""
    return f"`{metric}` is a {KINDS[right]}, and this is a {KINDS[sent]}"
