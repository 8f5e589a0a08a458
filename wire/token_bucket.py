"""A rate that is allowed in the long run, and a burst: the token bucket.

Source:
    Tanenbaum and Wetherall, Computer Networks, 5th edition, 5.4.2, "Traffic shaping".
"""

from __future__ import annotations


class TokenBucket:
    """What may still be done now. One thread at a time uses it.

    Args:
        per_s: How much comes back in each second.
        burst: How much a full bucket holds; it is full at first.
        now_s: Monotonic time.
    """

    __slots__ = ("_at_s", "_burst", "_left", "_per_s")

    def __init__(self, per_s: float, burst: float, now_s: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._left = burst
        self._at_s = now_s

    def left(self, now_s: float) -> float:
        """Return what is in the bucket now; less than 0 after more was spent than there was."""
        gained = max(now_s - self._at_s, 0.0) * self._per_s
        self._left = min(self._left + gained, self._burst)
        self._at_s = now_s
        return self._left

    def is_full(self, now_s: float) -> bool:
        """Tell whether nothing is missing."""
        return self.left(now_s) >= self._burst

    def take(self, now_s: float) -> bool:
        """Take one out if there is a whole one; tell whether there was."""
        if self.left(now_s) < 1.0:
            return False
        self._left -= 1.0
        return True

    def spend(self, amount: float, now_s: float) -> None:
        """Take out what was used, whether or not there is so much."""
        self._left = self.left(now_s) - amount

    def wait_s(self, amount: float, now_s: float) -> float:
        """Return how long to wait until so much may be used; for more than a burst, a full one."""
        return max((min(amount, self._burst) - self.left(now_s)) / self._per_s, 0.0)
