"""What happens to which simulated device: drawn from the seed and the number of the device. Pure.

Rules:
- A draw depends on what it is for and on nothing else: neither on the order of events nor on the
  name of the device. So two runs with one seed meet the same faults.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final
from zlib import crc32

from agent.replay.chance import normal, start, uniform

OFF_S: Final = 60.0
"""Mean time for which a device is switched off."""

INSTALL_FAULTS: Final = (
    "no_space", "damaged", "fails_check", "crash_after_install", "hangs", "restarts",
)  # fmt: skip
"""The faults that are drawn for each install; where two hit, the earlier state decides."""


class Fate:
    """The draws of one device.

    Args:
        seed: Of the simulation.
        number: Of the device.
        faults: The number of each fault that was asked for, by name.
    """

    def __init__(self, seed: int, number: int, faults: Mapping[str, float]) -> None:
        self._seed = seed
        self._number = number
        self._faults = faults

    def draw(self, what: str) -> float:
        """Return a number between 0 and 1 for a purpose."""
        return uniform(self.numbers(what), 0)

    def spread(self, what: str, sigma: float) -> float:
        """Return a factor around 1: log-normal, with that standard deviation of its logarithm."""
        return math.exp(sigma * normal(self.numbers(what), 0))

    def hits(self, fault: str, detail: str = "") -> bool:
        """Tell whether a fault hits this device.

        Args:
            fault: Its name; a share.
            detail: What it is drawn for, where it is drawn more than once.
        """
        return self.draw(f"{fault}/{detail}") < self._faults.get(fault, 0.0)

    def factor(self, fault: str) -> float:
        """Return the number of a fault that is a factor; 1 without it."""
        return self._faults.get(fault, 1.0)

    def share(self, fault: str) -> float:
        """Return the share of a fault; 0 without it."""
        return self._faults.get(fault, 0.0)

    def of_install(self, release: str) -> frozenset[str]:
        """Return the faults of the install of a release.

        Args:
            release: Name and version: a rebuilt package meets the same fate.
        """
        return frozenset(name for name in INSTALL_FAULTS if self.hits(name, release))

    def spells(self) -> Iterator[tuple[bool, float]]:
        """Yield whether the device is on, and for how long, for ever; nothing if it stays on."""
        share = self.share("offline")
        if share == 0.0:
            return
        is_on = not self.hits("offline", "at first")
        turn = 0
        while True:
            mean_s = OFF_S * (1.0 - share) / share if is_on else OFF_S
            yield is_on, -mean_s * math.log(self.draw(f"spell {turn}"))
            is_on, turn = not is_on, turn + 1

    def numbers(self, what: str) -> int:
        """Return where the numbers for a purpose begin, for `agent.replay.chance`."""
        return start(self._seed, crc32(what.encode()), self._number)
