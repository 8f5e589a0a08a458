"""Benches: which variants must rest, because they crashed too often or could not start.

The worker pool counts crashes here, the adaptation reports variants that could not start, and both
ask here which variants rest.

Rules:
- A variant that crashes three times within a minute rests. So does one that cannot start.
- After its rest a variant is tried again, and its crashes count anew.
- When all variants of a package rest, the one that has rested longest is tried again after a short
  while: a device that answers nothing has nothing to lose.
- When a variant starts to serve, its crashes and its rest are forgotten, and those of all other
  packages too.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Final, NamedTuple

from wire.clock import Clock

CRASHES_TO_BENCH: Final = 3
CRASH_WINDOW_S: Final = 60.0
BENCH_S: Final = 300.0
"""Long enough that another try costs little. Short enough that a device soon uses the variant
again after the cause, such as too little memory, is gone."""

LAST_REST_S: Final = 10.0
"""For the one that has rested longest, if all rest: clients commonly ask again within this time."""


class _Rest(NamedTuple):
    reason: str
    began_s: float
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
            self._benched[key] = _Rest(reason, now_s, by_crashes=True)
            return True

    def rest(self, digest: str, variant: str, reason: str) -> None:
        """Let a variant rest from now on.

        Args:
            digest: Digest of the package.
            variant: Name of the variant.
            reason: Why, for people.
        """
        with self._lock:
            now_s = self._clock.monotonic_s()
            self._benched[digest, variant] = _Rest(reason, now_s, by_crashes=False)

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

    def spare(self, digest: str, variants: Collection[str]) -> None:
        """End a rest early if all variants of a package rest.

        Args:
            digest: Digest of the package.
            variants: All its variants that may serve on this device.
        """
        resting = self.of(digest)
        if not variants or not resting.keys() >= set(variants):
            return
        with self._lock:
            rests = {key: r for key, r in self._benched.items() if key[0] == digest}
            key = min(rests, key=lambda key: rests[key].began_s)
            if self._clock.monotonic_s() - rests[key].began_s >= LAST_REST_S:
                del self._benched[key]

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
                if package == digest
                and now_s < rest.began_s + BENCH_S
                and rest.by_crashes >= by_crashes
            }
