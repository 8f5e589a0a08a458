"""Which variants crashed too often to go on.

Rules:
- Three crashes within a minute bench a variant for ten: the fault may have been the device's (low
  memory, heat), so a bench is not for ever.
"""

from __future__ import annotations

import threading
from typing import Final

from wire.clock import Clock

CRASHES_TO_BENCH: Final = 3
CRASH_WINDOW_S: Final = 60.0
BENCH_S: Final = 600.0


class Benches:
    """Counts crashes by package and variant. For any thread.

    Args:
        clock: For durations.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._crashes: dict[tuple[str, str], list[float]] = {}
        self._benched: dict[tuple[str, str], tuple[str, float]] = {}

    def crashed(self, digest: str, variant: str, reason: str) -> bool:
        """Count a crash.

        Args:
            digest: Of the package.
            variant: Its name.
            reason: Kept if this crash is one too many.

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
            self._benched[key] = (reason, now_s + BENCH_S)
            return True

    def forgive(self, digest: str, variant: str) -> None:
        """Forget the crashes of a variant, and those of all other packages."""
        with self._lock:
            for records in (self._crashes, self._benched):
                for key in [key for key in records if key[0] != digest or key[1] == variant]:
                    del records[key]

    def reason(self, digest: str, variant: str) -> str | None:
        """Say why a variant is benched, or None when it is not."""
        return self.of(digest).get(variant)

    def of(self, digest: str) -> dict[str, str]:
        """Return the benched variants of a package and why."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            return {
                name: reason
                for (package, name), (reason, until_s) in self._benched.items()
                if package == digest and now_s < until_s
            }
