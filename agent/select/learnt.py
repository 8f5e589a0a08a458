"""What outlasts a restart of the agent: the draw of the board, and what is usual by time of day.

Rules:
- Pure. The present is not kept: neither the charge nor what comes in now.
"""

from __future__ import annotations

from typing import Final, Literal, Self

import msgspec

from agent.select.battery import PRIOR, BatteryFit
from agent.select.days import BINS, DayPattern
from agent.select.kalman import Line
from agent.select.usual import Usual

GREATEST: Final = 1e15
"""No figure of a device is greater; one that is was not written by an agent."""

LEAST: Final = 1e-15
"""No board draws less, in watts or in shares of the charge, and no battery holds less."""


class Learnt(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a battery; the fields are those of `BatteryFit`."""

    version: Literal[1] = 1
    in_shares: bool = False
    idle: float | None = None
    """None before a draw was seen."""

    slope: float = 0.0
    slope_variance: float = 0.0
    drawn_s: float = 0.0
    capacity_j: float | None = None
    incomes: DayPattern = DayPattern()
    demands: DayPattern = DayPattern()

    @classmethod
    def of(cls, fit: BatteryFit) -> Self:
        """Return what is worth keeping of a fit; a draw that is a guess is not."""
        kept = cls(capacity_j=fit.capacity_j, demands=fit.usual.demands)
        if fit.draw is None or fit.idle is None or fit.drawn_s <= 0.0:
            return kept
        return msgspec.structs.replace(
            kept,
            in_shares=fit.in_shares,
            idle=fit.idle,
            slope=fit.draw.slope,
            slope_variance=fit.draw.slope_variance,
            drawn_s=fit.drawn_s,
            incomes=fit.incomes,
        )

    def fit(self) -> BatteryFit:
        """Return the fit of an agent that starts with this."""
        line = None
        if self.idle is not None:
            line = Line(
                base=self.idle,
                slope=self.slope,
                base_variance=(PRIOR * self.idle) ** 2,
                slope_variance=self.slope_variance,
            )
        return BatteryFit(
            draw=line,
            in_shares=self.in_shares,
            idle=self.idle,
            drawn_s=self.drawn_s,
            capacity_j=self.capacity_j,
            incomes=self.incomes,
            usual=Usual(demands=self.demands),
        )

    def faults(self) -> tuple[str, ...]:
        """Return what is impossible about it; empty if it is possible."""
        positive = [self.slope, self.slope_variance, self.drawn_s]
        known = [value for value in (self.idle, self.capacity_j) if value is not None]
        patterns = (self.incomes, self.demands)
        for pattern in patterns:
            for slot in pattern.slots:
                positive += [slot.mean, slot.variance, slot.seen_s]
        rules = (
            (
                all(0.0 <= value <= GREATEST for value in positive + known),
                "a figure is negative or too great",
            ),
            (all(value >= LEAST for value in known), "a battery holds or gives nothing"),
            (
                all(len(pattern.slots) in {0, BINS} for pattern in patterns),
                f"a day has not {BINS} half hours",
            ),
        )
        return tuple(text for holds, text in rules if not holds)
