"""How many requests to enrol without a valid token are looked at: a token bucket for all together.

Who has a fleet's `trust.json` can send such requests, under any name, and each costs the checking
of a signature. So there is no share for each sender: it would name itself anew.
"""

from __future__ import annotations

from typing import Final

from wire.token_bucket import TokenBucket

PER_S: Final = 50.0
"""A device that returns sends two: 10,000 that return at once are in after some minutes."""

BURST: Final = 500.0
"""So many devices may return at the same time, as after a restart of the broker."""

LOG_EVERY_S: Final = 600.0


class EnrolRate:
    """The bucket. One thread takes from it.

    Args:
        now_s: Monotonic time.
    """

    def __init__(self, now_s: float) -> None:
        self._bucket = TokenBucket(PER_S, BURST, now_s)
        self._told_s = float("-inf")

    def take(self, now_s: float) -> bool:
        """Take a turn; tell whether there was one.

        Args:
            now_s: Monotonic time.
        """
        return self._bucket.take(now_s)

    def is_to_be_told(self, now_s: float) -> bool:
        """Tell whether a request that is dropped is to be logged: the first one in a while.

        Args:
            now_s: Monotonic time.
        """
        if now_s - self._told_s < LOG_EVERY_S:
            return False
        self._told_s = now_s
        return True
