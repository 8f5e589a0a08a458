"""Benches: which variants must rest, because they crashed too often or could not start.

The worker pool counts crashes here, the adaptation reports variants that could not start, and both
ask here which variants rest. Every rest is of the same length.

Rules:
- A variant that crashes three times within a minute rests. So does one that cannot start.
- After its rest a variant is tried again, and its crashes count anew.
- When a variant starts to serve, its crashes and its rest are forgotten, and those of all other
  packages too.
"""

from __future__ import annotations

import math
import threading
from typing import Final, NamedTuple

from wire.clock import Clock

CRASHES_TO_BENCH: Final = 3
CRASH_WINDOW_S: Final = 60.0
BENCH_S: Final = 300.0
"""Long enough that another try costs little. Short enough that a device soon uses the variant
again after the cause, such as too little memory, is gone."""


class _Rest(NamedTuple):
    reason: str
    until_s: float
    by_crashes: bool


class Benches:
    """Counts crashes by package and variant. For any thread.

    Args:
        clock: For durations.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._crashes: dict[tuple[str, str], list[float]] = {}
        self._benched: dict[tuple[str, str], _Rest] = {}

    def crashed(self, digest: str, variant: str, reason: str) -> bool:
        """Count a crash.

        Args:
            digest: Digest of the package.
            variant: Name of the variant.
            reason: Why it crashed; kept if the variant is benched now.

        Returns:
            Whether the variant is benched now.
        """
        key, now_s = (digest, variant), self._clock.monotonic_s()
        with self._lock:
            recent = [s for s in self._crashes.pop(key, ()) if now_s - s < CRASH_WINDOW_S]
            recent.append(now_s)
            if len(recent) < CRASHES_TO_BENCH:
                self._crashes[key] = recent
                return False
            self._benched[key] = _Rest(reason, now_s + BENCH_S, by_crashes=True)
            return True

    def rest(self, digest: str, variant: str, reason: str) -> None:
        """Let a variant rest from now on.

        Args:
            digest: Digest of the package.
            variant: Name of the variant.
            reason: Why, for people.
        """
        with self._lock:
            until_s = self._clock.monotonic_s() + BENCH_S
            self._benched[digest, variant] = _Rest(reason, until_s, by_crashes=False)

    def clear(self) -> None:
        """Forget everything: all variants may be tried."""
        with self._lock:
            self._crashes.clear()
            self._benched.clear()

    def forgive(self, digest: str, variant: str) -> None:
        """Forget the crashes and the rest of a variant, and those of all other packages."""
        with self._lock:
            for records in (self._crashes, self._benched):
                for key in [key for key in records if key[0] != digest or key[1] == variant]:
                    del records[key]

    def until_s(self, digest: str, variant: str) -> float:
        """Return until when a variant is benched, by the monotonic clock; -inf when it is not."""
        with self._lock:
            rest = self._benched.get((digest, variant))
            return rest.until_s if rest is not None else -math.inf

    def of(self, digest: str, *, by_crashes: bool = False) -> dict[str, str]:
        """Return the variants of a package that rest, and why.

        Args:
            digest: Digest of the package.
            by_crashes: Whether to leave out those that could not start.
        """
        now_s = self._clock.monotonic_s()
        with self._lock:
            return {
                name: rest.reason
                for (package, name), rest in self._benched.items()
                if package == digest and now_s < rest.until_s and rest.by_crashes >= by_crashes
            }
