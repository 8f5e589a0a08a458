"""When bytes leave a link of a given rate and latency. Pure: the caller knows the time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

BLOCK_S: Final = 0.02
"""A link passes bytes on in blocks of so much of its time: finer than anything measured on it."""

MIN_BLOCK_BYTES: Final = 512
MAX_BLOCK_BYTES: Final = 64 * 1024
BUFFER_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkShape:
    """What a link is like, in each direction."""

    bytes_per_s: float = math.inf
    latency_s: float = 0.0

    @property
    def block_bytes(self) -> int:
        """How much it takes at one time."""
        return int(min(max(self.bytes_per_s * BLOCK_S, MIN_BLOCK_BYTES), MAX_BLOCK_BYTES))

    @property
    def buffer_bytes(self) -> int:
        """How much it holds: a tenth of a second, and what is under way."""
        waiting_bytes = self.bytes_per_s * (BUFFER_S + self.latency_s)
        return int(min(waiting_bytes, MAX_BLOCK_BYTES * 64)) + 2 * self.block_bytes


class Pace:
    """The times at which blocks leave one direction of a link, as from a line that is never faster.

    Args:
        shape: The link.
    """

    def __init__(self, shape: LinkShape) -> None:
        self._shape = shape
        self._free_at_s = -math.inf

    def leaves_s(self, came_s: float, size_bytes: int) -> float:
        """Return when a block has left.

        Args:
            came_s: When the link took it; never before the block that came last.
            size_bytes: Its size.

        Returns:
            The time, after the last block's by what this one takes at least.
        """
        self._free_at_s = max(came_s, self._free_at_s) + size_bytes / self._shape.bytes_per_s
        return self._free_at_s + self._shape.latency_s
