"""Decides whether a reading of one thermometer can be trusted.

Rules:
- The class is pure: it takes readings, times and loads, and returns a temperature or None.
- A reading outside `COLDEST_C` to `HOTTEST_C` is dropped. A reading of exactly 0 is dropped too,
  because drivers give it before their first measurement.
- A jump is dropped until it lasts: silicon and its heat sink do not change so fast, but a loose
  wire does. A fall must last longer than a rise, because a wrong fall would look cool.
- A thermometer hangs if its value stays the same for `FROZEN_S` while the mean load of a minute
  changed by `FROZEN_LOAD`. If the load is unknown, the class cannot tell that a thermometer hangs.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

COLDEST_C: Final = -30.0
HOTTEST_C: Final = 150.0
JUMP_C: Final = 60.0
RISE_S: Final = 5.0
FALL_S: Final = 60.0
FROZEN_S: Final = 600.0
FROZEN_LOAD: Final = 0.2
"""This change of the load changes any board's temperature by more than 1 degree, the coarsest
resolution of a sensor."""


class Thermometer(msgspec.Struct):
    """The earlier readings of a thermometer."""

    celsius: float | None = None
    """The last reading that was accepted; None if there was none yet."""

    at_s: float = 0.0
    """Monotonic time of that reading."""

    moved: bool = False
    """Whether the reading has ever changed."""

    same_s: float = 0.0
    """For how long the reading has stayed the same."""

    least_load: float = math.inf
    greatest_load: float = -math.inf
    """The least and the greatest load in that time."""

    @property
    def frozen(self) -> bool:
        """Whether it hangs."""
        varied = self.greatest_load - self.least_load >= FROZEN_LOAD
        return varied and self.same_s >= FROZEN_S

    @property
    def counts(self) -> bool:
        """Whether the device's temperature is unknown while this thermometer's reading is unknown.

        A thermometer that never gave a possible reading, or that hung from its first reading on,
        does not count: it never worked, such as a unit without power or a firmware's constant.
        """
        return self.celsius is not None and (self.moved or not self.frozen)

    def judge(self, celsius: float | None, now_s: float, load: float | None) -> float | None:
        """Check a reading and record it.

        Args:
            celsius: The reading; None if it cannot be read.
            now_s: Monotonic.
            load: Share of the processor that was busy over the last minute or so, if known.

        Returns:
            The reading if it can be trusted, else None.
        """
        if celsius is None or not COLDEST_C <= celsius <= HOTTEST_C or celsius == 0.0:
            return None
        # If the clock went back, the last reading must still not be later than this one.
        self.at_s = min(self.at_s, now_s)
        if self.celsius is not None and self._contradicts(celsius - self.celsius, now_s):
            return None
        self._note(celsius, now_s, load)
        return None if self.frozen else celsius

    def _contradicts(self, change_c: float, now_s: float) -> bool:
        needed_s = RISE_S if change_c > 0.0 else FALL_S
        return abs(change_c) > JUMP_C and now_s - self.at_s < needed_s

    def _note(self, celsius: float, now_s: float, load: float | None) -> None:
        if celsius == self.celsius:
            self.same_s += now_s - self.at_s
        else:
            self.moved = self.celsius is not None
            self.same_s = 0.0
            self.least_load, self.greatest_load = math.inf, -math.inf
        if load is not None:
            self.least_load = min(self.least_load, load)
            self.greatest_load = max(self.greatest_load, load)
        self.celsius, self.at_s = celsius, now_s
