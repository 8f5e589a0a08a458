"""How often the API may be asked: a token bucket for each key, of which so many are kept.

The bucket that was used the longest ago is forgotten first, and would be full again by then unless
somebody asks under ever new keys; who does so gains one burst for each.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from wire.clock import Clock
from wire.token_bucket import TokenBucket

BURST_S: Final = 10.0
"""What a token may do in so many seconds, it may do at once."""

MAX_TOKENS: Final = 4096
"""More than there can be API tokens."""

WRONG_PER_S: Final = 1.0
WRONG_BURST: Final = 30.0
"""Wrong tokens from one address; after these it is told to wait."""

MAX_ADDRESSES: Final = 4096


class Rates:
    """Buckets by key. For one thread.

    Args:
        clock: Durations.
        most: How many buckets are kept.
    """

    def __init__(self, clock: Clock, most: int) -> None:
        self._clock = clock
        self._most = most
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def take(self, key: str, per_s: float, burst: float) -> float:
        """Take a turn.

        Args:
            key: Whose.
            per_s: How many there are in each second; it counts when a key is new.
            burst: How many there are at once; the same.

        Returns:
            How long to wait in seconds; 0 if there was a turn.
        """
        now_s = self._clock.monotonic_s()
        bucket = self._buckets.pop(key, None) or TokenBucket(per_s, burst, now_s)
        self._buckets[key] = bucket
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        return 0.0 if bucket.take(now_s) else bucket.wait_s(1.0, now_s)

    def __len__(self) -> int:
        return len(self._buckets)
