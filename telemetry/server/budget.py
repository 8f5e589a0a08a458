"""How much of the database one device may fill.

Every device has a bucket of bytes. What the store grows by for the device is taken out, and the
bucket refills with time. While it is empty, nothing of the device is stored.

Rules:
- An honest device never meets its budget: the constants say from which figures they follow.
- A batch is stored whole or not at all, and those that wait together are looked at before they are
  stored: the bucket may go below nothing by them, and then refills from there.
- The buckets are in memory: a new start of the controller fills them. A durable bucket would cost a
  write for each batch, and whoever can start the controller again can do worse than fill its disk.
- Usable from several threads. Two batches of one device at one time may both find the same room.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from wire.clock import Clock
from wire.token_bucket import TokenBucket

MIB: Final = 1024 * 1024
ROW_BYTES: Final = 192
EVENT_BYTES: Final = 256
BOOT_BYTES: Final = 640
"""What a row of each table takes at most, its indexes included and its sketch, reason and data not:
SQLite needs 121, 204 and 490 bytes if the device has the longest name. The rest is for pages that
are not full."""

SMALL_SKETCH_BYTES: Final = 1024
"""Latencies from 1 ms to 10 s fill 426 buckets. Who lets the store write larger sketches again and
again pays for each time."""

BURST_BYTES: Final = 64 * MIB
"""A device that was away sends its spool at once: 16 MiB by default (`spool_bytes`). The smallest
point that an agent makes has 91 bytes there, and a row of `ROW_BYTES` at most in the store, which
gives 34 MiB. So the next full spool may follow before the bucket is full again."""

REFILL_BYTES_PER_HOUR: Final = 4 * MIB
"""An agent with nine variants that all answer, fail and refuse in three ways and are switched in
the same minute, on a board with 16 zones, three disks and three networks, makes 230 rows in each
minute, however often it sends: 2.8 MiB an hour. Most devices have a tenth of that."""

_REFILL_PER_S: Final = REFILL_BYTES_PER_HOUR / 3600


@dataclass(slots=True)
class _Account:
    bucket: TokenBucket
    told: bool = False
    """Whether a refusal was reported since the bucket was full."""


class Budgets:
    """The buckets of all devices.

    Args:
        clock: For the refill.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._accounts: dict[str, _Account] = {}
        """Those whose buckets are not full; each belongs to an enrolled device."""

    def has_room(self, device: str) -> bool:
        """Tell whether a batch of a device may be stored."""
        with self._lock:
            account = self._accounts.get(device)
            return account is None or account.bucket.left(self._clock.monotonic_s()) > 0

    def spend(self, grown_bytes: Mapping[str, int]) -> None:
        """Take out what stored batches made the database grow by, for each device."""
        with self._lock:
            for device, size_bytes in grown_bytes.items():
                self._account(device).bucket.spend(size_bytes, self._clock.monotonic_s())

    def tells(self, device: str) -> bool:
        """Tell whether a refusal is the first one since the device's bucket was full."""
        with self._lock:
            account = self._account(device)
            first, account.told = not account.told, True
        return first

    def forget_full(self) -> None:
        """Free the memory of buckets that are full again."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            for device, account in tuple(self._accounts.items()):
                if account.bucket.is_full(now_s):
                    del self._accounts[device]

    def _account(self, device: str) -> _Account:
        """Return the account of a device as it is now."""
        now_s = self._clock.monotonic_s()
        account = self._accounts.get(device)
        if account is None or account.bucket.is_full(now_s):
            bucket = TokenBucket(_REFILL_PER_S, BURST_BYTES, now_s)
            account = self._accounts[device] = _Account(bucket)
        return account


def minute_bytes(before_bytes: int | None, after_bytes: int) -> int:
    """Return what a row of measurements takes out of a bucket.

    Args:
        before_bytes: The size of its sketch until now; None if there was no such row.
        after_bytes: The size of the sketch that is written; 0 for none.

    Returns:
        What the row grows by. If a large sketch is written once more, its size as well.
    """
    if before_bytes is None:
        return ROW_BYTES + after_bytes
    again = before_bytes if before_bytes > SMALL_SKETCH_BYTES else 0
    return max(after_bytes - before_bytes, 0) + again


def event_bytes(row: dict[str, Any]) -> int:
    """Return what an event takes out of a bucket."""
    return EVENT_BYTES + sum(len(row[name].encode()) for name in ("kind", "reason", "data"))
