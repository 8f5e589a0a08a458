"""How a device chooses among its variants: the policy that a desired state carries. Pure values."""

from __future__ import annotations

import math
from typing import Final, Literal

import msgspec

EVEN: Final = 0.5
"""The lowest probability that a deadline may have; below it, most answers could be late."""


class Objective(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that `adaptive` keeps; the most accurate variant that keeps them serves."""

    min_retention: float = 0.0
    """Least share of the reference's quality."""

    deadline_ms: float | None = None
    """The time within which an answer is useful; None where only the rate counts."""

    deadline_probability: float = 0.95
    """The probability that an answer comes within the deadline."""

    battery_lasts_s: float = 4 * 3600.0
    """For how long the battery has to last while it discharges."""


class PolicySpec(msgspec.Struct, frozen=True, kw_only=True):
    """How a device chooses among its variants.

    `rules` uses thresholds; `adaptive` uses the objective and what it learns about the device.
    """

    kind: Literal["rules", "adaptive"] = "rules"
    hot_headroom: float = 0.85
    """Above this heat the cheapest variant serves."""

    cool_headroom: float = 0.70
    """Below this heat the best variant serves again."""

    low_battery_ratio: float = 0.20
    """Below this charge, while discharging, the cheapest variant serves."""

    ok_battery_ratio: float = 0.30
    low_memory_bytes: int = 64 * 1024 * 1024
    """Below this much free memory the smallest variant serves; `adaptive` keeps this much free."""

    dwell_s: float = 5.0
    """Least time between two switches, unless the present variant must stop serving."""

    objective: Objective | msgspec.UnsetType = msgspec.UNSET
    """What `adaptive` keeps; unset for the default, as programs that know only `rules` write it."""

    def faults(self) -> tuple[str, ...]:
        """Return the faults of the policy; empty when it is valid."""
        aim = self.aim
        rules = (
            (self.cool_headroom <= self.hot_headroom, "cool_headroom is above hot_headroom"),
            (
                self.low_battery_ratio <= self.ok_battery_ratio,
                "low_battery_ratio is above ok_battery_ratio",
            ),
            (self.low_memory_bytes >= 0, "low_memory_bytes is negative"),
            (0.0 <= self.dwell_s < math.inf, "dwell_s is negative or not a number"),
            (0.0 <= aim.min_retention <= 1.0, "objective.min_retention is not within 0 to 1"),
            (
                aim.deadline_ms is None or 0.0 < aim.deadline_ms < math.inf,
                "objective.deadline_ms is not positive",
            ),
            (
                EVEN <= aim.deadline_probability < 1.0,
                f"objective.deadline_probability is not within {EVEN} to 1",
            ),
            (
                0.0 <= aim.battery_lasts_s < math.inf,
                "objective.battery_lasts_s is negative or not a number",
            ),
        )
        return tuple(text for holds, text in rules if not holds)

    @property
    def aim(self) -> Objective:
        """The objective, or the default one."""
        return Objective() if isinstance(self.objective, msgspec.UnsetType) else self.objective
