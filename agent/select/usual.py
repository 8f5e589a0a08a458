"""What is usual on a device over hours: requests, busy processor, other programs. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from agent.select.days import DayPattern
from wire.durations import HOUR_S

RECENT_S: Final = 1800.0
"""Time constant of the load that goes with the clouds of half an hour."""

SOME_S: Final = 1.0


class Usual(msgspec.Struct, frozen=True, kw_only=True):
    """Means of the last hour, and requests by time of day. At first, of all that was seen."""

    demand: float | None = None
    """Requests per second; None before the first period."""

    demands: DayPattern = DayPattern()
    """Requests per second by time of day."""

    other_load: float = 0.0
    """Share of the processor that other programs took."""

    load: float = 0.0
    """Share of the processor that was busy, of half an hour."""

    seen_s: float = 0.0
    """For how long these means were taken."""

    def update(
        self,
        local_s: float,
        load: float,
        other_load: float,
        demand_per_s: float | None,
        period_s: float,
    ) -> Usual:
        """Return what is usual after a period.

        Args:
            local_s: Local time of day at its end.
            load: Share of the period in which the processor was busy, 0 to 1.
            other_load: The same, by other programs.
            demand_per_s: Requests that are expected each second now; None if none could come.
            period_s: Length of the period.
        """
        seen_s = max(self.seen_s + period_s, SOME_S)
        share = period_s / min(seen_s, max(HOUR_S, period_s))
        recently = period_s / min(seen_s, max(RECENT_S, period_s))
        demand, demands = self.demand, self.demands
        if demand_per_s is not None:
            demand = _toward(demand_per_s if demand is None else demand, demand_per_s, share)
            demands = demands.update(local_s, demand_per_s, period_s)
        elif demand is None and (seen := demands.expected(local_s)) is not None:
            demand = seen[0]  # of an agent that has just started
        return Usual(
            demand=demand,
            demands=demands,
            other_load=_toward(self.other_load, other_load, share),
            load=_toward(self.load, load, recently),
            seen_s=self.seen_s + period_s,
        )


def _toward(mean: float, value: float, share: float) -> float:
    return mean + share * (value - mean)
