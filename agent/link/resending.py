"""When batches that nobody has acknowledged are sent again: later each time, and not all at once.

Rules:
- A batch is sent again at the earliest `FIRST_S` after it was sent, then after twice that, up to
  `LAST_S`. Each wait is varied by a quarter, so that the devices of a fleet whose controller was
  away do not all speak in the same second.
- Nothing is sent again while the broker has not acknowledged what was sent: the connection keeps
  those copies.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from typing import Final, NamedTuple, TypeAlias

FIRST_S: Final = 30.0
LAST_S: Final = 300.0
SPREAD: Final = 0.25

Key: TypeAlias = tuple[str, int]
"""Boot and sequence number of a batch."""


class _Sent(NamedTuple):
    times: int
    again_s: float


class Resending:
    """Which batches may be sent now.

    Args:
        chance: Returns a random number from 0 to 1; the system's by default.
    """

    def __init__(self, chance: Callable[[], float] | None = None) -> None:
        self._chance = chance or random.SystemRandom().random
        self._sent: dict[Key, _Sent] = {}

    def keep_only(self, waiting: Collection[Key]) -> None:
        """Forget all batches but those that wait."""
        self._sent = {key: sent for key, sent in self._sent.items() if key in waiting}

    def may_send(self, key: Key, now_s: float, *, has_copies: bool) -> bool:
        """Tell whether a batch may be sent.

        Args:
            key: Which.
            now_s: Monotonic.
            has_copies: Whether the broker has not acknowledged all that was sent.
        """
        sent = self._sent.get(key)
        return sent is None or (not has_copies and now_s >= sent.again_s)

    def is_repeat(self, key: Key) -> bool:
        """Tell whether a batch has been sent before."""
        return key in self._sent

    def note(self, key: Key, now_s: float) -> None:
        """Note that a batch is sent."""
        before = self._sent.get(key)
        times = before.times + 1 if before is not None else 1
        # A larger power would only be cut down again.
        wait_s = min(FIRST_S * 2.0 ** min(times - 1, 10), LAST_S)
        wait_s *= 1.0 + SPREAD * (2.0 * self._chance() - 1.0)
        self._sent[key] = _Sent(times, now_s + wait_s)

    def forget(self, key: Key) -> None:
        """Forget a batch that has been acknowledged."""
        self._sent.pop(key, None)

    def begin_anew(self) -> None:
        """Count from the beginning again, after a new connection; the next waits are short ones."""
        self._sent = {key: _Sent(0, sent.again_s) for key, sent in self._sent.items()}
