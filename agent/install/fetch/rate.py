"""Whether a sender is too slow, over the last part of all that it sends; pure.

Rules:
- Only the time for which the device waited counts: a slow disk is not the sender's fault.
- The window slides over answers and their heads: who is slow cannot begin anew with each of them.
"""

from __future__ import annotations

from collections import deque
from typing import Final

STEPS: Final = 16
"""How many samples a window has; it is longer than asked for by one of them at most."""


class Rate:
    """The rate of one sender.

    Args:
        window_s: How long a sender may be slow.
        least_bytes_per_s: What it has to send in each such time, on average.
    """

    def __init__(self, window_s: float, least_bytes_per_s: float) -> None:
        self._window_s = window_s
        self._least_bytes_per_s = least_bytes_per_s
        self._samples: deque[tuple[float, int]] = deque([(0.0, 0)])
        """Seconds waited, and bytes come by then."""

        self._waited_s = 0.0
        self._come_bytes = 0

    @property
    def bytes_per_s(self) -> float:
        """What came in the window; 0 before any wait."""
        since_s, had_bytes = self._samples[0]
        took_s = self._waited_s - since_s
        return (self._come_bytes - had_bytes) / took_s if took_s > 0 else 0.0

    def add(self, waited_s: float, come_bytes: int) -> bool:
        """Note a wait and what came in it.

        Args:
            waited_s: How long.
            come_bytes: How much; 0 for what is of no use.

        Returns:
            Whether the sender is fast enough.
        """
        self._waited_s += waited_s
        self._come_bytes += come_bytes
        samples, now = self._samples, (self._waited_s, self._come_bytes)
        if now[0] - samples[-1][0] < self._window_s / STEPS:
            return True
        samples.append(now)
        while now[0] - samples[1][0] >= self._window_s:
            samples.popleft()
        since_s, had_bytes = samples[0]
        took_s = now[0] - since_s
        is_judged = took_s >= self._window_s
        return not is_judged or now[1] - had_bytes >= took_s * self._least_bytes_per_s
