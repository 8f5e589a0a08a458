"""Decides which faults in messages are logged: of each device the first in a while.

A device may send as many faulty messages as it likes; they must not fill the log.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

QUIET_S: Final = 600.0
"""After a fault that was logged those of the same device are not."""

MAX_KNOWN: Final = 10_000


class Faults:
    """Which devices' faults were logged a moment ago."""

    def __init__(self) -> None:
        self._logged_s: OrderedDict[str, float] = OrderedDict()
        """Those that were logged last are last."""

    def is_first(self, device: str, now_s: float) -> bool:
        """Tell whether a fault is to be logged, and note that it is.

        Args:
            device: Who sent the message.
            now_s: Monotonic time.
        """
        logged_s = self._logged_s.get(device)
        if logged_s is not None and now_s - logged_s < QUIET_S:
            return False
        self._logged_s[device] = now_s
        self._logged_s.move_to_end(device)
        while len(self._logged_s) > MAX_KNOWN:
            self._logged_s.popitem(last=False)
        return True
