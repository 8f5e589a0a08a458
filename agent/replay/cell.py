"""A battery with an internal resistance: the more power it gives, the more of its charge is lost.

Rules:
- Pure.

Source:
    The internal-resistance model (Rint) with a constant open-circuit voltage: Johnson, Battery
    performance models in ADVISOR, Journal of Power Sources 110 (2002), 321-329. Power at the
    terminals is I (V - I R), so I = (V - sqrt(V^2 - 4 R P)) / (2 R); what leaves the charge is V I.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

MAX_V: Final = 1000.0
MAX_OHM: Final = 1000.0


class Cell(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The electrical side of a battery."""

    voltage_v: float
    """Open-circuit voltage."""

    resistance_ohm: float

    @property
    def most_w(self) -> float:
        """The most power that it can give, in watts."""
        return self.voltage_v**2 / (4.0 * self.resistance_ohm) if self.resistance_ohm else math.inf

    def drain_w(self, power_w: float) -> float:
        """Return the power that leaves the charge.

        Args:
            power_w: Power at the terminals: negative while it charges. Above `most_w` the battery
                gives only that.
        """
        ohm, volt = self.resistance_ohm, self.voltage_v
        if ohm == 0.0:
            return power_w
        root = math.sqrt(max(volt**2 - 4.0 * ohm * power_w, 0.0))
        # V (V - root) / (2 R) without the difference of equal numbers where R is small.
        return 2.0 * volt * min(power_w, self.most_w) / (volt + root)

    def faults(self, busy_w: float) -> tuple[str, ...]:
        """Return what is impossible about the battery; empty if it is possible.

        Args:
            busy_w: Power that the board may need.
        """
        rules = (
            (0.0 < self.voltage_v <= MAX_V, f"voltage_v is not above 0 and at most {MAX_V:g}"),
            (
                0.0 <= self.resistance_ohm <= MAX_OHM,
                f"resistance_ohm is not within 0 to {MAX_OHM:g}",
            ),
        )
        faults = tuple(text for holds, text in rules if not holds)
        if not faults and busy_w > self.most_w:
            faults = (f"can give {self.most_w:.3g} W, less than the board's busy_w",)
        return faults
