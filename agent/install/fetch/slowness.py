"""Whether a source is too slow, and which one to fetch from then; pure.

Who cannot forge a package may still keep a device from it: by sending just enough to look alive.
So a source has to bring a least rate, as long as there is another one.

Rules:
- A source that is too slow is left for one that is not known to be, else for the one that was
  fastest. Nothing is ever given up for being slow: to stop would do what the slow one wants.
- Only useful bytes count, and only the time for which the device waited for the source.
- The controller says how long a request waited for its turn. That is no slowness; but who sends
  slowly on purpose may say it, too. So it is believed for nine tenths of the time at most: by lying
  a source can be ten times as slow as others, and no more.

Source:
    "Slow retrieval attacks" in the specification of The Update Framework (TUF), 1.5.2.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec

from agent.install.fetch.rate import Rate

N = TypeVar("N", bound=str)

BELIEVED: Final = 0.9
"""Share of the time that a source may say was no fault of its own."""

FORGET_S: Final = 900.0
"""After this time a source that was slow is taken for a new one: the way may be better now."""


class Slow(msgspec.Struct, frozen=True, kw_only=True):
    """A source brought less than it has to, over a whole window."""

    who: str
    """Such as the host of a server."""

    bytes_per_s: float
    least_bytes_per_s: float
    other: str = ""
    """Another place of the same source that is asked next; empty if there is none."""

    stays: bool = False
    """Whether it is not to be left: it brings what saves much more than it takes."""


class Slowness:
    """Which sources were found slow, and how slow."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[float, float]] = {}
        """By name: when it was, and its rate."""

    def found(self, name: str, bytes_per_s: float, now_s: float) -> None:
        """Note that a source is too slow.

        Args:
            name: The source.
            bytes_per_s: What it brought.
            now_s: Monotonic time.
        """
        self._found[name] = (now_s, bytes_per_s)

    def choice(self, names: Iterable[N], now_s: float) -> N | None:
        """Return the source to fetch from.

        Args:
            names: What can be asked, in the order of the settings.
            now_s: Monotonic time.

        Returns:
            The first one that is not known to be slow, else the fastest; None if there is none.
        """
        slow: dict[N, float] = {}
        for name in names:
            at_s, bytes_per_s = self._found.get(name, (float("-inf"), 0.0))
            if now_s - at_s >= FORGET_S:
                return name
            slow[name] = bytes_per_s
        return max(slow, key=lambda name: slow[name], default=None)


class Watch:
    """How fast one source is that is waited for.

    Args:
        window_s: How long it may be slow.
        least_bytes_per_s: What it has to bring in each such time, on average; 0 for no bound.
    """

    def __init__(self, window_s: float, least_bytes_per_s: float) -> None:
        self._window_s = window_s
        self.least_bytes_per_s = least_bytes_per_s
        self._rate = Rate(window_s, least_bytes_per_s)
        self._since_s = 0.0
        """How long the device has waited since the last useful bytes, as far as not judged."""

    def waited(self, duration_s: float, patience_s: float = 0.0) -> float | None:
        """Note a wait in which nothing useful came.

        Args:
            duration_s: How long.
            patience_s: How long an answer may take; before that, its sender can still say why.

        Returns:
            The rate if it is too slow; None if it is fast enough, or nobody can tell yet.
        """
        self._since_s += duration_s
        if self._since_s < max(self._window_s, patience_s):
            return None
        return self._judged(self._since_s, 0)

    def came(self, size_bytes: int, said_s: float = 0.0) -> float | None:
        """Note that something useful came.

        Args:
            size_bytes: How much.
            said_s: For how long the source says that the wait was no fault of its own.

        Returns:
            The rate if it is too slow; None if it is not.
        """
        # No comparison holds for NaN, so that is no time either.
        believed_s = min(said_s, BELIEVED * self._since_s) if said_s > 0.0 else 0.0
        return self._judged(self._since_s - believed_s, size_bytes)

    def _judged(self, waited_s: float, size_bytes: int) -> float | None:
        self._since_s = 0.0
        if self._rate.add(waited_s, size_bytes):
            return None
        bytes_per_s = self._rate.bytes_per_s
        self._rate = Rate(self._window_s, self.least_bytes_per_s)
        return bytes_per_s
