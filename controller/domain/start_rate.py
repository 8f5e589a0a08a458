"""How many devices of a rollout may start in a minute, and how that grows. Pure.

Rules:
- Devices start evenly: with 10 a minute, one every six seconds by the rollout's own clock. What
  could not be used for a while is lost but for `LULL_S` of it, so nothing starts in a rush later.
- The rate grows with devices that have succeeded, not with time: it is multiplied by the factor
  once for each so many of them.

Source:
    The token bucket: Tanenbaum and Wetherall, Computer Networks, 5th edition, 5.4.2. The growth is
    that of the exponential rate of jobs in AWS IoT Core.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from wire.durations import MINUTE_S

MIN_PER_MINUTE: Final = 0.001
"""One device in 17 hours."""

MAX_PER_MINUTE: Final = 1_000_000
LULL_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRate:
    """What the operator set."""

    per_minute: float
    factor: float = 1.0
    """By what it is multiplied; 1 for a rate that stays."""

    after: int = 1
    """After how many successes each time."""

    max_per_minute: float = MAX_PER_MINUTE

    def at(self, succeeded: int) -> float:
        """Return how many devices may start in a minute.

        Args:
            succeeded: How many have succeeded.
        """
        if self.factor <= 1.0:
            return self.per_minute
        most = max(self.per_minute, self.max_per_minute)
        times = succeeded // self.after
        if times >= math.log(most / self.per_minute) / math.log(self.factor):
            return most
        return self.per_minute * self.factor**times


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """How many devices could start at some time, by the rollout's own clock."""

    room: float = 1.0
    at_s: float = 0.0

    def filled(self, per_minute: float, now_s: float) -> Bucket:
        """Return it some time later.

        Args:
            per_minute: The rate since.
            now_s: Then.
        """
        most = max(1.0, per_minute * LULL_S / MINUTE_S)
        gained = max(now_s - self.at_s, 0.0) * per_minute / MINUTE_S
        return Bucket(room=min(self.room + gained, most), at_s=now_s)


def starting_s(rate: StartRate, begun: int, count: int) -> float:
    """Return how long it takes at least until so many further devices have started.

    Args:
        rate: The rate.
        begun: How many have started and succeeded before.
        count: How many start now; each succeeds before the rate grows for it.
    """
    took_s, done, end = 0.0, begun, begun + count
    while done < end:
        per_minute = rate.at(done)
        stays = per_minute == rate.at(end)  # so a large fleet takes few rounds
        following = end if stays else min(end, (done // rate.after + 1) * rate.after)
        took_s += (following - done) * MINUTE_S / per_minute
        done = following
    return took_s
