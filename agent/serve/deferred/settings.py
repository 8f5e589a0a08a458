"""Bounds on the requests that wait, and why the defaults are what they are."""

from __future__ import annotations

import math
from typing import Final

import msgspec

REQUESTS_SHARE: Final = 0.5
"""Share of the room that requests may take, so that there is room for answers too."""

ANSWER_SHARE: Final = 0.25
"""Share of the room that one answer may take. A request begins only while all answers together
take no more, so that its own has room."""

FETCHED_S: Final = 60.0
"""How long an answer is kept after a client got it: the connection may have broken meanwhile."""


class DeferredSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds on deferrable requests and their answers."""

    requests: int = 256
    """Requests that wait, and answers that are kept, together. 0 accepts none."""

    memory_bytes: int = 32 * 1024**2
    """Room in memory for those that a restart may lose."""

    disk_bytes: int = 64 * 1024**2
    """Room on the disk for those that it must not lose."""

    expire_s: float = 4 * 3600.0
    """How long a request waits at most: what cools in the evening serves it in the night only if
    this is set longer."""

    keep_s: float = 3600.0
    """How long an answer is kept for its client."""

    def faults(self) -> tuple[str, ...]:
        """Return what is wrong, each as a line; empty if nothing is."""
        rules = (
            (self.requests >= 0, "deferred.requests is negative"),
            (self.memory_bytes >= 0, "deferred.memory_bytes is negative"),
            (self.disk_bytes >= 0, "deferred.disk_bytes is negative"),
            (0 < self.expire_s < math.inf, "deferred.expire_s is not above 0"),
            (0 < self.keep_s < math.inf, "deferred.keep_s is not above 0"),
        )
        return tuple(text for holds, text in rules if not holds)

    def room_bytes(self, *, durable: bool) -> int:
        """Return the room for requests and answers of a kind."""
        return self.disk_bytes if durable else self.memory_bytes
