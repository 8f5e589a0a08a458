"""What a board does about its own heat: a fan with steps, and a governor of the frequency.

Rules:
- Pure. Both read the chip itself, not the sensor that the agent reads.

Source:
    Fan: the Raspberry Pi 5's, whose steps have a temperature and a hysteresis each (documentation,
    "Configuration: dtparam=fan_temp"). Governor: Linux's `step_wise`, which at each sampling moves
    by one step (drivers/thermal/gov_step_wise.c).
"""

from __future__ import annotations

import itertools
from typing import Final

import msgspec

MAX_STEPS: Final = 32
MAX_W: Final = 1000.0
LONGEST_S: Final = 3600.0
MAX_C: Final = 1000.0
"""A threshold beyond this is a slip; one that no board reaches switches the controller off."""


class FanStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One speed of a fan."""

    on_c: float
    off_c: float
    resistance_ratio: float
    """Share of the thermal resistance that remains at this speed."""

    power_w: float = 0.0


class Fan(FanStep, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fan that the board's own controller switches; its own keys are those of its first speed."""

    faster: tuple[FanStep, ...] = ()
    """Further speeds, each from a higher temperature."""

    @property
    def steps(self) -> tuple[FanStep, ...]:
        """All speeds, slowest first."""
        return (self, *self.faster)

    def step(self, celsius: float, before: int) -> int:
        """Return the speed at a temperature; 0 is off.

        Args:
            celsius: Temperature of the chip.
            before: The speed before.
        """
        steps, now = self.steps, before
        while now < len(steps) and celsius > steps[now].on_c:
            now += 1
        while now > 0 and celsius <= steps[now - 1].off_c:
            now -= 1
        return now

    def faults(self) -> tuple[str, ...]:
        """Return what is impossible about the fan; empty if it is possible."""
        steps = self.steps
        pairs = tuple(itertools.pairwise(steps))
        rules = (
            (len(steps) <= MAX_STEPS, f"has more than {MAX_STEPS} speeds"),
            (all(s.off_c < s.on_c for s in steps), "off_c is not below on_c"),
            (
                all(s.off_c >= -MAX_C and s.on_c <= MAX_C for s in steps),
                f"off_c and on_c are not within -{MAX_C:g} to {MAX_C:g}",
            ),
            (
                all(0.0 < s.resistance_ratio <= 1.0 for s in steps),
                "resistance_ratio is not within 0 to 1",
            ),
            (
                all(0.0 <= s.power_w <= MAX_W for s in steps),
                f"power_w is not within 0 to {MAX_W:g}",
            ),
            (
                all(a.on_c < b.on_c and a.off_c < b.off_c for a, b in pairs),
                "faster: the temperatures of the speeds do not rise",
            ),
        )
        return tuple(text for holds, text in rules if not holds)


class Governor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Moves the frequency by steps, in place of the linear throttling."""

    ratios: tuple[float, ...]
    """Frequencies over the greatest one, from 1 downwards."""

    hot_c: float
    """At or above this, each sampling moves one step down."""

    cool_c: float
    """At or below this, each sampling moves one step up; in between nothing moves."""

    interval_s: float = 1.0
    """Time between samplings."""

    def step(self, celsius: float, before: int) -> int:
        """Return the index of the frequency after a sampling.

        Args:
            celsius: Temperature of the chip.
            before: The index before.
        """
        if celsius >= self.hot_c:
            return min(before + 1, len(self.ratios) - 1)
        return max(before - 1, 0) if celsius <= self.cool_c else before

    def faults(self) -> tuple[str, ...]:
        """Return what is impossible about the governor; empty if it is possible."""
        ratios = self.ratios
        falling = all(a > b for a, b in itertools.pairwise(ratios))
        rules = (
            (1 <= len(ratios) <= MAX_STEPS, f"has not 1 to {MAX_STEPS} ratios"),
            (
                bool(ratios) and falling and ratios[0] == 1.0 and ratios[-1] > 0.0,
                "ratios do not fall from 1 and stay above 0",
            ),
            (self.cool_c < self.hot_c, "cool_c is not below hot_c"),
            (
                self.cool_c >= -MAX_C and self.hot_c <= MAX_C,
                f"cool_c and hot_c are not within -{MAX_C:g} to {MAX_C:g}",
            ),
            (
                0.01 <= self.interval_s <= LONGEST_S,  # noqa: PLR2004 - the shortest tick
                f"interval_s is not within 0.01 to {LONGEST_S:g}",
            ),
        )
        return tuple(text for holds, text in rules if not holds)
